"""The errors of stores when bytes are unavailable: one wording for all clients, never a client's own text.

Client libraries quote the URL in their messages, query and all, and a presigned query is a secret. For
the same reason a ``StoreError`` is raised outside the ``except`` that caught the client's error: ``from
None`` would hide that error's text from tracebacks only, and keep it as the context.
"""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from ..errors import StoreError
from .store import Body
from .urls import redact


class TransientError(StoreError):
    """Bytes were unavailable this time; a retry may help.

    Attributes:
        retry_after_s: How long the server asks to wait; None if it does not say.
    """

    retry_after_s: float | None = None


class ThrottledError(TransientError):
    """The server takes fewer requests than it gets (429, 503)."""


# An object without an ETag, but with a time of last modification, has a version that begins so.
LAST_MODIFIED = "last-modified:"

_ADVICE = {
    301: "; the bucket is of another region or server: give it as the option region, or endpoint",
    400: "; check the URL, and its signature if it has one",
    401: "; pass credentials by storage_options=",
    403: "; check credentials and the URL (some stores answer so for an object that does not exist)",
    404: "; check the URL, and the ranges in its braces if it has any",
    416: ": the object is shorter than the offset to read it from; was it changed?",
}

# By the codes of S3 and of servers with its protocol:
# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_ADVICE_BY_CODE = {
    "ExpiredToken": ": the session token has expired; get new keys, or give a function that does, as the "
    "option credential_provider",
    "RequestTimeTooSkewed": ": this machine's clock and the server's differ by more than signatures allow "
    "(15 minutes); set the clock, as by NTP",
}

_PHRASES = {status.value: status.phrase for status in HTTPStatus}

_THROTTLED = frozenset({429, 503})

# 425 asks for the request again outside TLS's early data. Of the 5xx, 501 and 505 are about the request.
_TRANSIENT = frozenset({408, 425})
_FINAL_5XX = frozenset({501, 505})

# A number of more than nine digits is a mistake, not a time-out.
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")


def refused(
    url: str,
    offset: int | None,
    status: int,
    reason: str | None = None,
    *,
    retry_after_s: float | None = None,
    advice: str = "",
) -> StoreError:
    """The server answered with a status other than success.

    Args:
        url: Of the shard.
        offset: First byte that was asked for; None if it was no range.
        status: Decides whether a retry may help.
        reason: The server's error code; the usual phrase of the status if None. The server's own may quote
            the URL.
        retry_after_s: From ``wait_asked``.
        advice: What else to do, if the caller knows.
    """
    known = _ADVICE_BY_CODE.get(reason or "", _ADVICE.get(status, ""))
    reason = _PHRASES.get(status, "") if reason is None else reason
    kind = _kind_of(status)
    error = kind(
        f"the server answered {status} {reason}".rstrip() + known + advice,
        shard=redact(url),
        status=status,
        offset=offset,
    )
    if isinstance(error, TransientError):
        error.retry_after_s = retry_after_s
    return error


def changed(
    url: str,
    offset: int | None,
    old: str | None,
    new: str | None,
    *,
    status: int | None = None,
    kind: type[StoreError] = StoreError,
) -> StoreError:
    """The object is not the version that the reading began with.

    Args:
        url: Of the shard.
        offset: First byte that was asked for.
        old: The version that was pinned.
        new: The version that was found; None if the server does not say.
        status: Of the answer, if it was a refusal.
        kind: ``TransientError`` where the answer may have been another server's.
    """
    name = "time of last modification" if old is not None and old.startswith(LAST_MODIFIED) else "ETag"
    was, now = (None if version is None else version.removeprefix(LAST_MODIFIED) for version in (old, new))
    return kind(
        f"the object was changed while it was being read: its {name} was {was}, now {now or 'another'}",
        shard=redact(url),
        status=status,
        offset=offset,
    )


def check_same(body: Body, url: str, offset: int, etag: str | None, total: int | None) -> None:
    """Check an answer against what earlier answers said of the object.

    Args:
        body: The answer.
        url: Of the shard.
        offset: First byte that is wanted.
        etag: The version so far; None if no answer named one.
        total: The length so far; None if no answer named one. The object then has at least ``offset`` bytes.

    Raises:
        StoreError: The object was changed.
    """
    if None not in (etag, body.etag) and body.etag != etag:
        raise changed(url, offset, etag, body.etag)
    if body.total is None or body.total == total or (total is None and body.total >= offset):
        return
    had = f"at least {offset}" if total is None else total
    raise StoreError(
        f"the object was changed while it was being read: it had {had} bytes, now {body.total}",
        shard=redact(url),
        offset=offset,
    )


def wait_asked(retry_after: str | None, date: str | None, now_s: float) -> float | None:
    """The seconds that a ``Retry-After`` asks for, never negative; None if it cannot be read.

    Args:
        retry_after: Its value: seconds or a date.
        date: Value of the ``Date`` header. It is of the same clock; this machine's clock may be wrong.
        now_s: Seconds since the epoch by this machine's clock, used without a ``Date``.
    """
    text = (retry_after or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    until_s, server_s = http_time_s(text), http_time_s(date)
    if until_s is None:
        return None
    return max(0.0, until_s - (now_s if server_s is None else server_s))


def http_time_s(date: str | None) -> float | None:
    """An HTTP date (RFC 9110, 5.6.7) in seconds since the epoch; None if it is none."""
    try:
        moment = parsedate_to_datetime(date or "")
        # Without a zone it is UTC, as all HTTP dates are; Python would take it for local time.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, IndexError):
        return None


def _kind_of(status: int) -> type[StoreError]:
    if status in _THROTTLED:
        return ThrottledError
    if status in _TRANSIENT or (500 <= status < 600 and status not in _FINAL_5XX):
        return TransientError
    return StoreError
