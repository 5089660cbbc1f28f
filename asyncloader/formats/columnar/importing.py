"""pyarrow, imported where it is first needed: it takes a fifth of a second, and is an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from ...errors import FormatError

__all__ = ["arrow", "check_pyarrow", "told"]


def check_pyarrow() -> None:
    """Raise where pyarrow is not installed, without importing it.

    Raises:
        ImportError: It is not.
    """
    if find_spec("pyarrow") is None:
        raise ImportError("Parquet and Arrow shards are read with pyarrow: pip install asyncloader[parquet]")


def arrow() -> Any:
    """The module ``pyarrow``.

    Raises:
        ImportError: It is not installed.
    """
    check_pyarrow()
    import pyarrow

    return pyarrow


@contextmanager
def told(what: str, sample: int | None = None) -> Iterator[None]:
    """Say in our words what pyarrow has against the bytes of a shard.

    Args:
        what: Cannot be read, with the format before it.
        sample: The first one that is lost by that, if it is about samples.

    Raises:
        FormatError: In place of what it raises, or what its values raise when they are looked at.
    """
    try:
        yield
    except FormatError:
        raise
    except (arrow().ArrowException, OSError, ValueError, OverflowError, IndexError) as error:
        how = str(error).partition("\n")[0]
        raise FormatError(f"{what} cannot be read: {how}", sample=sample) from error
