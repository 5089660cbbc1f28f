"""The user's ``credential_provider``: what it gives is checked, and what it raises is remembered.

obstore calls it from threads of its own, and tells of its exceptions by the text alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from inspect import isawaitable
from typing import Any

from .clouds import CLOUDS

__all__ = ["PROVIDER_NOTE", "UserProvider"]

#: A note at what the user's function raised.
PROVIDER_NOTE = "raised while credentials were asked of credential_provider"


class UserProvider:
    """Asks the user's function in obstore's stead.

    Args:
        scheme: ``s3``, ``gs`` or ``az``, which want different credentials.
        provide: The user's, plain or asynchronous.

    Attributes:
        failure: What it raised, or is wrong with what it gave, the last time; None if it was fine.
    """

    def __init__(self, scheme: str, provide: Callable[[], Any]) -> None:
        self.failure: Exception | None = None
        self._scheme = scheme
        self._provide = provide

    def __call__(self) -> Any:
        try:
            given = self._provide()
            if isawaitable(given):
                return self._awaited(given)
            return self._checked(given)
        except Exception as error:
            self._remember(error)
            raise

    def __getattr__(self, name: str) -> Any:
        # obstore's own providers carry settings of the client, such as the region, which it asks for.
        if name not in ("config", "prefix"):
            raise AttributeError(name)
        return getattr(self._provide, name)

    async def _awaited(self, given: Awaitable[Any]) -> Any:
        try:
            return self._checked(await given)
        except Exception as error:
            self._remember(error)
            raise

    def _checked(self, given: object) -> object:
        check_credentials(self._scheme, given)
        self.failure = None
        return given

    def _remember(self, error: Exception) -> None:
        if PROVIDER_NOTE not in getattr(error, "__notes__", ()):
            error.add_note(PROVIDER_NOTE)
        self.failure = error


def check_credentials(scheme: str, given: object) -> None:
    """Refuse what is no credentials of a store; no message shows a value.

    Raises:
        TypeError: No mapping, or a value of a wrong type.
        ValueError: A key is missing, or the time has no zone.
    """
    kinds = CLOUDS[scheme].credentials
    wanted = ", ".join(repr(name) for kind in kinds for name in kind)
    if len(kinds) > 1:
        wanted = f"one of {wanted}"
    wanted += " and 'expires_at' (a datetime with a time zone, or None)"
    if not isinstance(given, Mapping):
        raise TypeError(f"credential_provider should return a dict with {wanted}, not {type(given).__name__}")
    kind = next((kind for kind in kinds if all(name in given for name in kind)), None)
    if kind is None or "expires_at" not in given:
        found = ", ".join(sorted(repr(name) for name in given if isinstance(name, str))) or "no key"
        raise ValueError(f"credential_provider should return a dict with {wanted}, but it has {found}")
    for name in kind:
        # A signature of Azure's may also be a list of pairs.
        if not isinstance(given[name], str | list if name == "sas_token" else str):
            raise TypeError(
                f"{name!r} of credential_provider should be a string, not {type(given[name]).__name__}"
            )
    expires_at = given["expires_at"]
    if expires_at is not None and not isinstance(expires_at, datetime):
        raise TypeError(
            "'expires_at' of credential_provider should be a datetime with a time zone, or None, "
            f"not {type(expires_at).__name__}"
        )
    if expires_at is not None and expires_at.tzinfo is None:
        raise ValueError("'expires_at' of credential_provider should have a time zone, such as datetime.UTC")
