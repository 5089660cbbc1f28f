"""Storage options of all schemes, checked where they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .backends import BACKENDS, backend_of
from .schemes import Scheme

__all__ = ["check_storage_options", "options_of"]


def check_storage_options(schemes: Iterable[Scheme], options: Mapping[str, Any]) -> None:
    """Refuse options that one of the stores in use does not have.

    What is one store's alone (the ``headers`` of web servers) is no matter to others, so that a recipe may
    mix web servers and a bucket.

    Raises:
        ValueError: An unknown name, or a value that cannot be.
        TypeError: A value of a wrong type. No message shows a value.
    """
    # http and https are one store, s3 and gs have each their own options.
    used = {row.is_web or row.name: row for row in schemes if not row.is_local}
    apart = frozenset[str]().union(*(backend_of(row).OPTIONS_APART for row in used.values()))
    for row in used.values():
        store = backend_of(row)
        if store.OPTIONS_APART and len(used) > 1:
            mine = {name: value for name, value in options.items() if name in store.OPTIONS_APART}
        else:
            mine = {name: value for name, value in options.items() if name not in apart - store.OPTIONS_APART}
        store.check_options(row.name, mine)
    if options and not used:
        raise ValueError(f"local files have no storage options, but got {', '.join(sorted(options))}")


def options_of(scheme: Scheme, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of checked options, what the stores of a scheme are told: all but what is another's alone."""
    others = BACKENDS.keys() - {scheme.store}
    foreign = frozenset[str]().union(*(BACKENDS[store].OPTIONS_APART for store in others))
    return {name: value for name, value in options.items() if name not in foreign}
