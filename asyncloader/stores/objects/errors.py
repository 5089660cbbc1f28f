"""What obstore's exceptions mean: may asking again help, and what may be said of them.

They have no status, no headers and few types, so their texts are looked at. Those quote URLs, headers and
bodies; only statuses and error codes get out. ``Retry-After`` is not among what they quote.
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

_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")

# Where a machine in the cloud would be told its role: asked when no other credentials were found.
_LAST_RESORT = re.compile(
    r"Error performing \w+ http://\S+/(latest/api/token|latest/meta-data|metadata/identity|computeMetadata)"
)
_PROVIDER = re.compile(r"credential provider: (\w{1,64})")

# obstore leaves the URL out where that is signed.
_SERVER = re.compile(r"Error performing \w+ (https?://[^\s/?#]+)")

# The words of glibc, musl and macOS for a name that nobody knows; a failure to ask has others, and may pass.
_UNKNOWN_HOST = re.compile(
    r"failed to lookup address information: (Name or service not known|Name does not resolve|nodename nor)"
)

# What obstore's text holds, and what to say then; the first that is found counts.
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

# Google unpacks such objects for who does not accept gzip, and then knows no ranges. Accepting it would also
# pack the listings and the tokens, which obstore cannot unpack.
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
        endpoint: As given, for where the client does not say whom it asked.
        proxy: As given, since the client does not say which of the two could not be reached.
    """
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else None
    if _LAST_RESORT.search(text):
        return _no_credentials(status, url, offset, was_answered)
    if isinstance(error, UnauthenticatedError) and (provider := _PROVIDER.search(text)) is not None:
        return StoreError(
            f"credentials could not be had, or cannot be used: {provider[1]}",
            shard=redact(url),
            offset=offset,
        )
    if isinstance(error, InvalidPathError):
        what = "a key has an empty, '.' or '..' segment, and obstore reads no such keys"
        return StoreError(what, shard=redact(url), offset=offset)
    status = status or _status_of(error)
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
    """No connection came about. Which server was asked for is no secret, unlike what else its URL holds."""
    asked = _SERVER.search(text) or _SERVER.search(f"Error performing GET {endpoint}")
    server = "" if asked is None else redact(asked[1])
    if _UNKNOWN_HOST.search(text):
        what = (
            f"there is no host of this name{server and f': {server}'}; "
            "check endpoint, region or account_name, and the proxy if one is used"
        )
        return StoreError(what, shard=redact(url), offset=offset)
    what = f"the connection failed: no server could be reached{server and f' at {server}'}"
    if proxy:
        what += f" through the proxy {redact(proxy)}; check the option proxy"
    return TransientError(what, shard=redact(url), offset=offset)


def _no_credentials(status: int | None, url: str, offset: int | None, was_answered: bool) -> StoreError:
    if (status is None and was_answered) or (status is not None and (status == 429 or status >= 500)):
        what = "the machine's metadata service, which gives the credentials, could not be asked"
        return TransientError(what, shard=redact(url), offset=offset)
    what = "no credentials were found; pass them as options or in the environment, or anonymous=True"
    return StoreError(what, shard=redact(url), offset=offset)


def _status_of(error: Exception) -> int | None:
    """The status that the exception's type stands for, where its text names none."""
    for kind, status in (
        (FileNotFoundError, 404),
        (PermissionDeniedError, 403),
        (UnauthenticatedError, 401),
        (PreconditionError, 412),
    ):
        if isinstance(error, kind):
            return status
    return None
