"""Forty mistakes that beginners make, each with the one message that says what to do.

python tests/end_to_end/mistakes.py            prints the table
python tests/end_to_end/mistakes.py --write    writes it into docs/reference/errors.md
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import asyncloader as al
from asyncloader import testing

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
BEGIN, END = "<!-- the mistakes: begin -->", "<!-- the mistakes: end -->"

#: A retry would only take time.
ONCE = al.NetworkPolicy(attempts=1)

Make = Callable[[Path], object]


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        name: What was done, in Markdown.
        kind: The name of the error's type; ``"warning"`` if it is logged.
        words: What the message has to say: what was found, and what to do.
        make: Does it, given an empty folder. It raises ``SkipTest`` where that is impossible.
    """

    name: str
    kind: str
    words: tuple[str, ...]
    make: Make


MISTAKES: list[Mistake] = []


def mistake(name: str, kind: str, *words: str) -> Callable[[Make], Make]:
    """A decorator: the function makes this mistake."""

    def decorate(make: Make) -> Make:
        MISTAKES.append(Mistake(name, kind, words, make))
        return make

    return decorate


# --- the data and the loops of the mistakes ---


def run(dataset: Any, **options: Any) -> None:
    """A pass."""
    with al.DataLoader(dataset, **options) as loader:
        for _ in loader:
            pass


def numbers(count: int = 8) -> Any:
    return al.from_iterable([{"n": number} for number in range(count)])


def lines(folder: Path, shards: int = 1) -> str:
    """Shards of JSON Lines, four samples each; a glob of them."""
    samples = [json.dumps({"n": number, "tokens": [1] * number}) for number in range(1, 5)]
    for shard in range(shards):
        (folder / f"train-{shard}.jsonl").write_text("\n".join(samples) + "\n")
    return f"{folder}/*.jsonl"


