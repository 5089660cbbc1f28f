"""The options of http(s) stores, checked where they are given; pure, and without the client's import."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["HTTP_OPTIONS", "check_http_options"]

HTTP_OPTIONS = frozenset({"headers"})

_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Set here, or by the client from what is asked.
_OWN_FIELDS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "range",
        "te",
        "transfer-encoding",
        "upgrade",
    }
)


def check_http_options(options: Mapping[str, Any]) -> None:
    """Refuse options that http(s) stores do not have; no message shows a value.

    Raises:
        ValueError: An unknown name, or a header that cannot be sent or is the library's own.
        TypeError: Headers that are no mapping of strings to strings.
    """
    for name in options:
        if name not in HTTP_OPTIONS:
            raise ValueError(
                f"unknown option {name!r} for http(s)://; known are {', '.join(sorted(HTTP_OPTIONS))}"
            )
    headers = options.get("headers", {})
    if not isinstance(headers, Mapping):
        raise TypeError(f"option 'headers' should be a mapping, not {type(headers).__name__}")
    seen: set[str] = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            kinds = f"{type(name).__name__} to {type(value).__name__}"
            raise TypeError(f"option 'headers' should map strings to strings, not {kinds}")
        if not _FIELD_NAME.fullmatch(name):  # not shown: what is no name may be a secret
            raise ValueError("option 'headers' has a name that is not one of an HTTP header")
        if _CONTROL.search(value):
            raise ValueError(f"the value of header {name!r} should have no control characters")
        if name.lower() in _OWN_FIELDS:
            raise ValueError(f"header {name!r} is set by the library")
        if name.lower() in seen:
            raise ValueError(f"header {name!r} is given twice")
        seen.add(name.lower())
