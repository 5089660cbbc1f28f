"""Where the keys that sign requests come from, as a server sees them."""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from asyncloader.errors import StoreError
from asyncloader.stores.failures import TransientError
from asyncloader.stores.http.backend import open_store
from asyncloader.stores.listing import look
from asyncloader.stores.objects.backend import check_options
from asyncloader.stores.objects.clouds import UserProvider
from asyncloader.stores.objects.store import ObjectFolder, ObjectStore
from asyncloader.stores.store import Body, NetworkPolicy

Fetch = Callable[..., Awaitable[tuple[Body, bytes]]]
Shown = Callable[[BaseException], str]

pytestmark = pytest.mark.usefixtures("no_environment")

CONTENT = b"0123456789"


class Cloud:
    """A store of one object, with the machine's metadata service as EC2's second version has it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.role: dict[str, Any] | None = None
        self.metadata_status = 200
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(*cloud.answer("GET", self.path, dict(self.headers.items())))

            def do_PUT(self) -> None:
                self._answer(*cloud.answer("PUT", self.path, dict(self.headers.items())))

            def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                # A connection that is kept would outlive the server.
                for name, value in {
                    "Content-Length": str(len(content)),
                    "Connection": "close",
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        headers = {name.lower(): value for name, value in headers.items()}
        self.seen.append((method, path, headers))
        if path.startswith("/latest/") and self.metadata_status != 200:
            return self.metadata_status, b"", {}
        if (method, path) == ("PUT", "/latest/api/token"):
            return 200, b"SENTINEL", {}
        if path.startswith("/latest/meta-data/") and headers.get("x-aws-ec2-metadata-token") != "SENTINEL":
            return 401, b"", {}
        if path == "/latest/meta-data/iam/security-credentials/":
            return (200, b"my-role", {}) if self.role else (404, b"", {})
        if path in ("/latest/meta-data/iam/security-credentials/my-role", "/container"):
            return 200, json.dumps(self.role).encode(), {"Content-Type": "application/json"}
        span = {
            "ETag": '"1"',
            "Content-Range": "bytes 0-9/10",
            "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
        }
        return 206, CONTENT, span

    @property
    def signers(self) -> list[str]:
        """The access key, token or signature of each request for the object."""
        found = []
        for _, path, headers in self.seen:
            if path.startswith("/corpus"):
                signed = headers.get("authorization", path)
                found.append(signed.partition("Credential=")[2].partition("/")[0] or signed)
        return found


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    try:
        yield cloud
    finally:
        cloud.close()


def keys_for(seconds: float, name: str) -> dict[str, Any]:
    expires_at = datetime.now(UTC) + timedelta(seconds=seconds)
    return {
        "access_key_id": name,
        "secret_access_key": "SENTINEL",
        "token": "SENTINEL",
        "expires_at": expires_at,
    }


def role_for(seconds: float, name: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "AccessKeyId": name,
        "SecretAccessKey": "SENTINEL",
        "Token": "SENTINEL",
        "Code": "Success",
        "LastUpdated": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "Expiration": (now + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "Type": "AWS-HMAC",
    }


async def read(fetch: Fetch, store: ObjectStore, scheme: str = "s3") -> None:
    _, content = await fetch(store, f"{scheme}://corpus/x", 0, 10)
    assert content == CONTENT


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_provider_is_asked_again_when_its_keys_expire(
    cloud: Cloud, fetch: Fetch, is_async: bool
) -> None:
    asked: list[str] = []

    def provide() -> dict[str, Any]:
        asked.append(f"KEY{len(asked)}")
        return keys_for(-1 if len(asked) < 3 else 3600, asked[-1])

    async def provide_async() -> dict[str, Any]:
        return provide()

    options = {"endpoint": cloud.url, "credential_provider": provide_async if is_async else provide}
    store = ObjectStore("s3", "corpus", options)
    for _ in range(4):
        await read(fetch, store)
    assert cloud.signers == ["KEY0", "KEY1", "KEY2", "KEY2"]
    assert cloud.seen[0][2]["x-amz-security-token"] == "SENTINEL"


@pytest.mark.parametrize(
    ("scheme", "credential", "signed"),
    [
        ("gs", {"token": "SENTINEL"}, "Bearer SENTINEL"),
        ("az", {"token": "SENTINEL"}, "Bearer SENTINEL"),
        ("az", {"sas_token": "sig=SENTINEL"}, "/corpus/x?sig=SENTINEL"),
    ],
)
async def test_other_clouds_take_providers_too(
    cloud: Cloud, fetch: Fetch, scheme: str, credential: dict[str, str], signed: str
) -> None:
    asked: list[int] = []

    def provide() -> dict[str, Any]:
        asked.append(1)
        return credential | {"expires_at": datetime.now(UTC) - timedelta(seconds=1)}

    options = {"endpoint": cloud.url, "credential_provider": provide}
    store = ObjectStore(scheme, "corpus", options | ({"account_name": "me"} if scheme == "az" else {}))
    await read(fetch, store, scheme)
    await read(fetch, store, scheme)
    assert cloud.signers == [signed, signed]
    assert len(asked) == 2


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_a_folder_to_write_to_takes_a_provider_too(cloud: Cloud, scheme: str) -> None:
    options = {
        "endpoint": cloud.url,
        "credential_provider": lambda: {"token": "SENTINEL", "expires_at": None},
        **({"account_name": "me"} if scheme == "az" else {}),
    }
    with suppress(StoreError):  # the server answers with a range, which was not asked for
        ObjectFolder(f"{scheme}://corpus/", options).read("x")
    assert set(cloud.signers) == {"Bearer SENTINEL"}


async def test_a_provider_travels_by_cloudpickle(cloud: Cloud, fetch: Fetch) -> None:
    options = cloudpickle.loads(
        cloudpickle.dumps({"endpoint": cloud.url, "credential_provider": lambda: keys_for(60, "MINE")})
    )
    await read(fetch, ObjectStore("s3", "corpus", options))
    assert cloud.signers == ["MINE"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
async def test_what_a_provider_raises_is_raised_with_its_own_frames(
    cloud: Cloud, fetch: Fetch, shown: Shown, scheme: str, is_async: bool
) -> None:
    def ask_my_vault() -> dict[str, Any]:
        raise LookupError("no such role in the vault")

    async def ask_my_vault_later() -> dict[str, Any]:
        return ask_my_vault()

    options = {"endpoint": cloud.url, "credential_provider": ask_my_vault_later if is_async else ask_my_vault}
    store = ObjectStore(scheme, "corpus", options | ({"account_name": "me"} if scheme == "az" else {}))
    for _ in range(2):
        with pytest.raises(LookupError, match="no such role in the vault") as caught:
            await read(fetch, store, scheme)
        assert "ask_my_vault" in [frame.name for frame in caught.traceback]
        assert caught.value.__notes__ == ["raised while credentials were asked of credential_provider"]
        assert "External" not in shown(caught.value)  # obstore's text
    with pytest.raises(LookupError, match="no such role in the vault"):
        await anext(store.pages("", NetworkPolicy()))
    assert cloud.seen == []


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_provider_raised_is_kept_while_another_call_runs(is_async: bool) -> None:
    kept: list[Exception | None] = []

    def ask_my_vault() -> dict[str, Any]:
        kept.append(provider.failure)
        if len(kept) == 1:
            raise LookupError("no such role in the vault")
        return {}

    async def ask_my_vault_later() -> dict[str, Any]:
        return ask_my_vault()

    async def ask() -> None:
        given = provider()
        if is_async:
            await given

    provider = UserProvider(ask_my_vault_later if is_async else ask_my_vault)
    with pytest.raises(LookupError) as caught:
        await ask()
    await ask()
    assert kept == [None, caught.value]
    assert provider.failure is None


class VaultError(Exception):
    """What a user's own function raises."""


