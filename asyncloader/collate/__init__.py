"""Makes a batch out of samples: stacked as torch does it, or padded.

The names are looked up when they are first used, so that this package can be imported without NumPy
and torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .default import default_collate, default_convert
    from .empty import is_empty
    from .pad import Pad

__all__ = ["Pad", "default_collate", "default_convert", "is_empty"]

_HOME = {
    "Pad": ".pad",
    "default_collate": ".default",
    "default_convert": ".default",
    "is_empty": ".empty",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