def file(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def read_from_a_server(name: str, *faults: testing.Fault, content: bytes = b"") -> None:
    """A pass over one object of a server that has train-0.tar."""
    with testing.serve({"train-0.tar": content}, faults) as server:
        run(al.from_urls(server.url_of(name), network=ONCE))


def state_after_a_batch(dataset: Any, batch_size: int) -> dict[str, Any]:
    with al.DataLoader(dataset, batch_size, collate_fn=list) as loader:
        next(iter(loader))
        return loader.state_dict()


# --- names ---


@mistake("a host that does not exist", "StoreError", "unknown host", "no-such-host", "check the URL")
def wrong_host(folder: Path) -> None:
    try:
        socket.getaddrinfo("no-such-host.invalid", 80)
    except socket.gaierror as error:
        if error.errno != socket.EAI_NONAME:
            raise SkipTest("no name server answers here") from None
    run(al.from_urls("http://no-such-host.invalid/train-0.tar", network=ONCE))


@mistake("a wrong port", "StoreError", "Connection refused", "check the host and the port")
def wrong_port(folder: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    run(al.from_urls(f"http://127.0.0.1:{port}/train-0.tar", network=ONCE))


@mistake("a wrong URL", "StoreError", "404 Not Found", "train-9.tar", "check the URL")
def wrong_url(folder: Path) -> None:
    read_from_a_server("train-9.tar")


@mistake("no credentials", "StoreError", "403 Forbidden", "train-0.tar", "check credentials")
def no_credentials(folder: Path) -> None:
    read_from_a_server("train-0.tar", testing.Status(403))


@mistake('`from_urls("htp://...")`', "ValueError", "unknown scheme htp://", "https://")
def wrong_scheme(folder: Path) -> None:
    al.from_urls("htp://server/train-0.tar")


@mistake("a glob without a match", "ValueError", "no file matches", "train-*.tar", "check the pattern")
def empty_glob(folder: Path) -> None:
    al.from_urls(f"{folder}/train-*.tar")


@mistake("an empty folder", "ValueError", "expected shards", "the folder is empty", "check the path")
def empty_folder(folder: Path) -> None:
    al.from_urls(f"{folder}/")


@mistake("`from_urls([])`", "ValueError", "at least one shard", "an empty list", "glob")
def empty_list(folder: Path) -> None:
    al.from_urls([])


@mistake("a folder without `/`", "ValueError", "it is a folder", "pass '/data/'")
def folder_as_a_file(folder: Path) -> None:
    al.from_urls(folder)


@mistake("a path that does not exist", "StoreError", "No such file", "train-7.tar", "check the path")
def wrong_path(folder: Path) -> None:
    run(al.from_urls(f"{folder}/train-7.tar"))


@mistake("an unknown suffix", "ValueError", "train-0.bin", ".tar", "name the format by format=")
def unknown_suffix(folder: Path) -> None:
    (folder / "train-0.bin").touch()
    al.from_urls(f"{folder}/train-0.bin")


@mistake("`DataLoader(url)`", "TypeError", "expected a dataset", "type str", "from_urls")
def url_as_a_dataset(folder: Path) -> None:
    url: Any = "https://server/train-0.tar"
    al.DataLoader(url)


# --- contents of shards ---


@mistake("a web page in place of a tar", "FormatError", "a tar header", "a web page", "open the URL")
def web_page(folder: Path) -> None:
    read_from_a_server("train-0.tar", content=b"<html><body>Please log in.</body></html>\n" * 30)


@mistake("a gzip that was cut", "FormatError", "truncated, before byte", "write or copy it again")
def cut_gzip(folder: Path) -> None:
    whole = gzip.compress(b'{"n": 1}\n' * 1000, mtime=0)
    run(al.from_urls(file(folder, "train-0.jsonl.gz", whole[:30])))


@mistake("lines that are not JSON", "FormatError", "Expecting property name", "{n: 2}", "correct the line")
def no_json(folder: Path) -> None:
    run(al.from_urls(file(folder, "train-0.jsonl", b'{"n": 1}\n{n: 2}\n')))


@mistake("a CSV with another delimiter", "FormatError", "',' between them", "'name;text'", "delimiter=';'")
def wrong_delimiter(folder: Path) -> None:
    run(al.from_urls(file(folder, "train-0.csv", b"name;text\nx;one, two\n")))


@mistake("an old index", "ValueError", "no entry for 1 of 2 shards", "train-1.jsonl", "asyncloader index")
def old_index(folder: Path) -> None:
    index = al.build_index(lines(folder))
    al.from_urls(lines(folder, 2), index=index)


# --- batches ---


@mistake("images of different sizes", "RuntimeError", "[3, 8, 8] and [3, 9, 8]", "make the shapes equal")
def sizes_that_differ(folder: Path) -> None:
    run(al.from_iterable([{"image": np.zeros((3, rows, 8))} for rows in (8, 9)]), batch_size=2)


@mistake("a forgotten `Pad`", "RuntimeError", "'tokens'", "lengths 1 and 2", "al.Pad")
def no_pad(folder: Path) -> None:
    run(al.from_urls(lines(folder)), batch_size=2)


@mistake("`None` in a batch", "RuntimeError", "'n'", "types int and NoneType", "replace it in .map")
def null_in_a_batch(folder: Path) -> None:
    run(al.from_iterable([{"n": 1}, {"n": None}]), batch_size=2)


@mistake("a `Path` in a batch", "TypeError", "must contain tensors", "'file'", "PosixPath", "in .map")
def path_in_a_batch(folder: Path) -> None:
    run(al.from_iterable([{"file": Path("x.png")}]))


@mistake('`Pad({"tokns": 0})`', "ValueError", "'tokns'", "['n', 'tokens']", "check the names")
def wrong_field(folder: Path) -> None:
    run(al.from_urls(lines(folder)), collate_fn=al.Pad({"tokns": 0}))


# --- functions ---


@mistake("a function of `.map` that raises", "KeyError", "'label'", "map(read_label)", "line 1", "n, tokens")
def function_that_raises(folder: Path) -> None:
    def read_label(sample: dict[str, Any]) -> Any:
        return {"label": sample["label"]}

    run(al.from_urls(lines(folder)).map(read_label))


@mistake("a function of `.map` without `return`", "TypeError", "NoneType", "has to return the sample")
def function_without_return(folder: Path) -> None:
    def scale(sample: dict[str, Any]) -> None:
        sample["n"] *= 2

    run(numbers().map(scale))


@mistake("`.map(fetch())` of an `async def`", "TypeError", "a function of one sample", "without calling it")
def coroutine_for_a_function(folder: Path) -> None:
    async def fetch(sample: Any = None) -> Any:
        return sample

    with closing(fetch()) as coroutine:
        numbers().map(coroutine)


@mistake('`.rename(new="old")`', "KeyError", "the field 'label'", "only ['n']", "write rename(n='label')")
def rename_the_other_way(folder: Path) -> None:
    run(numbers().rename(label="n"))


@mistake("a function that holds a lock, with workers", "TypeError", "_thread.lock", "make that in the worker")
def lock_in_a_function(folder: Path) -> None:
    lock = threading.Lock()

    def locked(sample: Any) -> Any:
        with lock:
            return sample

    run(numbers().map(locked), num_workers=1)


# --- datasets and loaders ---


@mistake("`dataset[0]`", "TypeError", "a stream", "ds.head(n)")
def sample_by_index(folder: Path) -> None:
    numbers()[0]


@mistake("`dataset.batch(32)`", "AttributeError", "has no 'batch'", "batch_size=32")
def batch_of_a_dataset(folder: Path) -> None:
    numbers().batch(32)


@mistake("`len(loader)` without an index", "TypeError", "not known", "1 of the 1 shards", "asyncloader index")
def unknown_length(folder: Path) -> None:
    len(al.DataLoader(al.from_urls(lines(folder))))


@mistake("`shuffle=True`", "ValueError", "shuffle=True", "use .shuffle(window")
def shuffle_of_the_loader(folder: Path) -> None:
    al.DataLoader(numbers(), shuffle=True)


@mistake("`num_workers=-1`", "ValueError", "should be 0 or a positive integer", "num_workers=-1")
def negative_workers(folder: Path) -> None:
    al.DataLoader(numbers(), num_workers=-1)


@mistake("`batch_size=0`", "ValueError", "should be a positive integer", "batch_size=0")
def empty_batches(folder: Path) -> None:
    al.DataLoader(numbers(), batch_size=0)


@mistake(
    '`device="cuda"` without a GPU',
    "RuntimeError",
    "device='cuda'",
    "needs a CUDA device",
    "leave device out",
)
def no_gpu(folder: Path) -> None:
    if torch.cuda.is_available():
        raise SkipTest("there is one here")
    al.DataLoader(numbers(), device="cuda")


@mistake(
    "three shards for two ranks", "RanksError", "unequal shares of 3 shards", "Build an index", 'uneven="pad"'
)
def ranks_without_an_index(folder: Path) -> None:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        run(al.from_urls(lines(folder, 3)))
    finally:
        dist.destroy_process_group()


@mistake(
    "two iterators at the same place", "RuntimeError", "an iterator made later", "iterate the loader again"
)
def two_iterators(folder: Path) -> None:
    with al.DataLoader(numbers().take(8)) as loader:
        first = iter(loader)
        assert len(loader) == 8
        second = iter(loader)
        next(first)
        next(second)


@mistake("the state of other shards", "ValueError", "other shards", "names", "make the two agree")
def state_of_other_shards(folder: Path) -> None:
    lines(folder, 2)
    state = state_after_a_batch(al.from_urls(f"{folder}/train-0.jsonl"), 1)
    al.DataLoader(al.from_urls(f"{folder}/train-1.jsonl")).load_state_dict(state)


@mistake("a state of another `batch_size`", "ValueError", "saved 2, now 4", "make the two agree")
def state_of_another_batch_size(folder: Path) -> None:
    al.DataLoader(numbers(), batch_size=4).load_state_dict(state_after_a_batch(numbers(), 2))


# --- workers ---


@mistake("too little memory for the workers", "warning", "SIGKILL", "worker 0", "fewer workers", "continues")
def killed_worker(folder: Path) -> None:
    mark = folder / "killed"

    def die_once(sample: Any) -> Any:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    run(numbers().map(die_once), num_workers=1)


@mistake("a function that hangs, with `timeout=1`", "TimeoutError", "timeout=1 seconds; raise it", "in hang")
def hanging_worker(folder: Path) -> None:
    def hang(sample: Any) -> Any:
        time.sleep(60)

    run(numbers().map(hang), num_workers=1, timeout=1)


# --- what they say ---


@dataclass(frozen=True)
class Message:
    """What the user sees below a traceback.

    Attributes:
        kind: As that of a mistake.
        parts: The message itself, and its notes.
    """

    kind: str
    parts: Sequence[str]


def messages_of(mistake: Mistake, folder: Path) -> list[Message]:
    """Make a mistake: its error, and all that is warned of or logged; paths and numbers are shortened."""
    found: list[Message] = []
    with warnings.catch_warnings(record=True) as warned, _logged() as logged:
        warnings.simplefilter("always")
        try:
            mistake.make(folder)
        except SkipTest:
            raise
        except Exception as error:
            # Those that begin so only tell the place in the epoch.
            notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_PLACES)]
            found.append(Message(type(error).__name__, [str(error), *notes]))
    found += [Message(each.category.__name__, [str(each.message)]) for each in warned]
    found += [Message(record.levelname.lower(), [record.getMessage()]) for record in logged]
    return [Message(each.kind, [_shorten(part, folder) for part in each.parts]) for each in found]


