"""What obstore's exceptions mean: whether a retry may help, and what may be shown of them.

They have no status, no headers and few types, so their texts are parsed. These quote URLs, headers and
bodies; only statuses and error codes are passed on. They do not contain ``Retry-After``.
"""

from __future__ import annotations

import re

from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from ...errors import StoreError
from ..failures import TransientError, changed, refused
from ..urls import redact

CLIENT_ERRORS = (BaseError, OSError, ValueError)

# The statuses that types stand for, where the text names none.
_STATUSES = (
    (FileNotFoundError, 404),
    (PermissionDeniedError, 403),
    (UnauthenticatedError, 401),
    (PreconditionError, 412),
)
_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")

# Where a machine in the cloud gets its role; requested when no other credentials were found.
_LAST_RESORT = re.compile(
    r"Error performing \w+ http://\S+/(latest/api/token|latest/meta-data|metadata/identity|computeMetadata)"
)
_PROVIDER = re.compile(r"credential provider: (\w{1,64})")

# obstore leaves the URL out where that is signed.
_SERVER = re.compile(r"Error performing \w+ (https?://[^\s/?#]+)")

# The texts of glibc, musl and macOS for an unknown name. A failed lookup has others, and may pass.
_UNKNOWN_HOST = re.compile(
    r"failed to lookup address information: (Name or service not known|Name does not resolve|nodename nor)"
)

# Parts of obstore's text, and our message for each; the first that is found counts.
_FINAL = (
    ("redirect without LOCATION", "the bucket is in another region; pass the option region"),
    ("Content-Length Header missing", "the server sent a body without a length; a cut would not be seen"),
    (
        "InvalidCertificate(",
        "the server's certificate cannot be trusted; see the option root_certificate",
    ),
)
_TRANSIENT = (
    ("Received non-partial response", "the server ignored the range asked for, and sent the whole object"),
    ("UnexpectedRange", "the server sent another range than the one asked for"),
    ("ParseContentRange", "the server sent a Content-Range that cannot be read"),
    ("kind: Timeout", "no byte came in time"),
    ("kind: Interrupted", "the connection was cut before the promised length"),
    ("kind: Decode", "the connection was cut before the promised length"),
    ("kind: Request", "the connection was closed without an answer"),
)

# Google unpacks such objects for clients that do not accept gzip, and then ignores ranges. Accepting gzip
# would also compress the listings and the tokens, which obstore cannot unpack.
_UNPACKED = (
    "the server ignored the range asked for, as it does for an object stored with Content-Encoding: gzip, "
    "which it unpacks; store shards without that"
)


def is_of_provider(error: Exception) -> bool:
    """Whether the function that gives credentials raised, or gave what obstore cannot use."""
    return isinstance(error, UnauthenticatedError) and _PROVIDER.search(str(error)) is not None


def store_error(
    error: Exception,
    url: str,
    offset: int | None,
    etag: str | None = None,
    *,
    was_answered: bool = False,
    endpoint: str = "",
    proxy: str = "",
) -> StoreError:
    """The error to raise for a client's.

    Args:
        error: The client's; raise the result outside its ``except``, or its text stays in the context.
        url: What was asked for.
        offset: From where on; None for a listing.
        etag: The version asked for.
        was_answered: Whether this client has had an answer before, and so found credentials.
        endpoint: As given, for texts that do not name the server.
        proxy: As given, since the text does not say whether the proxy or the server was unreachable.
    """
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else None
    if _LAST_RESORT.search(text):
        return _no_credentials(status, url, offset, was_answered)
    if isinstance(error, UnauthenticatedError) and (provider := _PROVIDER.search(text)) is not None:
        return StoreError(
            f"credentials are unavailable, or cannot be used: {provider[1]}. credential_provider should "
            "return a dict with access_key_id and secret_access_key (s3), token (gs), or token, sas_token "
            "or access_key (az), and with expires_at (a datetime with a time zone, or None)",
            shard=redact(url),
            offset=offset,
        )
    if isinstance(error, InvalidPathError):
        what = "a key has an empty, '.' or '..' segment, and obstore reads no such keys"
        return StoreError(what, shard=redact(url), offset=offset)
    status = status or next((known for kind, known in _STATUSES if isinstance(error, kind)), None)
    if status == 412:
        return changed(url, offset, etag, None, status=412)
    if status is not None:
        code = _CODE.search(text)
        return refused(url, offset, status, code[1] if code else None)
    return _unanswered(error, text, url, offset, endpoint, proxy)


def _unanswered(
    error: Exception, text: str, url: str, offset: int | None, endpoint: str, proxy: str
) -> StoreError:
    """The error where the server gave no status other than success."""
    what = next((say for sign, say in _FINAL if sign in text), None)
    if what is None and "Received non-partial response" in text and "Generic GCS" in text:
        what = _UNPACKED
    if what is not None:
        return StoreError(what, shard=redact(url), offset=offset)
    if "kind: Connect," in text:
        return _unreached(text, url, offset, endpoint, proxy)
    what = next((say for sign, say in _TRANSIENT if sign in text), None)
    if isinstance(error, TimeoutError):
        what = "no answer came in time"
    if what is not None or "HttpError {" in text:
        what = what or "the connection failed in the middle of an answer"
        return TransientError(what, shard=redact(url), offset=offset)
    what = f"the object store's client failed: {type(error).__name__}"
    return StoreError(what, shard=redact(url), offset=offset)


def _unreached(text: str, url: str, offset: int | None, endpoint: str, proxy: str) -> StoreError:
    """No connection was made. The server's name is no secret, unlike the rest of its URL."""
    asked = _SERVER.search(text) or _SERVER.search(f"Error performing GET {endpoint}")
    server = "" if asked is None else redact(asked[1])
    if _UNKNOWN_HOST.search(text):
        what = (
            f"unknown host{server and f': {server}'}; "
            "check endpoint, region or account_name, and the proxy if one is used"
        )
        return StoreError(what, shard=redact(url), offset=offset)
    what = f"the connection failed: no server could be reached{server and f' at {server}'}"
    if proxy:
        what += f" through the proxy {redact(proxy)}; check the option proxy"
    return TransientError(what, shard=redact(url), offset=offset)


def _no_credentials(status: int | None, url: str, offset: int | None, was_answered: bool) -> StoreError:
    if (status is None and was_answered) or (status is not None and (status == 429 or status >= 500)):
        what = "the machine's metadata service, which provides the credentials, did not answer"
        return TransientError(what, shard=redact(url), offset=offset)
    what = "no credentials were found; pass them as options or in the environment, or anonymous=True"
    return StoreError(what, shard=redact(url), offset=offset)
