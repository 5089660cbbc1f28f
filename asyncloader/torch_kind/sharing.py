"""What multiprocessing and torch share between processes stays shared; other tensors go by our transport.

torch moves every tensor that it sends into shared memory, with a descriptor for each. What it still sends is
what has to stay what it is: a user's tensors in shared memory or on a GPU, sparse ones, parameters.
"""

from __future__ import annotations

import copyreg
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from multiprocessing.resource_sharer import DupFd
from typing import Any

import torch

from ..workers.packing import Keep
from ..workers.reducing import Reducers, array_reducers, reduce_tensor

__all__ = ["DESCRIPTORS", "SHARING", "by_transport", "closing_descriptors", "plain_pickler"]


class _Waiting(threading.local):
    """Descriptors in this process, made of shared tensors, which wait for whoever unpickles the rest."""

    def __init__(self) -> None:
        self.descriptors: list[DupFd] = []


_waiting = _Waiting()


@contextmanager
def closing_descriptors() -> Iterator[None]:
    """Have what is pickled meanwhile leave nothing open for others if it fails."""
    outer, _waiting.descriptors = _waiting.descriptors, []
    try:
        yield
    except BaseException:
        for descriptor in _waiting.descriptors:
            os.close(descriptor.detach())
        raise
    finally:
        _waiting.descriptors = outer


def _reduce_descriptor(descriptor: DupFd) -> Any:
    _waiting.descriptors.append(descriptor)
    return descriptor.__reduce_ex__(5)


SHARING: Reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # not in typeshed, nor public
"""What multiprocessing and torch know of queues, locks and shared tensors."""

DESCRIPTORS: Reducers = {DupFd: _reduce_descriptor}
"""Notes descriptors for ``closing_descriptors``."""


def by_transport() -> Reducers:
    """What has tensors and arrays go by the transport."""
    return {**array_reducers(), torch.Tensor: _reduce_tensor}


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    shared = SHARING[torch.Tensor]
    if tensor.requires_grad or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return shared(tensor)  # which refuses what has a graph
    # Not the tensor, which takes ten times as long to say so.
    if tensor.untyped_storage().is_shared():
        return shared(tensor)
    return reduce_tensor(tensor, otherwise=shared)


_table: tuple[tuple[int, int], Reducers] = (0, 0), {}


def plain_pickler(file: Any, keep: Keep) -> pickle.Pickler:
    """The fast one, which sends all by name."""
    global _table
    # To put the table together takes as long as to pickle a small batch.
    registered = len(copyreg.dispatch_table), len(SHARING)
    if registered != _table[0]:
        _table = registered, {**copyreg.dispatch_table, **SHARING, **by_transport(), **DESCRIPTORS}
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=keep)
    pickler.dispatch_table = _table[1]
    return pickler