_PLACES = ("in lane ", "in collate_fn of ")


def _shorten(text: str, folder: Path) -> str:
    """The text without what differs from run to run, on one line."""
    text = text.replace(str(folder), "/data")
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", text)
    text = re.sub(r"pid \d+", "pid 4712", text)
    text = re.sub(r'File "[^"]*/mistakes.py", line \d+,?', 'File "train.py", line 33', text)
    return re.sub(r"\s+", " ", re.sub(r"\w+\.<locals>\.", "", text))


@contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    """Warnings of the library's loggers."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("asyncloader")
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)


# --- the page ---


def row_of(mistake: Mistake, message: Message) -> str:
    """A row of the table."""
    first, *notes = message.parts
    says = "<br>".join(f"`{part}`" for part in (f"{message.kind}: {first}", *notes))
    return f"|{mistake.name}|{says}|"


def rows_on(page: str) -> list[str]:
    """The rows between the marks of the page."""
    return page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]


def main() -> None:
    rows = []
    for each in MISTAKES:
        with tempfile.TemporaryDirectory() as folder:
            rows += [row_of(each, message) for message in messages_of(each, Path(folder))]
    table = "\n".join(["|What was done|What it says|", "|---|---|", *rows])
    print(table)
    if "--write" in sys.argv:
        page = PAGE.read_text()
        before, begin, rest = page.partition(BEGIN)
        PAGE.write_text(f"{before}{begin}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
