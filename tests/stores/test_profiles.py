from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from asyncloader.stores.objects import clouds as profiles
from asyncloader.stores.objects.clouds import Boto3Keys, StaticKeys

CREDENTIALS = """
# a comment
[default]
aws_access_key_id = DEFAULT
aws_secret_access_key = SENTINEL

[work]
aws_access_key_id=WORK
aws_secret_access_key=SENTINEL
aws_session_token=SENTINEL

[both]
aws_access_key_id = IN_CREDENTIALS
aws_secret_access_key = SENTINEL
"""

CONFIG = """
[default]
region = eu-west-1
[profile work]
region = eu-central-1
endpoint_url = https://all.example
services = mine
[services mine]
s3 =
  endpoint_url = https://s3.example
  max_retries = 3
dynamodb =
  endpoint_url = https://dynamodb.example
[profile both]
aws_access_key_id = IN_CONFIG
aws_secret_access_key = SENTINEL
[profile "in config"]
aws_access_key_id = IN_CONFIG
aws_secret_access_key = SENTINEL
[profile process]
credential_process = /bin/false
[profile role]
role_arn = arn:aws:iam::1:role/x
source_profile = default
[profile sso]
sso_session = corp
[sso-session corp]
sso_start_url = https://x.example
[profile quiet]
region = eu-north-1
"""

KEYS = "aws_access_key_id = MINE\naws_secret_access_key = SENTINEL\n"
ENVIRONMENT_KEYS = {"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "SENTINEL"}
WEB = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn"}


def choose(
    options: dict[str, Any],
    environ: dict[str, str],
    credentials: str = CREDENTIALS,
    config: str = CONFIG,
) -> dict[str, Any]:
    """What is chosen with these files."""
    with TemporaryDirectory() as folder:
        paths = {
            "AWS_SHARED_CREDENTIALS_FILE": f"{folder}/credentials",
            "AWS_CONFIG_FILE": f"{folder}/config",
        }
        for path, text in zip(paths.values(), (credentials, config), strict=True):
            Path(path).write_text(text)
        return profiles.choose(options, environ | paths)


def signer(options: dict[str, Any], environ: dict[str, str]) -> str | None:
    provider = choose(options, environ).get("credential_provider")
    if isinstance(provider, StaticKeys):
        return provider.access_key_id
    if isinstance(provider, Boto3Keys):
        return f"boto3:{provider.profile}"
    return None


@pytest.mark.parametrize(
    ("options", "environ", "key"),
    [
        ({}, {}, "DEFAULT"),
        ({"profile": "work"}, {}, "WORK"),
        ({}, {"AWS_PROFILE": "work"}, "WORK"),
        ({"profile": "work"}, {"AWS_PROFILE": "both"}, "WORK"),
        ({"profile": "both"}, {}, "IN_CREDENTIALS"),
        ({"profile": "in config"}, {}, "IN_CONFIG"),
        ({"access_key_id": "CODE", "secret_access_key": "S"}, ENVIRONMENT_KEYS, "CODE"),
        ({"profile": "work"}, ENVIRONMENT_KEYS, "WORK"),
        ({"profile": "work"}, WEB, "WORK"),
        # None: obstore signs, with what it finds in the environment or is told by the machine.
        ({}, ENVIRONMENT_KEYS, None),
        ({}, ENVIRONMENT_KEYS | {"AWS_PROFILE": "work"}, None),
        ({}, WEB, None),
        ({}, WEB | {"AWS_PROFILE": "work"}, None),
        ({}, WEB | {"AWS_PROFILE": "role"}, "boto3:role"),
        ({}, {"AWS_PROFILE": "quiet"}, None),
        ({"anonymous": True}, {}, None),
        ({"skip_signature": "true"}, {"AWS_PROFILE": "work"}, None),
        ({"anonymous": False}, {}, "DEFAULT"),
        ({}, {"AWS_SKIP_SIGNATURE": "true"}, None),
        ({"container_credentials_full_uri": "http://x"}, {}, None),
        ({"profile": "process"}, {}, "boto3:process"),
        ({"profile": "role"}, {}, "boto3:role"),
        ({"profile": "sso"}, {}, "boto3:sso"),
    ],
)
def test_whose_credentials_count(options: dict[str, Any], environ: dict[str, str], key: str | None) -> None:
    assert signer(options, environ) == key


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("profile my", "my"),
        ("profile   my", "my"),
        ("profile 'my'", "my"),
        ('profile "my own"', "my own"),
        ("profile 'my own'", "my own"),
        ("profile my's", "my's"),
        ("default", "default"),
        ("'default'", "default"),
    ],
)
def test_names_of_profiles_may_be_in_quotes(header: str, name: str) -> None:
    assert choose({"profile": name}, ENVIRONMENT_KEYS, "", f"[{header}]\n{KEYS}")["credential_provider"]