class TwoPartError(Exception):
    """One that does not pickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_what_a_provider_raises_while_shards_are_looked_up_keeps_its_type(cloud: Cloud) -> None:
    def ask_my_vault() -> dict[str, Any]:
        raise VaultError("no such role in the vault")

    with pytest.raises(VaultError, match="no such role in the vault") as caught:
        look(["s3://corpus/x/"], {"endpoint": cloud.url, "credential_provider": ask_my_vault}, len)
    assert "in ask_my_vault" in "\n".join(caught.value.__notes__)

    def ask_two_vaults() -> dict[str, Any]:
        raise TwoPartError("no", "role")

    with pytest.raises(RuntimeError, match=r"in ask_two_vaults(?s:.*)TwoPartError: no role"):
        look(["s3://corpus/x/"], {"endpoint": cloud.url, "credential_provider": ask_two_vaults}, len)


_LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("scheme", "given"),
    [
        ("s3", {"access_key_id": "SENTINEL", "secret_acess_key": "SENTINEL"}),
        ("s3", {"access_key_id": "SENTINEL", "secret_access_key": "SENTINEL"}),
        ("s3", ("SENTINEL", "SENTINEL")),
        ("s3", None),
        ("s3", {"access_key_id": "SENTINEL", "secret_access_key": 5, "expires_at": None}),
        ("gs", {"token": "SENTINEL", "expires_at": "tomorrow"}),
        ("gs", {"token": "SENTINEL", "expires_at": datetime(2100, 1, 1)}),
        ("az", {"expires_at": _LATER}),
    ],
)
async def test_what_a_provider_returns_is_checked(
    cloud: Cloud, fetch: Fetch, shown: Shown, scheme: str, given: object
) -> None:
    options = {"endpoint": cloud.url, "credential_provider": lambda: given}
    store = ObjectStore(scheme, "corpus", options | ({"account_name": "me"} if scheme == "az" else {}))
    with pytest.raises(StoreError, match="credential_provider should return a dict with") as caught:
        await read(fetch, store, scheme)
    assert "SENTINEL" not in str(caught.value)
    assert cloud.seen == []


def test_credentials_of_two_kinds_are_refused() -> None:
    check_options("s3", {"profile": "x", "region": "y"})
    with pytest.raises(ValueError, match="access_key_id and profile"):
        check_options("s3", {"aws_access_key_id": "x", "profile": "y"})
    with pytest.raises(TypeError, match="credential_provider should be callable, not str"):
        check_options("gs", {"credential_provider": "SENTINEL"})


async def test_given_keys_are_not_joined_by_a_token_of_the_environment(
    cloud: Cloud, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of others")
    options = {"endpoint": cloud.url, "access_key_id": "MINE", "secret_access_key": "SENTINEL"}
    await read(fetch, ObjectStore("s3", "corpus", options))
    assert cloud.signers == ["MINE"]
    assert "x-amz-security-token" not in cloud.seen[0][2]


async def test_a_profile_signs_with_its_keys_region_and_endpoint(
    cloud: Cloud, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "c").write_text("[work]\naws_access_key_id=WORK\naws_secret_access_key=SENTINEL\n")
    (tmp_path / "f").write_text(f"[profile work]\nregion=eu-west-9\nendpoint_url={cloud.url}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "c"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "f"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "OTHER")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "OTHER")
    await read(fetch, ObjectStore("s3", "corpus", {"profile": "work"}))
    (_, _, headers), *_ = cloud.seen
    assert "Credential=WORK/" in headers["authorization"]
    assert "/eu-west-9/s3/" in headers["authorization"]
    assert "x-amz-security-token" not in headers


async def test_a_missing_profile_is_one_clear_error(fetch: Fetch) -> None:
    with pytest.raises(ValueError, match=r"no profile 'none' in .*no-credentials or .*no-config"):
        await read(fetch, ObjectStore("s3", "corpus", {"profile": "none"}))
    with pytest.raises(ValueError, match=r"no profile 'none' in .*no-credentials or .*no-config"):
        look(["s3://corpus/x/"], {"profile": "none"}, len)


async def test_a_credential_process_signs_through_boto3(
    cloud: Cloud, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    keys = {"Version": 1, "AccessKeyId": "FROM_PROCESS", "SecretAccessKey": "SENTINEL"}
    program.write_text(f"print('''{json.dumps(keys)}''')")
    (tmp_path / "f").write_text(f"[profile process]\ncredential_process = {sys.executable} {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "f"))
    monkeypatch.setenv("AWS_PROFILE", "process")
    await read(fetch, ObjectStore("s3", "corpus", {"endpoint": cloud.url}))
    assert cloud.signers == ["FROM_PROCESS"]


async def test_a_machine_is_told_its_role_and_asks_again_when_that_expires(
    cloud: Cloud, fetch: Fetch
) -> None:
    store = ObjectStore("s3", "corpus", {"endpoint": cloud.url, "metadata_endpoint": cloud.url})
    for name in ("ROLE0", "ROLE1"):
        cloud.role = role_for(-60, name)
        await read(fetch, store)
    assert cloud.signers == ["ROLE0", "ROLE1"]
    assert ("PUT", "/latest/api/token") in [request[:2] for request in cloud.seen]


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (500, TransientError, "metadata service"),
        (429, TransientError, "metadata service"),
        (200, StoreError, "no credentials were found"),
    ],
)
async def test_a_machine_without_a_role_and_one_that_cannot_be_asked_are_told_apart(
    cloud: Cloud, fetch: Fetch, status: int, kind: type[StoreError], message: str
) -> None:
    cloud.metadata_status = status
    store = ObjectStore("s3", "corpus", {"endpoint": cloud.url, "metadata_endpoint": cloud.url})
    with pytest.raises(StoreError, match=message) as caught:
        await read(fetch, store)
    assert type(caught.value) is kind


async def test_a_metadata_service_that_goes_away_in_the_middle_may_come_back(
    cloud: Cloud, fetch: Fetch
) -> None:
    metadata = Cloud()
    try:
        metadata.role = role_for(-60, "ROLE")
        store = ObjectStore("s3", "corpus", {"endpoint": cloud.url, "metadata_endpoint": metadata.url})
        await read(fetch, store)
    finally:
        metadata.close()
    with pytest.raises(TransientError, match="did not answer"):
        await read(fetch, store)


async def test_a_container_is_told_its_role(cloud: Cloud, fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("SENTINEL")
    cloud.role = role_for(3600, "CONTAINER")
    options = {
        "endpoint": cloud.url,
        "container_credentials_full_uri": f"{cloud.url}/container",
        "container_authorization_token_file": str(tmp_path / "token"),
    }
    await read(fetch, ObjectStore("s3", "corpus", options))
    assert cloud.signers == ["CONTAINER"]
    assert cloud.seen[0][2]["authorization"] == "SENTINEL"


async def test_a_certificate_of_a_stranger_is_final(cloud: Cloud, fetch: Fetch, tmp_path: Path) -> None:
    certificate, key = _self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    cloud.server.socket = context.wrap_socket(cloud.server.socket, server_side=True)
    endpoint = cloud.url.replace("http://127.0.0.1", "https://localhost")
    with pytest.raises(StoreError, match="certificate cannot be trusted") as caught:
        await read(fetch, ObjectStore("s3", "corpus", {"endpoint": endpoint, "anonymous": True}))
    assert not isinstance(caught.value, TransientError)
    for trusted in (certificate.read_text(), str(certificate)):
        options = {"endpoint": endpoint, "anonymous": True, "root_certificate": trusted}
        await read(fetch, ObjectStore("s3", "corpus", options))
        only = {"root_certificate": trusted}
        async with open_store("https", "", only, NetworkPolicy()) as store:
            await fetch(store, f"{endpoint}/corpus/x", 0, 10)
    async with open_store("https", "", {}, NetworkPolicy()) as store:
        with pytest.raises(StoreError, match=r"certificate cannot be trusted.*root_certificate"):
            await fetch(store, f"{endpoint}/corpus/x", 0, 10)


def _self_signed(folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"
