"""Whole loaders over a disk cache: one pass in this process, or passes without end in one that is killed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import asyncloader as al

__all__ = ["CachedRun", "Victims"]

# The samples of one batch: key and digest of each.
Read = list[list[str]]


@dataclass(frozen=True)
class CachedRun:
    """What a run reads, and where it keeps it.

    Attributes:
        urls: The shards.
        cache_dir: The folder that all runs share.
        cache_limit: Most bytes in it.
    """

    urls: Sequence[str]
    cache_dir: str
    cache_limit: int

    def passes(self, workers: int, count: int | None = None) -> Iterator[Read]:
        """The batches of so many passes, endless if None; the same for any number of workers."""
        recipe = al.from_urls(self.urls, index=None, cache_dir=self.cache_dir, cache_limit=self.cache_limit)
        loader = al.DataLoader(recipe, 4, num_workers=workers, collate_fn=list, lanes=2)
        while count is None or count > 0:
            for batch in loader:
                yield [[sample["__key__"], hashlib.sha256(sample["bin"]).hexdigest()] for sample in batch]
            count = None if count is None else count - 1


class Victims:
    """Processes that run loaders until they are killed.

    They are forked from a program that has imported everything and has no thread, so that a run begins in
    milliseconds; their own workers come from a fork server of their own, as any user's do.
    """

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program
        self._pid: int | None = None

    @classmethod
    @contextmanager
    def of(cls, run: CachedRun, temporary: Path) -> Iterator[Victims]:
        """Victims of such runs, whose temporary files go to the given folder."""
        root = Path(al.__file__).parents[1]
        environment = {
            "PYTHONPATH": str(root),
            "TMPDIR": str(temporary),
            # A process that forks must have no pool of threads.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            # Of shards for which there is no room, workers tell on standard error.
            "PYTHONWARNINGS": "ignore:reading without the disk cache where a shard cannot be kept",
        }
        program = subprocess.Popen(
            [sys.executable, __file__, json.dumps(asdict(run))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        victims = cls(program)
        try:
            yield victims
        finally:
            program.kill()
            if victims._pid is not None:
                with suppress(ProcessLookupError):
                    os.killpg(victims._pid, signal.SIGKILL)
            complaints = program.communicate()[1]
        assert complaints == "", complaints

    def start(self, workers: int) -> int:
        """Begin a run in a new process, which leads a new session; its id."""
        assert self._program.stdin is not None
        self._program.stdin.write(f"{workers}\n")
        self._program.stdin.flush()
        self._pid = int(self._line())
        return self._pid

    def kill(self) -> list[Read]:
        """Kill the process, and it alone: the batches that its loader has delivered."""
        assert self._pid is not None, "nobody runs"
        os.kill(self._pid, signal.SIGKILL)
        delivered = []
        while (line := self._line()) != "end":
            delivered.append(json.loads(line))
        self._pid = None
        return delivered

    def _line(self) -> str:
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        assert line, self._program.communicate()[1]
        return line.strip()


def _tell(line: str) -> None:
    # In one write: a process killed in ``print`` may leave half a line.
    os.write(1, f"{line}\n".encode())


def _serve(run: CachedRun) -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                _tell(str(os.getpid()))
                for batch in run.passes(int(line)):
                    _tell(json.dumps(batch))
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        _tell("end")


if __name__ == "__main__":
    # What a loader imports late, else each victim would spend half a second on it.
    import asyncloader.stores.http.client

    _serve(CachedRun(**json.loads(sys.argv[1])))
