"""pyarrow, imported where it is first needed: it takes a fifth of a second, and is an extra."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

__all__ = ["arrow", "check_pyarrow"]


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
