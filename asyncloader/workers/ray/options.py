"""What the workers of a loader need from Ray, in Ray's own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ...quantity import as_count, as_whole

#: ``prefetch_factor`` if none is given: where a batch crosses a network, many cover a round trip. Their bytes
#: are bounded as well.
BATCHES_AHEAD_OF_ACTORS = 16

_ACTOR_OPTIONS = (
    "num_cpus", "num_gpus", "memory", "resources", "label_selector", "scheduling_strategy", "runtime_env",
)  # fmt: skip


@dataclass(frozen=True)
class RayWorkers:
    """Run the workers of a stream as Ray actors: ``DataLoader(stream, workers=RayWorkers(4))``.

    They do the same as ``num_workers=4`` local processes, with the same batches in the same order, the same
    states and errors, on the nodes that Ray chooses. All options except ``count`` and ``start_timeout_s`` are
    those of Ray's actors.

    Args:
        count: Actors of each rank.
        num_cpus: Processors that Ray reserves for each actor, and the number of threads for its libraries.
            1 by default, which an actor keeps busy; less if its functions mostly wait.
        num_gpus: GPUs of each actor. 0 by default: it sees none.
        memory: Bytes of heap that Ray reserves for each actor. None: it reserves none.
        resources: Custom resources that each actor needs, such as ``{"preprocessing": 1}``.
        label_selector: Labels that the nodes must have.
        scheduling_strategy: ``"SPREAD"`` by default, since each node has its own connection to the store.
            With Ray's own default, the actors would need room in the placement group of the caller, such as a
            worker of Ray Train.
        runtime_env: Ray's runtime environment for the actors. This package and your own modules must be
            importable on each node. None: the environment of the job.
        start_timeout_s: The most seconds that an actor may wait for its place. 300 by default, in which an
            autoscaler adds a node.

    Raises:
        ValueError: A number is out of range.
    """

    count: int
    _: KW_ONLY
    num_cpus: float = 1
    num_gpus: float = 0
    memory: int | None = None
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
    scheduling_strategy: Any = "SPREAD"
    runtime_env: Mapping[str, Any] | None = None
    start_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", as_count("count", self.count))
        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            if not _is_number(value) or value < 0:
                raise ValueError(f"{name} should be a number of 0 or more, but got {name}={value!r}")
        if not _is_number(self.start_timeout_s) or self.start_timeout_s <= 0:
            raise ValueError(
                "start_timeout_s should be a number of seconds above 0, but got "
                f"start_timeout_s={self.start_timeout_s!r}"
            )

    @property
    def actor_options(self) -> dict[str, Any]:
        """Keyword arguments for Ray's ``.options()``, without those that are None."""
        given = {name: getattr(self, name) for name in _ACTOR_OPTIONS}
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in given.items()
            if value is not None
        }

    @property
    def demand(self) -> dict[str, Any]:
        """The resources that an actor needs, for messages."""
        names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory", "label_selector": "labels"}
        options = self.actor_options
        demand = {told: options[name] for name, told in names.items() if options.get(name)}
        return {**demand, **options.get("resources", {})}


def count_workers(workers: object, num_workers: object) -> Any:
    """How many workers a loader has, local or not, given both of its options.

    Raises:
        TypeError: ``workers`` is something else.
        ValueError: ``num_workers`` is another number than theirs, and not 0.
        ImportError: Ray is not installed.
    """
    if workers is None:
        count = as_whole(num_workers)  # Python's int, which a saved state can hold
        return num_workers if count is None else count  # torch's error says what is wrong with it
    if not isinstance(workers, RayWorkers):
        raise TypeError(
            f"workers should be RayWorkers(...), or None for local ones, but got {workers!r}; a number of "
            "local processes is num_workers="
        )
    # The same number is allowed: Lightning makes the loader anew with it.
    if as_whole(num_workers) not in (0, workers.count):
        raise ValueError(
            "workers option is mutually exclusive with another num_workers, of local processes, but got "
            f"num_workers={num_workers!r} and workers={workers!r}"
        )
    if find_spec("ray") is None:
        raise ImportError(
            "workers=RayWorkers(...) needs Ray, which is not installed: pip install 'asyncloader[ray]'"
        )
    return workers.count


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


# Ray itself: imported when it is needed, and connected to its cluster as its own libraries do it.


def import_ray() -> Any:
    """The module; not as one that is typed, since half of its functions are not."""
    return import_module("ray")


def connect() -> Any:
    """Ray, after ``ray.init()``, which is called unless it was.

    Raises:
        RuntimeError: This process is connected to its cluster by Ray Client.
        ConnectionError: There is no cluster where the environment says that there is one.
    """
    ray = import_ray()
    if ray.util.client.ray.is_connected():
        raise RuntimeError(
            "RayWorkers cannot be used through Ray Client (ray://), which has no object store of its own; "
            "run this program on a node of the cluster, such as by `ray job submit`"
        )
    if not ray.is_initialized():
        ray.init()
    return ray
