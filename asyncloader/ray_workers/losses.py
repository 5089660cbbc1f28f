"""What it is to the consumer when Ray says that an actor has failed, or finds no place for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..errors import WorkerDiedError
from .actor import Place
from .connecting import import_ray
from .options import RayWorkers

__all__ = ["describe_lateness", "judge"]

# Of the beginning and the end of Ray's texts, each: a traceback has its error there, and between them is what
# is of no use to a reader.
_SHOWN_TEXT = 400


def judge(
    error: BaseException, name: str, number: int, place: Place | None
) -> tuple[bool, Callable[[], BaseException]]:
    """Whether an error of a call is the actor's death, and what is to be raised.

    Args:
        error: What Ray has for the call's result. What user code raises is none: it comes as an answer.
        name: Of the worker, in messages.
        number: Its place in the pool.
        place: Where it runs; None if it has not started yet.
    """
    exceptions = import_ray().exceptions
    told = " ".join(str(error).split())
    if len(told) > 2 * _SHOWN_TEXT:
        told = f"{told[:_SHOWN_TEXT]} ... {told[-_SHOWN_TEXT:]}"
    # Would come again of another actor too.
    never = (
        exceptions.RuntimeEnvSetupError,
        exceptions.ActorUnschedulableError,
        exceptions.ActorPlacementGroupRemoved,
        exceptions.RayTaskError,
    )
    if isinstance(error, never) or getattr(error, "actor_init_failed", False):
        return False, partial(
            RuntimeError,
            f"{name} could not be started; asyncloader, in this version, and what the dataset uses must be "
            f"importable on every node, see RayWorkers(runtime_env=...). Ray says: {told}",
        )
    if not isinstance(error, exceptions.RayError):
        return False, lambda: error
    where = "" if place is None else f" on node {place.node}"
    return True, partial(
        WorkerDiedError,
        f"a Ray actor{where} was lost, before its job had ended; Ray says: {told}",
        worker=number,
        pid=None if place is None else place.pid,
    )


def describe_lateness(name: str, asked: RayWorkers) -> str:
    """What to say of an actor that found no place in time."""
    ray = import_ray()
    or_else = "" if asked.runtime_env is None else "; or no process could be started in its runtime_env"
    return (
        f"{name} had no place within start_timeout_s={asked.start_timeout_s:g} seconds: it asks for "
        f"{asked.demand}, and of the cluster's {_amounts(ray.cluster_resources())} are free "
        f"{_amounts(ray.available_resources())}; ask for less, or for fewer workers, or add nodes{or_else}"
    )


def _amounts(resources: dict[str, float]) -> dict[str, float]:
    """What can be asked for; each node's own name is among a cluster's resources too."""
    return {name: amount for name, amount in sorted(resources.items()) if not name.startswith("node:")}
