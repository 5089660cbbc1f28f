"""What the end-to-end tests run pipelines through."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from corpus import Corpus, fingerprint

import asyncloader as al
from asyncloader import testing

__all__ = [
    "assert_resume_everywhere",
    "drained",
    "drained_async",
    "python",
    "recipe_of",
    "subprocess_environment",
]

_ROOT = Path(al.__file__).parents[1]

LARGEST_STATE_BYTES = 10_000


def recipe_of(corpus: Corpus, server: testing.Server | None = None) -> al.Dataset:
    """Samples that ``default_collate`` takes, from disk or from a server; from there without an index."""
    options: dict[str, Any] = {} if server is None else {"index": None}
    recipe = al.from_urls(corpus.paths if server is None else corpus.urls(server), **options)
    return recipe.select_columns("key", "number") if ".jsonl" in corpus.paths[0] else recipe


def drained(loader: al.DataLoader[Any]) -> list[Any]:
    """The fingerprints of one pass in a ``for`` loop."""
    return [fingerprint(batch) for batch in loader]


def drained_async(loader: al.DataLoader[Any]) -> list[Any]:
    """The fingerprints of one pass in an ``async for`` loop."""

    async def drain() -> list[Any]:
        return [fingerprint(batch) async for batch in loader]

    return asyncio.run(drain())


def assert_resume_everywhere(
    make_loader: Callable[[int], al.DataLoader[Any]], workers: Sequence[int] = (0, 1, 3), *, every: int = 1
) -> None:
    """Save after every batch of a pass with each number of workers, and go on with each of them.

    A state passes through JSON and is given to a new loader, whose batches must be the rest of the pass.
    Whatever the number of workers, the states are the same texts: so to resume each of them is to have tried
    it after every number of workers. Each is resumed with the first number, and with one of the others in
    turn; starting workers is what takes the time.

    Args:
        make_loader: A loader with so many workers, always of the same lanes.
        workers: Numbers of them.
        every: Other numbers than the first take their turn at every so many states, and at the last two.
    """
    whole: list[Any] = []
    saved: list[str] = []
    for count in workers:
        loader = make_loader(count)
        batches, states = [], [json.dumps(loader.state_dict(), sort_keys=True)]
        for batch in loader:
            batches.append(fingerprint(batch))
            states.append(json.dumps(loader.state_dict(), sort_keys=True))
        whole, saved = whole or batches, saved or states
        assert (batches, states) == (whole, saved), f"{count} workers differ from {workers[0]}"
    assert max(map(len, saved)) < LARGEST_STATE_BYTES
    first, *others = workers
    turns = cycle(others)
    for delivered, state in enumerate(saved):
        takes_turn = others and (delivered % every == 0 or delivered >= len(saved) - 2)
        for count in (first, next(turns)) if takes_turn else (first,):
            loader = make_loader(count)
            loader.load_state_dict(json.loads(state))
            assert drained(loader) == whole[delivered:], f"resumed with {count} workers after {delivered}"


def subprocess_environment() -> dict[str, str]:
    """The environment of a process that imports the library under test, from wherever it is started."""
    return os.environ | {"PYTHONPATH": str(_ROOT)}


def python(
    *arguments: str | Path, program: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a Python process to its end."""
    return subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        input=program,
        text=True,
        capture_output=True,
        env=subprocess_environment(),
        timeout=120,
        check=False,
        **options,
    )
