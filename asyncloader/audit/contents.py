"""What an audited recipe is of: its shards, and how many samples each has, as far as that is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..draft import write_whole

__all__ = ["Contents", "Part", "read_contents", "write_contents"]

# Says whose file it is.
_VERSION_KEY = "asyncloader_audit"
_VERSION = 1


@dataclass(frozen=True)
class Part:
    """A source of the recipe.

    Attributes:
        component: Which component of which mixture it is; empty outside of any.
        name: What it is called there.
        shards: Their URLs, without secrets; None if it does not come in shards.
        samples: How many each has, None where that is not known.
        repetitions: How often all of it comes in an epoch; None if nobody can say.
    """

    component: tuple[int, ...]
    name: str
    shards: Sequence[str] | None
    samples: Sequence[int | None] | None
    repetitions: int | None


@dataclass(frozen=True)
class Contents:
    """A recipe as the audit knows it.

    Attributes:
        recipe: What states say of it.
        parts: Its sources.
    """

    recipe: dict[str, Any]
    parts: Sequence[Part]


def write_contents(path: str, contents: Contents) -> None:
    """Write the file, whole or not at all; raises OSError."""
    write_whole(path, json.dumps({_VERSION_KEY: _VERSION, **asdict(contents)}).encode())


def read_contents(path: str) -> Contents:
    """What ``write_contents`` wrote.

    Raises:
        ValueError: It is nothing of the kind.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        try:
            written = json.load(file)
            if written[_VERSION_KEY] != _VERSION:
                raise ValueError
            parts = [Part(**{**part, "component": tuple(part["component"])}) for part in written["parts"]]
            return Contents(written["recipe"], parts)
        except (AttributeError, LookupError, TypeError, ValueError):
            raise ValueError(f"expected the contents of an audit of version {_VERSION} in {path}") from None
