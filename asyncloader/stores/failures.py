"""What stores say when bytes cannot be had: one wording for all clients, and never a client's own text.

Client libraries quote the URL in their messages, query and all, and a presigned query is a secret. For
the same reason ``StoreError`` is raised ``from None`` wherever the client's own error may quote it.
"""

from __future__ import annotations

from ..errors import StoreError
from .urls import redact

__all__ = ["ThrottledError", "TransientError", "changed", "refused"]


class TransientError(StoreError):
    """Bytes could not be had this time; asking again may help.

    Attributes:
        retry_after_s: How long the server asks to be left alone; None if it does not say.
    """

    retry_after_s: float | None = None


class ThrottledError(TransientError):
    """The server takes fewer requests than it gets (429, 503)."""


_ADVICE = {
    401: "; pass credentials",
    403: "; check credentials, and that the object exists (stores hide that from strangers)",
    404: "; check the URL and the range in its braces",
    416: ": the object is shorter than the offset to read it from; was it changed?",
}


def refused(url: str, offset: int, status: int, reason: str) -> StoreError:
    """The server answered with a status other than success."""
    return StoreError(
        f"the server answered {status} {reason}{_ADVICE.get(status, '')}",
        shard=redact(url),
        status=status,
        offset=offset,
    )


def changed(
    url: str, offset: int, old: str | None, new: str | None, *, status: int | None = None
) -> StoreError:
    """The object is not the version that the reading began with."""
    return StoreError(
        f"the object was changed while it was being read: its ETag was {old}, now {new or 'another'}",
        shard=redact(url),
        status=status,
        offset=offset,
    )
