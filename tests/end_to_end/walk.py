"""Which functions of the package a byte, a batch and a position pass, found by tracing real passes.

Three things are followed:

* the byte: chunks of an answer, then blocks and samples, until a function makes tensors of them;
* the batch: these tensors, up to the consumer's loop;
* the position: the numbers in ``loader.state_dict()``, from the trail of a block on. Where a position only
  rides beside a batch, its way is the batch's.

A function passes on what it holds (an argument or a local variable, also inside of tuples, lists, dicts and
dataclasses) if it returns or yields it, puts it into a channel, or gives it to a function that does. One that
only looks at it, such as for its size or its digest, does not count; the methods of a channel count as the
channel. What waits in a list of an object is not seen on its way there: a chunk that ``Fetch._ask`` gives to
``_ShardReader._pass_on`` waits in the list of its part, until ``_advance`` sends it.

Each pass is traced twice, over shards of the same number and different length. What passes something on more
often over longer shards does so for each chunk or batch, and is listed; what happens once a pass or once a
shard is not.

    python tests/end_to_end/walk.py            prints the lists, as JSON
    python tests/end_to_end/walk.py --write    writes them into docs/explanation/design.md
"""

from __future__ import annotations

import dataclasses
import gc
import io
import json
import sys
import tarfile
import tempfile
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import asyncloader as al
from asyncloader import testing
from asyncloader.blocks import Columns, Ragged, Rows
from asyncloader.flow import channel
from asyncloader.plan.lanes import Cursor, Row
from asyncloader.stores.local import FileSpan

PACKAGE = Path(al.__file__).parent
DESIGN = PACKAGE.parent / "docs" / "explanation" / "design.md"
BEGIN, END = "<!-- the walk: begin -->", "<!-- the walk: end -->"

#: What is followed.
THINGS = ("byte", "batch", "position")

#: Smaller ones are keys, names and headers.
LEAST_BYTES = 1000
#: A smaller number may be a count of something else.
LEAST_NUMBER = 1000
#: Something that is done so many times more over longer shards is done for each chunk or batch.
STEADY = 5


# --- tracing ---


