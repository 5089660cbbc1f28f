"""Runs torch's loader and ours alike, and puts what each did into a form that ``==`` compares."""

from __future__ import annotations

import asyncio
import random
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

__all__ = [
    "STOPPED",
    "attributes",
    "failure",
    "plain",
    "random_states",
    "run_epochs",
    "seed_all",
    "tell_apart",
]

#: What other libraries read of a loader; samplers by their type.
_VALUES = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "in_order",
    "drop_last",
    "persistent_workers",
    "collate_fn",
)
_TYPES = ("dataset", "sampler", "batch_sampler", "generator", "multiprocessing_context")


def plain(value: Any) -> Any:
    """``value`` with all types, dtypes and shapes spelled out."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), value.requires_grad, value.tolist())
    if isinstance(value, np.ndarray | np.generic):
        return (type(value).__name__, str(value.dtype), value.shape, value.tolist())
    if isinstance(value, Mapping):
        return (type(value).__name__, [(key, plain(value[key])) for key in value])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [plain(item) for item in value])
    return (type(value).__name__, value)


def failure(error: BaseException) -> tuple[str, str]:
    """Type and text, without what differs between any two runs: addresses, and frames of the loops."""
    text = re.sub(r"0x[0-9a-f]+", "0x", str(error))
    # A worker's traceback shows one frame more where the dataset is adapted, and the index as a note.
    text = re.sub(r"(?s)Original Traceback.*\n(?=\S+(Error|Exception|Iteration)\b)", "", text)
    text = re.sub(r"\nwhile fetching ind.*", "", text)
    return type(error).__name__, text.strip()


def attributes(loader: Any) -> dict[str, Any]:
    """The public attributes."""
    values = {name: getattr(loader, name) for name in _VALUES}
    return values | {name: type(getattr(loader, name)).__name__ for name in _TYPES}


def seed_all(seed: int) -> None:
    """Seed the three generators of a training script."""
    # None of a device: `torch.manual_seed` keeps a text of the stack for each kind that is not there.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def random_states() -> tuple[Any, ...]:
    """The states of the three generators of a training script."""
    return torch.get_rng_state().tolist(), random.getstate(), plain(np.random.get_state())


#: In the warning of a map-style dataset that ended a loop by a ``StopIteration`` of its own.
STOPPED = "raised StopIteration, which ends this loop"


def run_epochs(
    make: Callable[[], Any],
    epochs: int = 2,
    before: Callable[[Any, int], None] = lambda loader, epoch: None,
    with_async: bool = False,
) -> dict[str, Any]:
    """What a loader does from its construction on: values, failures, warnings, random states.

    Args:
        make: Constructs it.
        epochs: How often it is iterated.
        before: Called before each epoch.
        with_async: Iterate by ``async for``.
    """
    did: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        # CPython's own, of any fork beside a thread.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
        try:
            loader = make()
        except Exception as error:
            did["construction"] = failure(error)
        else:
            did["attributes"] = attributes(loader)
            did["len"] = _or_failure(lambda: len(loader))
            for epoch in range(epochs):
                before(loader, epoch)
                if with_async:
                    did[f"epoch {epoch}"] = asyncio.run(_run_async(loader))
                else:
                    did[f"epoch {epoch}"] = _run(loader)
                did[f"state {epoch}"] = random_states()
    did["warnings"] = [(warning.category.__name__, str(warning.message)) for warning in warned]
    return did


def tell_apart(did: dict[str, Any]) -> list[str]:
    """Take out of ``did`` the warnings that are ours alone, and give their texts."""
    ours = [text for _, text in did["warnings"] if "asyncloader.split_iterable(" in text or STOPPED in text]
    did["warnings"] = [(kind, text) for kind, text in did["warnings"] if text not in ours]
    return ours


def _or_failure(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return failure(error)


def _run(loader: Any) -> list[Any]:
    # An iterator may go on after an error; one that fails for ever would never end.
    got: list[Any] = []
    try:
        batches = iter(loader)
    except Exception as error:
        return [("iter", failure(error))]
    while len(got) < 100:
        try:
            got.append(plain(next(batches)))
        except StopIteration:
            break
        except Exception as error:
            got.append(("error", failure(error)))
    return got


async def _run_async(loader: Any) -> list[Any]:
    got: list[Any] = []
    try:
        batches = aiter(loader)
    except Exception as error:
        return [("iter", failure(error))]
    while len(got) < 100:
        try:
            got.append(plain(await anext(batches)))
        except StopAsyncIteration:
            break
        except Exception as error:
            got.append(("error", failure(error)))
    return got
