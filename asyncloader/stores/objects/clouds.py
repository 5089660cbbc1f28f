"""The clouds whose objects obstore reads, a row each: what differs between them; pure."""

from __future__ import annotations

import configparser
import os
import shlex
from collections import ChainMap
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from inspect import isawaitable
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Cloud:
    """A cloud.

    Attributes:
        client: obstore's class.
        prefixes: Of the names of its options, in obstore and the environment.
        options: What matters to reading, of the names in obstore's S3Config, GCSConfig and AzureConfig,
            beside those of all clouds and the two that follow.
        flags: Those that are True or False.
        identities: Those that each name a kind of credentials; at most one of them is given.
        endpoint_option: The strongest of obstore's names for an endpoint: an option in code should win over
            the environment, but AWS_ENDPOINT_URL_S3 wins over ``endpoint``.
        endpoint_variables: Where obstore finds its endpoint, the first that is set. It does not report which
            one it took, and refuses http:// by default.
        servers: What identifies the server of a bucket: options by their plain names, and the variables that
            count where no option is given.
        has_profiles: Whether the shared files of AWS hold settings for it, which an endpoint overrides.
    """

    client: str
    prefixes: tuple[str, ...]
    options: frozenset[str]
    flags: frozenset[str]
    identities: frozenset[str]
    endpoint_option: str
    endpoint_variables: tuple[str, ...]
    servers: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    has_profiles: bool = False


_S3_ROLES = frozenset({"role_arn", "role_session_name", "web_identity_token_file"})
_S3_CONTAINERS = frozenset({"container_credentials_full_uri", "container_credentials_relative_uri"})
_GOOGLE_IDENTITIES = frozenset(
    {"application_credentials", "bearer_token", "service_account", "service_account_key"}
)
_AZURE_CLIENTS = frozenset(
    {"client_id", "federated_token_file", "msi_endpoint", "msi_resource_id", "object_id", "tenant_id"}
)

_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AZURE_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")