class Tracer:
    """Follows the three things through all threads that are started meanwhile, and through this one.

    Args:
        numbers: The numbers in the positions of the pass.
    """

    def __init__(self, numbers: set[int]) -> None:
        self._numbers = numbers
        #: For each thing, how often a function held it.
        self.held: defaultdict[str, Counter[CodeType]] = defaultdict(Counter)
        #: For each thing, functions that return it, yield it, or put it into a channel.
        self._ends: defaultdict[str, set[CodeType]] = defaultdict(set)
        #: For each thing, pairs of functions of which one gives it to the other.
        self._calls: defaultdict[str, set[tuple[CodeType, CodeType]]] = defaultdict(set)
        #: The makers of channels, by channel, and how often something was put into theirs.
        self._makers: dict[int, str] = {}
        self.puts: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def __enter__(self) -> Tracer:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if event in ("call", "return") and _is_followed(frame.f_code):
            try:
                self._follow(frame, event, value)
            except BaseException as error:  # raised here it would only end the tracing
                self.failure = self.failure or error

    def passing(self, thing: str) -> set[CodeType]:
        """The functions that pass something on."""
        found = set(self._ends[thing])
        while more := {giver for giver, taker in self._calls[thing] if taker in found} - found:
            found |= more
        return found

    def _follow(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if code is channel.Channel.__init__.__code__:
            self._makers[id(frame.f_locals["self"])] = _maker(frame)
        held = self._held_in(frame)
        if event == "return":
            if type(value).__name__ == "async_generator_wrapped_value":
                (value,) = gc.get_referents(value)
            returned = self._things_in(value)
            held |= returned
            if code is channel.Channel._append.__code__ and held:
                self.puts[self._makers[id(frame.f_locals["self"])]] += 1
                returned = held
            for thing in returned:
                self._ends[thing].add(code)
        elif held and _begins(frame) and (caller := frame.f_back) is not None and _is_followed(caller.f_code):
            for thing in held & self._held_in(caller):
                self._calls[thing].add((caller.f_code, code))
                self.held[thing][caller.f_code] += 1  # which may be a loop that never returns
        for thing in held:
            self.held[thing][code] += 1

    def _held_in(self, frame: FrameType) -> set[str]:
        local = frame.f_locals
        return set().union(*(self._things_in(local[name]) for name in local if name not in ("self", "cls")))

    def _things_in(self, value: Any) -> set[str]:
        if found := _data_in(value):
            return found
        return {"position"} if self._has_number(value) else set()

    def _has_number(self, value: Any, depth: int = 8) -> bool:
        """Whether a number of a position is in a value of the kinds that positions are made of."""
        if type(value) is int:
            return depth < 8 and value in self._numbers
        if isinstance(value, Cursor):
            value = [*value.rows.values()]
        if isinstance(value, Row):
            value = [value.position]
        parts = _parts_of(value) if isinstance(value, dict | list | tuple) else []
        if not depth or len(parts) > 50:
            return False
        return any(self._has_number(part, depth - 1) for part in parts)


def _data_in(value: Any, depth: int = 5) -> set[str]:
    """Whether bytes or tensors are in a value."""
    if isinstance(value, torch.Tensor):
        return {"batch"}
    if isinstance(value, Rows | Columns | Ragged | FileSpan):
        return {"byte"}
    if isinstance(value, bytes | bytearray):
        return {"byte"} if len(value) >= LEAST_BYTES else set()
    if isinstance(value, memoryview | np.ndarray) or type(value).__module__.startswith("pyarrow"):
        return {"byte"} if (getattr(value, "nbytes", 0) or 0) >= LEAST_BYTES else set()
    parts = _parts_of(value)
    some = parts if len(parts) <= 10 else [*parts[:2], parts[-1]]
    found = set().union(*(_data_in(part, depth - 1) for part in some)) if depth else set()
    return {"batch"} if "batch" in found else found


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.values()]
    if isinstance(value, list | tuple | deque):
        return [*value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    return []


def _is_followed(code: CodeType) -> bool:
    path = code.co_filename
    return path.startswith(f"{PACKAGE}/") and not path.startswith(f"{PACKAGE}/testing/")


def _begins(frame: FrameType) -> bool:
    """Whether a function is called, and not resumed behind a ``yield`` or an ``await``."""
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 == 0  # the argument of RESUME


def _maker(frame: FrameType | None) -> str:
    """The function that has made a channel."""
    while frame is not None and (
        frame.f_code.co_filename == channel.__file__ or not _is_followed(frame.f_code)
    ):
        frame = frame.f_back
    return "" if frame is None else _name_of(frame.f_code)


def _name_of(code: CodeType) -> str:
    """Its module and name; a comprehension is part of its function."""
    parts = [part for part in code.co_qualname.split(".") if not part.startswith("<") or part == "<lambda>"]
    return f"{Path(code.co_filename).relative_to(PACKAGE)}: {'.'.join(parts)}"


# --- the passes ---

Open = Callable[[], Any]
"""Opens the loader of a pass."""


def _pass(loader: Any) -> set[int]:
    """Run a pass; the numbers in the positions of all its states, each saved right behind a batch."""
    numbers: set[int] = set()
    with closing(loader):
        for _ in loader:
            numbers |= _numbers_of(loader.state_dict())
    return numbers


def _numbers_of(state: Any) -> set[int]:
    if type(state) is int:
        return {state} if state >= LEAST_NUMBER else set()
    return set().union(*map(_numbers_of, _parts_of(state)))


def _decode(sample: dict[str, Any]) -> dict[str, Any]:
    return {"pixels": np.frombuffer(sample["bin"], np.uint8)}


def _write_tars(folder: Path, samples: int) -> None:
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for index in range(samples):
                member = tarfile.TarInfo(f"{index:05d}.bin")
                member.size = 100_000  # so that a chunk has too few to be read at once
                tar.addfile(member, io.BytesIO(bytes([index % 256]) * member.size))


def _load_tars(server: testing.Server, cache: Path | None = None) -> Any:
    dataset = al.from_urls([server.url_of(f"{shard}.tar") for shard in range(2)], cache_dir=cache)
    return al.DataLoader(dataset.map(_decode), batch_size=8)


@contextmanager
def _over_http(folder: Path, samples: int) -> Iterator[Open]:
    _write_tars(folder, samples)
    with testing.serve(folder) as server:
        yield partial(_load_tars, server)


@contextmanager
def _with_a_cache(folder: Path, samples: int) -> Iterator[Open]:
    _write_tars(folder, samples)
    with testing.serve(folder) as server:
        # Each pass downloads anew.
        yield lambda: _load_tars(server, Path(tempfile.mkdtemp(dir=folder)))


@contextmanager
def _after_a_resume(folder: Path, samples: int) -> Iterator[Open]:
    _write_tars(folder, samples)
    with testing.serve(folder) as server:
        with closing(_load_tars(server)) as loader:
            batches = iter(loader)
            for _ in range(2):
                next(batches)
            state = json.loads(json.dumps(loader.state_dict()))

        def resumed() -> Any:
            loader = _load_tars(server)
            loader.load_state_dict(state)
            return loader

        yield resumed


@contextmanager
def _parquet_from_disk(folder: Path, samples: int) -> Iterator[Open]:
    drawn = np.random.default_rng(0)
    for shard in range(2):
        rows = [drawn.integers(1 << 40, size=200 + index % 7) for index in range(20 * samples)]
        pq.write_table(pa.table({"tokens": rows}), folder / f"{shard}.parquet", row_group_size=500)
    pad = al.Pad({"tokens": 0})
    yield lambda: al.DataLoader(al.from_urls(f"{folder}/*.parquet"), batch_size=100, collate_fn=pad)


PASSES = {
    "tar over HTTP": _over_http,
    "Parquet from disk": _parquet_from_disk,
    "tar over HTTP with a cache": _with_a_cache,
    "tar over HTTP after a resume": _after_a_resume,
}


def _traced(make: Callable[[Path, int], Any], samples: int) -> Tracer:
    with tempfile.TemporaryDirectory() as folder, make(Path(folder), samples) as open_loader:
        numbers = _pass(open_loader())
        with Tracer(numbers) as tracer:
            _pass(open_loader())
    if tracer.failure is not None:
        raise tracer.failure
    return tracer


def walk(make: Callable[[Path, int], Any]) -> dict[str, list[str]]:
    """The functions that pass each thing on, as they first did, and the makers of the channels."""
    short, long = _traced(make, 60), _traced(make, 300)
    found: dict[str, list[str]] = {}
    for thing in THINGS:
        passing = long.passing(thing)
        more = Counter(long.held[thing])
        more.subtract(short.held[thing])
        names = [_name_of(code) for code in long.held[thing] if code in passing and more[code] >= STEADY]
        found[thing] = [*dict.fromkeys(name for name in names if ": Channel." not in name)]
    found["byte"] = [name for name in found["byte"] if name not in found["batch"]]
    found["channels"] = [maker for maker in long.puts if long.puts[maker] - short.puts[maker] >= STEADY]
    return found


# --- the page ---


def render(walks: dict[str, dict[str, list[str]]]) -> str:
    """A section of the page: the numbers of all passes, and the functions of the first."""
    lines = [f"|pass|{'|'.join(THINGS)}|channels|", "|---" * 5 + "|"]
    for name, found in walks.items():
        lines.append(f"|{name}|{'|'.join(str(len(found[thing])) for thing in (*THINGS, 'channels'))}|")
    first = next(iter(walks))
    for thing in THINGS:
        lines += ["", f"The {thing}, {first}:", "", *_by_room(walks[first][thing])]
    return "\n".join(lines)


def _by_room(names: list[str]) -> list[str]:
    by_room: dict[str, list[str]] = {}
    for name in names:
        file, _, function = name.partition(": ")
        module = Path(file).with_suffix("")
        by_room.setdefault(module.parts[0], []).append(f"`{module.name}.{function}`")
    return [f"- `{room}`: {', '.join(functions)}" for room, functions in by_room.items()]


def section_of(page: str) -> str:
    """What is between the marks of the page."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def main() -> None:
    walks = {name: walk(make) for name, make in PASSES.items()}
    if "--write" in sys.argv:
        page = DESIGN.read_text()
        DESIGN.write_text(page.replace(section_of(page), render(walks)))
    print(json.dumps(walks, indent=1))


if __name__ == "__main__":
    main()
