"""What the library uses of Lightning beyond what Lightning documents: each name, and what for.

=================================================  ==========================================================
name, in ``lightning.pytorch``                     what for
=================================================  ==========================================================
``loops``, ``utilities``                           the modules whose functions iterate a loader
``loops.fetchers._PrefetchDataFetcher.batches``    the batches that it has read ahead
``loops.fetchers._DataLoaderIterDataFetcher``      reads none ahead
``FitLoop.trainer``, ``.epoch_progress``           in which epoch a training is
``FitLoop.run``                                    whether it has begun, and so knows where to resume
=================================================  ==========================================================
All are in Lightning 2.6.6, with which the tests run. A release that lacks one is warned about.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from ..errors import users_level

#: The two names that Lightning is installed by.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")

#: How many frames above ``iter(loader)`` it may be: methods of a subclass may lie in between.
_FRAMES = 10


class _BatchReader(NamedTuple):
    """Lightning's ``Trainer``, which iterates a loader.

    Attributes:
        holds: Called when a state is saved: whether it has read a batch and not yet used it. None if it reads
            none ahead. It reads ahead in a loader without a length, to know which batch is the last, and a
            resumed run would miss that batch.
        epoch: The epoch that it trains; None if it does not train.
    """

    holds: Callable[[], bool] | None
    epoch: int | None


def find_reader() -> _BatchReader | None:
    """Lightning's ``Trainer``, if that iterates the loader here. Nothing public says so to a loader."""
    packages = [name for name in _PACKAGES if name in sys.modules]
    calls = list(_calls(packages)) if packages else []
    if not any(call.module.startswith("loops.") for call in calls):
        return None
    try:
        holds = _holds(next(call.owner for call in calls if _is_fetcher(call.owner)))
        trainer = next(call.owner.trainer for call in calls if hasattr(call.owner, "trainer"))
        epoch = int(trainer.fit_loop.epoch_progress.current.processed) if trainer.training else None
        is_early = trainer.ckpt_path is not None and not any(call.function == "run" for call in calls)
    except (AttributeError, StopIteration, TypeError):
        warnings.warn(
            "asyncloader does not know this release of Lightning and cannot see how the Trainer reads the "
            "loader: a resumed training may miss one batch, if the loader has no length, and may begin with "
            "the order of epoch 0. Install Lightning 2.6, or save and load states of the loader yourself",
            stacklevel=users_level(),
        )
        return None
    if epoch is not None and is_early:
        warnings.warn(
            "Lightning's Trainer opened the loader before it had read where to resume, and does not reopen "
            "it: samples are repeated, since the training continues and the loader starts again. "
            "trainer.estimated_stepping_batches in configure_optimizers causes this; compute the number of "
            "steps yourself, as len(loader) * epochs",
            stacklevel=users_level(),
        )
    return _BatchReader(holds, epoch)


class _Call(NamedTuple):
    """A call of one of Lightning's methods: its object, and its module inside the package."""

    module: str
    function: str
    owner: Any


def _calls(packages: list[str]) -> Iterator[_Call]:
    """The calls by which the loader is iterated here, the innermost first."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None or _module_in(packages, frame) is not None:
            break
        frame = frame.f_back
    while frame is not None:
        module = _module_in(packages, frame)
        if module is None or not module.startswith(("loops.", "utilities.")):
            return  # a hook of the user's, which reads a loader of its own
        # Only of a frame of Lightning's: reading a frame's variables keeps what they hold until it ends, also
        # what the program has deleted meanwhile.
        yield _Call(module, frame.f_code.co_name, frame.f_locals.get("self"))
        frame = frame.f_back


def _module_in(packages: list[str], frame: FrameType) -> str | None:
    """The module of ``frame`` inside of a package; None if it is in none of them."""
    name = str(frame.f_globals.get("__name__"))
    for package in packages:
        if name.startswith(f"{package}."):
            return name.removeprefix(f"{package}.")
    return None


def _is_fetcher(owner: Any) -> bool:
    return isinstance(getattr(owner, "batches", None), list) or _reads_by_hand(owner)


def _reads_by_hand(owner: Any) -> bool:
    """Whether it passes the iterator itself to the training step."""
    return any(kind.__name__ == "_DataLoaderIterDataFetcher" for kind in type(owner).__mro__)


def _holds(fetcher: Any) -> Callable[[], bool] | None:
    if _reads_by_hand(fetcher):
        return None
    held = weakref.ref(fetcher)
    return lambda: bool(getattr(held(), "batches", ()))
