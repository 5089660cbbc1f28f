from __future__ import annotations

import pytest
from obstore.exceptions import UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store

import asyncloader as al
from asyncloader.stores.objects.backend import check_options, client_arguments, known_options
from asyncloader.stores.objects.clouds import CLOUDS

# What obstore wants to see for the names that it parses.
_PARSED = {
    "credential_type": "auto",
    "encryption_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "server_side_encryption": "sse-c",
    "sse_customer_key_base64": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "proxy_url": "http://127.0.0.1:1",
}
KEYS = {"access_key_id": "SENTINEL", "secret_access_key": "SENTINEL"}
_CLIENTS = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_obstore_knows_every_option(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = {"root_certificate", "proxy_ca_certificate"}  # obstore would parse them
    ours = {"credential_provider", "profile"}
    flags = CLOUDS[scheme].flags | {"anonymous", "skip_signature"}
    for name in known_options(scheme) - ours - certificates:
        value = True if name in flags else _PARSED.get(name, "http://x")
        options = {"account_name": "me"} if scheme == "az" else {}
        options |= {name: value}
        if name in ("access_key_id", "secret_access_key"):
            options |= {"access_key_id": "me", "secret_access_key": "secret"}
        check_options(scheme, options)
        config, client = client_arguments(scheme, options, {})
        try:
            _CLIENTS[scheme]("bucket", config=config, client_options=client)
        except Exception as error:
            # Not every value can be made up, such as a service account's; only names are of interest.
            assert not isinstance(error, UnknownConfigurationKeyError), name
            assert "Invalid key" not in str(error), name


@pytest.mark.parametrize("name", ["acces_key_id", "bucket", "allow_invalid_certificates", ""])
def test_an_unknown_option_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown option.*access_key_id.*endpoint.*region"):
        check_options("s3", {name: "x"})


def test_an_option_of_another_scheme_is_unknown() -> None:
    check_options("az", {"account_name": "x"})
    with pytest.raises(ValueError, match="unknown option 'account_name' for gs://"):
        check_options("gs", {"account_name": "x"})


def test_a_wrong_value_is_refused_without_being_shown() -> None:
    with pytest.raises(TypeError, match=r"option 'secret_access_key' should be .*, not list") as caught:
        check_options("s3", {"secret_access_key": ["SENTINEL"]})
    assert "SENTINEL" not in str(caught.value)


def test_a_misspelt_option_is_told_what_was_meant() -> None:
    with pytest.raises(ValueError, match="'endpont' for s3://, did you mean 'endpoint'"):
        check_options("s3", {"endpont": "x"})
    with pytest.raises(TypeError, match="names of options should be strings, not int"):
        check_options("s3", {5: "x"})  # type: ignore[dict-item]  # what is tested


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"region": 5}, TypeError, "option 'region' should be a string, not int"),
        ({"region": True}, TypeError, "option 'region' should be a string, not bool"),
        ({"anonymous": "yes"}, TypeError, "option 'anonymous' should be True or False, not str"),
        ({"aws_request_payer": 1}, TypeError, "option 'aws_request_payer' should be True or False, not int"),
        ({"anonymous": True, **KEYS}, ValueError, "one kind of credentials, but got access_key_id and anon"),
        ({"anonymous": True, "profile": "SENTINEL"}, ValueError, "but got anonymous and profile"),
        ({"access_key_id": "SENTINEL"}, ValueError, "go together, but only access_key_id was given"),
        ({"aws_secret_access_key": "SENTINEL"}, ValueError, "go together, but only secret_access_key was"),
        ({"endpoint": "SENTINEL:9000"}, ValueError, "endpoint should be http://host"),
        ({"endpoint": ""}, ValueError, "endpoint should be http://host"),
    ],
)
def test_a_recipe_refuses_what_no_store_can_use(
    options: dict[str, object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        al.from_urls("s3://corpus/x.tar", storage_options=options)
    assert "SENTINEL" not in str(caught.value)


def test_signing_may_be_said_not_to_be_left_out() -> None:
    check_options("s3", {"anonymous": False, **KEYS})


def test_an_endpoint_may_have_a_path() -> None:
    # As services have it that keep their S3 below a path, and Azure's emulator its account.
    al.from_urls("s3://corpus/x.tar", storage_options={"endpoint": "https://h/storage/v1/s3"})
    al.from_urls("az://corpus/x.tar", storage_options={"endpoint": "http://h/me", "account_name": "me"})


@pytest.mark.parametrize(
    "name", ["endpoint", "endpoint_url", "AWS_ENDPOINT_URL", "aws_endpoint", "AWS_ENDPOINT_URL_S3"]
)
def test_prefixed_names_mean_the_same(name: str) -> None:
    check_options("s3", {name: "https://x"})
    config, _ = client_arguments("s3", {name: "https://x"}, {})
    assert config == {"aws_endpoint_url_s3": "https://x"}


@pytest.mark.parametrize(
    ("options", "environ", "allowed"),
    [
        ({}, {}, False),
        ({"endpoint": "http://x"}, {}, True),
        ({"endpoint": "HTTP://x"}, {}, True),
        ({"endpoint": "https://x"}, {}, False),
        ({}, {"AWS_ENDPOINT_URL": "http://x"}, True),
        ({}, {"AWS_ENDPOINT_URL_S3": "http://x"}, True),
        ({"endpoint": "https://x"}, {"AWS_ENDPOINT_URL": "http://x"}, False),
    ],
)
def test_plain_http_is_allowed_for_such_endpoints_only(
    options: dict[str, str], environ: dict[str, str], allowed: bool
) -> None:
    assert client_arguments("s3", options, environ)[1]["allow_http"] is allowed


def test_anonymous_means_unsigned() -> None:
    assert client_arguments("gs", {"anonymous": True}, {})[0] == {"skip_signature": True}


@pytest.mark.parametrize("endpoint", ["nonsense", "ftp://x", "https://", "http://[::1", "host:9000"])
def test_an_endpoint_that_is_no_server_is_refused_before_the_client_panics(endpoint: str) -> None:
    for options, environ in (({"endpoint": endpoint}, {}), ({}, {"AWS_ENDPOINT_URL": endpoint})):
        with pytest.raises(ValueError, match="endpoint should be"):
            client_arguments("s3", options, environ)
