"""What the process that workers come from should import before it forks them.

torch takes longer to import than all else before a first batch, and a job that runs no code but ours does
without it. It is left out only where nothing that the workers will run can want it, as far as what they are
sent tells; if it does, they import it themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

from ..by_value import dumps_with_modules
from ..collate.default import does_without_torch
from ..sources.components import Recipe, leaves_of
from ..sources.shards import Shards
from ..stores.urls import scheme_of
from ..workers import ForkServer

__all__ = ["expected_modules", "modules_to_preload", "start_server"]

_PACKAGE = __name__.partition(".")[0]

# Packages that import no torch. The main module is sent by value: what it uses is named with it.
_WITHOUT_TORCH = sys.stdlib_module_names | {
    "PIL", "__main__", "aiohttp", "cloudpickle", "cv2", "msgspec", "numpy", "obstore", "orjson", "pandas",
    "pyarrow", "uvloop",
}  # fmt: skip

# What a store's client is made with, and late.
_CLIENTS = {None: "local", "http": "http.client", "hub": "hub.client", "objects": "objects.store"}

# Each worker seeds NumPy's generators, whose modules are imported with the first use.
_ALWAYS = (f"{_PACKAGE}.run.workers", f"{_PACKAGE}.ops.pack", f"{_PACKAGE}.formats", "numpy.random", "uvloop")

_WITH_TORCH = ("torch", f"{_PACKAGE}.torch_kind.worker_info", f"{_PACKAGE}.collate.default")


def start_server(recipe: Recipe, *functions: Any) -> ForkServer:
    """The process that workers will come from, started early: it takes a while.

    Args:
        recipe: What to stream.
        functions: ``collate_fn``, ``worker_init_fn`` and whatever else the user may have given.
    """
    server = ForkServer.shared()
    server.preload(expected_modules(recipe, *functions))
    return server


def modules_to_preload(sent: Collection[str], collate_fn: Callable[[Any], Any]) -> list[str]:
    """What to import once for all workers.

    Args:
        sent: The modules that a pickled job names.
        collate_fn: What makes the batches.
    """
    # Our own name alone is user's code that looks up something of ours, whatever it is.
    ours = [name for name in sent if name.startswith(f"{_PACKAGE}.")]
    others = {name.partition(".")[0] for name in sent if name not in ours}
    needs_torch = not others <= _WITHOUT_TORCH or (
        _is_ours(collate_fn) and not does_without_torch(collate_fn)
    )
    return [*(_WITH_TORCH if needs_torch else ()), *_ALWAYS, *ours]


def expected_modules(recipe: Recipe, *functions: Any) -> list[str]:
    """The same, before there is a job: functions and operators are looked at, but not what is read."""
    clients: list[str] = []
    for source in leaves_of(recipe):
        if not isinstance(source, Shards):
            return [*_WITH_TORCH, *_ALWAYS]
        # By the first shard: the others are of the same store, or the workers import what they want.
        clients += [f"{_PACKAGE}.stores.{_CLIENTS[scheme_of(url).store]}" for url in source.urls[:1]]
    try:
        _, _, sent = dumps_with_modules((*recipe.all_ops, *functions))
    except Exception:  # to be told when workers are started, and not before
        sent = set()
    return [*clients, *modules_to_preload(sent, functions[0])]


def _is_ours(fn: Callable[[Any], Any]) -> bool:
    module = getattr(fn, "__module__", None) or type(fn).__module__
    return module.partition(".")[0] == _PACKAGE