CLOUDS: Mapping[str, Cloud] = {
    "s3": Cloud(
        client="S3Store",
        prefixes=("aws_",),
        options=_S3_ROLES
        | _S3_CONTAINERS
        | {"container_authorization_token_file", "server_side_encryption", "sse_customer_key_base64"}
        | {"default_region", "metadata_endpoint", "region", "secret_access_key", "session_token"},
        flags=frozenset({"imdsv1_fallback", "request_payer", "s3_express", "virtual_hosted_style_request"}),
        identities=frozenset({"access_key_id", "profile"}),
        endpoint_option="aws_endpoint_url_s3",
        endpoint_variables=_S3_ENDPOINTS,
        # A profile may have an endpoint of its own.
        servers=((("endpoint",), _S3_ENDPOINTS), (("profile",), ("AWS_PROFILE",))),
        has_profiles=True,
    ),
    "gs": Cloud(
        client="GCSStore",
        prefixes=("google_",),
        options=frozenset({"base_url"}),
        flags=frozenset(),
        identities=_GOOGLE_IDENTITIES,
        endpoint_option="base_url",
        endpoint_variables=("GOOGLE_BASE_URL",),
        servers=((("endpoint", "base_url"), ("GOOGLE_BASE_URL",)),),
    ),
    "az": Cloud(
        client="AzureStore",
        prefixes=("azure_storage_", "azure_"),
        options=_AZURE_CLIENTS | {"account_name", "authority_host", "credential_type", "encryption_key"},
        flags=frozenset({"use_azure_cli", "use_emulator", "use_fabric_endpoint"}),
        identities=frozenset({"account_key", "client_secret", "sas_key", "token"}),
        endpoint_option="endpoint",
        endpoint_variables=_AZURE_ENDPOINTS,
        servers=(
            (("endpoint",), _AZURE_ENDPOINTS),
            (("account_name",), ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")),
            (("use_emulator",), ("AZURE_STORAGE_USE_EMULATOR",)),
        ),
    ),
}


# Credentials and settings of ``~/.aws``, which obstore does not read.
#
# Which credentials are used, the first of:
#
# 1. what is given in code: ``anonymous``, ``credential_provider``, keys, ``profile``, or the options of
#    web identities and containers;
# 2. keys in the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``);
# 3. ``role_arn`` of the profile that ``AWS_PROFILE`` names, or of ``default``;
# 4. a web identity in the environment (``AWS_WEB_IDENTITY_TOKEN_FILE``);
# 5. the rest of that profile: single sign-on, keys in ``credentials``, ``credential_process``, keys in
#    ``config``;
# 6. the container's or the machine's role.
#
# 2 to 6 are botocore's order ("Boto3 documentation: Credentials"). Region and endpoint are the options',
# else the environment's, else the profile's, whichever credentials are used.

Provider: TypeAlias = Callable[[], Any]

_YES = frozenset({"1", "true", "on", "yes", "y"})


@dataclass(frozen=True)
class StaticKeys:
    """Keys that do not expire, as a provider for obstore.

    If they were passed to obstore as keys, it would add a session token of the environment, which belongs to
    other keys.
    """

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    def __call__(self) -> dict[str, Any]:
        return {**asdict(self), "expires_at": None}


@dataclass
class Boto3Keys:
    """The keys that boto3 makes of a profile: roles, single sign-on, credential processes; renewed in time.

    obstore calls it in a thread of its own, so importing boto3 and its requests do not block the loop.
    """

    profile: str
    _provider: Provider | None = field(default=None, repr=False)

    def __call__(self) -> Any:
        if self._provider is None:
            import boto3
            from obstore.auth.boto3 import Boto3CredentialProvider

            # boto3 renews what has less than ten minutes left, so what it gives is good for that long.
            session = boto3.Session(profile_name=self.profile)
            self._provider = Boto3CredentialProvider(session, ttl=timedelta(minutes=10))
        return self._provider()


def choose(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What the shared files add to options and environment for S3.

    Args:
        options: Checked ones, by their plain names.
        environ: The environment, which may name other files than those in the home folder.

    Returns:
        Options: a region and an endpoint, where options and environment have none; and a
        ``credential_provider``, unless obstore signs by itself.

    Raises:
        ValueError: A profile that is named and needed but not there, has nothing to sign with, or needs
            boto3, which is not installed; a file that cannot be parsed.
    """
    named = options.get("profile") or environ.get("AWS_PROFILE")
    name = named or "default"
    credentials_path = os.path.expanduser(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    config_path = os.path.expanduser(environ.get("AWS_CONFIG_FILE") or "~/.aws/config")
    credentials, config = _sections(credentials_path), _sections(config_path)
    # What is in the file of credentials comes first.
    in_config = config.get(f"profile {name}") or (config.get("default") if name == "default" else None)
    profile = ChainMap(credentials.get(name, {}), in_config or {})
    needed = "profile" in options or (
        not _given_in_code(options)
        and not (environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"))
    )
    if needed and named and not (in_config or name in credentials or f"profile {name}" in config):
        raise ValueError(
            f"no profile {name!r} in {credentials_path} or {config_path}; "
            "check the option profile or AWS_PROFILE"
        )
    region = setting_of(options, environ, ("region", "default_region"), ("AWS_REGION", "AWS_DEFAULT_REGION"))
    added = {
        "credential_provider": _provider(name, profile, options, environ, needed),
        "region": None if region else profile.get("region"),
        "endpoint": _endpoint(profile, config, options, environ),
    }
    return {name: value for name, value in added.items() if value is not None}


def _provider(
    name: str,
    profile: ChainMap[str, str],
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    needed: bool,
) -> Provider | None:
    if _yes(options.get("anonymous") or options.get("skip_signature")):
        return None
    if "credential_provider" in options:
        given: Provider = options["credential_provider"]
        return given
    if (keys := _keys(options, "")) is not None:
        return keys
    if not needed or ("profile" not in options and _yes(environ.get("AWS_SKIP_SIGNATURE"))):
        return None
    if profile.get("role_arn"):
        return _boto3(name)
    if "profile" not in options and environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return None
    if profile.get("sso_session") or profile.get("sso_start_url"):
        return _boto3(name)
    in_credentials, in_config = profile.maps
    if (keys := _keys(in_credentials, "aws_")) is not None:
        return keys
    if profile.get("credential_process"):
        return _boto3(name)
    if (keys := _keys(in_config, "aws_")) is not None:
        return keys
    if "profile" in options:
        # obstore would go on to the environment's keys, which are not those of the profile.
        raise ValueError(f"the profile {name!r} has neither keys nor a role, a sign-on or a process")
    return None


def _boto3(name: str) -> Boto3Keys:
    if find_spec("boto3") is None:
        raise ValueError(f"the profile {name!r} has a role, a sign-on or a process: pip install boto3 for it")
    return Boto3Keys(name)


def _keys(settings: Mapping[str, str], prefix: str) -> StaticKeys | None:
    key, secret = (settings.get(f"{prefix}{name}") for name in ("access_key_id", "secret_access_key"))
    if not key or not secret:
        return None
    token = settings.get(f"{prefix}session_token") or settings.get(f"{prefix}security_token")
    return StaticKeys(key, secret, token or None)


def setting_of(
    options: Mapping[str, Any], environ: Mapping[str, str], names: tuple[str, ...], variables: tuple[str, ...]
) -> str:
    """The first of these options that is given, else the first of these variables; empty if there is none."""
    given = next((str(options[name]) for name in names if options.get(name)), "")
    return given or next((environ[variable] for variable in variables if environ.get(variable)), "")


def _endpoint(
    profile: Mapping[str, str],
    config: Mapping[str, Mapping[str, str]],
    options: Mapping[str, Any],
    environ: Mapping[str, str],
) -> str | None:
    ignored = environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or profile.get(
        "ignore_configured_endpoint_urls"
    )
    if setting_of(options, environ, ("endpoint",), _S3_ENDPOINTS) or _yes(ignored):
        return None
    services = config.get(f"services {profile.get('services')}", {})
    return _nested(services.get("s3", "")).get("endpoint_url") or profile.get("endpoint_url")


def _given_in_code(options: Mapping[str, Any]) -> bool:
    ours = ("anonymous", "skip_signature", "credential_provider", "access_key_id")
    return any(options.get(name) for name in (*ours, "web_identity_token_file", *_S3_CONTAINERS))


def _yes(value: object) -> bool:
    return str(value).lower() in _YES


def _sections(path: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(default_section="", strict=False)
    failed = False
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            parser.read_file(file)
    except OSError:  # there is none, or it is of another user, such as root's in a container
        return {}
    except configparser.Error:  # it quotes lines, and so keys
        failed = True
    if failed:
        raise ValueError(f"{path} should be an INI file as the AWS tools write it, and cannot be parsed")
    # What is empty is not set.
    return {
        _section_name(header): {key: value for key, value in parser.items(header) if value}
        for header in parser.sections()
    }


def _section_name(header: str) -> str:
    """``profile "my name"`` without its quotes and with one space."""
    try:
        return " ".join(shlex.split(header))
    except ValueError:  # an odd quote is a part of the name
        return header


def _nested(lines: str) -> Mapping[str, str]:
    """The indented settings below one without a value, such as ``s3 =``."""
    pairs = (line.partition("=") for line in lines.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


# The user's ``credential_provider``: its exception is kept. obstore calls it from threads of its own, and
# reports its exceptions as text only; what it returns is checked there.

#: A note at what the user's function raised.
PROVIDER_NOTE = "raised while credentials were asked of credential_provider"


class UserProvider:
    """Calls the user's function for obstore.

    Args:
        provide: The user's, plain or asynchronous.

    Attributes:
        failure: What it raised the last time that it ended; None if it returned. It stays while other calls
            run, since the read that it failed may not have taken it yet.
    """

    def __init__(self, provide: Callable[[], Any]) -> None:
        self.failure: Exception | None = None
        self._provide = provide

    def __call__(self) -> Any:
        with self._remembering():
            given = self._provide()
        if isawaitable(given):
            return self._awaited(given)
        self.failure = None
        return given

    def __getattr__(self, name: str) -> Any:
        # obstore's own providers have settings of the client, such as the region, which it reads.
        if name not in ("config", "prefix"):
            raise AttributeError(name)
        return getattr(self._provide, name)

    async def _awaited(self, awaitable: Awaitable[Any]) -> Any:
        with self._remembering():
            given = await awaitable
        self.failure = None
        return given

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if PROVIDER_NOTE not in getattr(error, "__notes__", ()):
                error.add_note(PROVIDER_NOTE)
            self.failure = error
            raise
