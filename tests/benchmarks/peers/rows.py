"""What a workload is made of: the loaders that take part, and what asyncloader is to reach beside them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Goal", "Row", "Workload", "limits_of", "peers_among", "rows_of"]

#: What the modules are called in tables; all but the first three need the peers' environment.
LOADERS = {
    "over_asyncloader": "asyncloader",
    "limits": "bare",
    "over_torch": "`DataLoader`",
    "over_webdataset": "webdataset",
    "over_litdata": "LitData, its chunks",
    "over_nodes": "torchdata nodes",
    "over_stateful": "`StatefulDataLoader`",
}
_INSTALLED = frozenset(list(LOADERS)[:3])


@dataclass(frozen=True)
class Row:
    """One loader in one setting.

    Attributes:
        module: Of ``LOADERS``.
        function: In it, which makes the loader.
        name: In the table.
        workers: Processes.
        threads: That decode or read; for loaders that have them.
        place: Where the shards are, as ``places.open_place`` takes it.
        times: How many times the corpus is read.
    """

    module: str
    function: str
    name: str
    workers: int = 0
    threads: int = 0
    place: str = "local"
    times: int = 1

    @property
    def setting(self) -> str:
        if self.module == "limits":
            return "no loader"
        return f"{self.threads} threads" if self.threads else f"{self.workers} workers"

    @property
    def label(self) -> str:
        """Unlike that of every other row of its workload."""
        return f"{self.name}, {self.setting}"

    @property
    def is_installed(self) -> bool:
        """Whether the project's own environment runs it."""
        return self.module in _INSTALLED


@dataclass(frozen=True)
class Goal:
    """What a figure of asyncloader's is to be beside that of others in the same round.

    Attributes:
        row: The label of asyncloader's row.
        figure: Of ``rounds.FIGURES``.
        bound: The least ratio to the best of the others, or the largest where less is better.
        others: Their labels; empty for a bound in the figure's own unit.
        extra: Added to the best of the others before they are compared.
    """

    row: str
    figure: str
    bound: float
    others: tuple[str, ...] = ()
    extra: float = 0.0


@dataclass(frozen=True)
class Workload:
    """What every row of it does.

    Attributes:
        title: A line.
        about: What a reader must know, in Markdown.
        corpus: Of ``corpora.KINDS``; or how many items are in memory.
        rows: Who takes part, asyncloader first.
        goals: What is wanted.
        figure: Of ``rounds.FIGURES``: what the plot shows, and by what rows are compared.
        resumes: Whether a pass is stopped after half of the samples, and the rest read in another process.
        first: Whether a pass is stopped after its first batch.
        counts: How its samples are counted: a key of ``one_pass.COUNTED``; None is the corpus.
    """

    title: str
    about: str
    corpus: str | int
    rows: tuple[Row, ...]
    goals: tuple[Goal, ...] = ()
    figure: str = "samples_s"
    resumes: bool = False
    first: bool = False
    counts: str | None = None

    @property
    def counted(self) -> str:
        """How its samples are counted: a key of ``one_pass.COUNTED``."""
        if self.counts is not None:
            return self.counts
        return self.corpus if isinstance(self.corpus, str) else "items"


def rows_of(
    module: str, function: str, *numbers: int, name: str = "", place: str = "local"
) -> tuple[Row, ...]:
    """A row for each number of workers; of threads, where a loader has no processes."""
    name = name or LOADERS[module]
    if module == "over_nodes":
        return tuple(Row(module, function, name, 0, number, place) for number in numbers if number)
    return tuple(Row(module, function, name, number, 0, place) for number in numbers)


def limits_of(place: str, *functions: str) -> tuple[Row, ...]:
    """What the machine gives."""
    return tuple(
        Row("limits", function, f"bare {function.removesuffix('_parts').replace('_', ' ')}", place=place)
        for function in functions
    )


def peers_among(rows: tuple[Row, ...], workers: int | None = None) -> tuple[str, ...]:
    """The labels of all but asyncloader and the limits; with so many workers or threads."""
    return tuple(
        row.label
        for row in rows
        if row.module not in ("over_asyncloader", "limits")
        if workers in (None, row.workers or row.threads)
    )