def test_a_session_token_comes_with_its_keys() -> None:
    chosen = choose({"profile": "work"}, {"AWS_SESSION_TOKEN": "of others"})
    assert chosen["credential_provider"]() == {
        "access_key_id": "WORK",
        "secret_access_key": "SENTINEL",
        "token": "SENTINEL",
        "expires_at": None,
    }


@pytest.mark.parametrize(
    ("options", "environ", "region", "endpoint"),
    [
        ({}, {}, "eu-west-1", None),
        ({"profile": "work"}, {}, "eu-central-1", "https://s3.example"),
        ({"region": "x", "endpoint": "http://y"}, {"AWS_PROFILE": "work"}, None, None),
        ({"profile": "work"}, {"AWS_DEFAULT_REGION": "x", "AWS_ENDPOINT_URL": "y"}, None, None),
        ({"profile": "work"}, {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, "eu-central-1", None),
        ({}, ENVIRONMENT_KEYS, "eu-west-1", None),
    ],
)
def test_region_and_endpoint_of_a_profile(
    options: dict[str, Any], environ: dict[str, str], region: str | None, endpoint: str | None
) -> None:
    chosen = choose(options, environ)
    assert (chosen.get("region"), chosen.get("endpoint")) == (region, endpoint)


@pytest.mark.parametrize(("options", "environ"), [({"profile": "none"}, {}), ({}, {"AWS_PROFILE": "none"})])
def test_a_profile_that_is_not_there_is_told_with_the_files(
    options: dict[str, Any], environ: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"no profile 'none' in \S+/credentials or \S+/config"):
        choose(options, environ)


def test_what_is_empty_in_one_file_is_taken_from_the_other() -> None:
    empty = "[default]\nregion=\nendpoint_url=\nrole_arn=\n" + KEYS
    chosen = choose({}, {}, empty, "[default]\nregion=eu-x\nendpoint_url=https://e\nrole_arn=arn\n")
    assert (chosen["region"], chosen["endpoint"]) == ("eu-x", "https://e")
    assert isinstance(chosen["credential_provider"], Boto3Keys), "the role"


def test_a_profile_without_settings_leaves_the_signing_to_the_machine() -> None:
    assert choose({}, {"AWS_PROFILE": "p"}, "", "[profile p]\n") == {}
    assert choose({}, {}, "", "[profile default]\n[default]\nregion=r\n") == {"region": "r"}


def test_a_profile_that_nobody_needs_may_be_missing() -> None:
    assert "credential_provider" not in choose({}, ENVIRONMENT_KEYS | {"AWS_PROFILE": "none"})
    assert "credential_provider" not in choose({}, {}, "", "")


def test_a_named_profile_without_credentials_is_refused() -> None:
    with pytest.raises(ValueError, match="'quiet' has neither keys"):
        choose({"profile": "quiet"}, ENVIRONMENT_KEYS)


def test_without_boto3_a_role_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install boto3"):
        choose({"profile": "role"}, {})


def test_a_broken_file_is_told_without_its_lines() -> None:
    with pytest.raises(ValueError, match=r"/credentials should be an INI file") as caught:
        choose({}, {}, "[default]\nSECRET line\n")
    assert caught.value.__context__ is None


def test_nothing_secret_is_shown() -> None:
    chosen = choose({"profile": "work"}, {})
    assert "SENTINEL" not in repr(chosen)


def test_files_that_are_not_there_are_empty(tmp_path: Path) -> None:
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path), "AWS_CONFIG_FILE": str(tmp_path / "none")}
    assert profiles.choose({}, environ) == {}


def test_the_files_of_the_home_folder_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.joinpath(".aws").mkdir()
    tmp_path.joinpath(".aws/config").write_text(CONFIG)
    assert profiles.choose({}, {})["region"] == "eu-west-1"
