"""What a program prints that ends with an error: the one line that helps, and only the user's own frames."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from corpus import Corpus
from programs import Programs

import asyncloader as al
from asyncloader import testing

from .harness import recipe_of

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])

# The user's frame and two of ours, of three lines each at most, the header, the message and its notes.
MOST_LINES = 15

ONE_TRY = al.NetworkPolicy(attempts=1)


def _missing_file(tmp_path: Path) -> al.Dataset:
    gone = [tmp_path / f"{n}.tar" for n in range(2)]
    for path in gone:
        path.touch()
    recipe = al.from_urls(gone)
    for path in gone:
        path.unlink()
    return recipe


def _corrupt(tmp_path: Path) -> al.Dataset:
    for n in range(2):
        (tmp_path / f"{n}.jsonl").write_text("{no json\n")
    return al.from_urls([tmp_path / f"{n}.jsonl" for n in range(2)])


_S3 = {"endpoint": "http://127.0.0.1:9", "access_key_id": "a", "secret_access_key": "b", "region": "x"}

WRONG: dict[str, Callable[[Path], al.Dataset]] = {
    "no server": lambda _: al.from_urls("http://127.0.0.1:9/{0..1}.tar", network=ONE_TRY, index=None),
    "no bucket": lambda _: al.from_urls("s3://none/{0..1}.tar", storage_options=_S3, network=ONE_TRY),
    "no file": _missing_file,
    "corrupt": _corrupt,
}


def shown_of(loader: Any) -> str:
    with pytest.raises((al.StoreError, al.FormatError, al.WorkerDiedError)) as caught:
        for _ in loader:
            pass
    return "".join(traceback.format_exception(caught.value))


@WORKERS
def test_a_missing_shard_is_told_in_a_few_lines(workers: int) -> None:
    with testing.serve({}) as server:
        recipe = al.from_urls([server.url_of(f"{n}.tar") for n in range(2)])
        shown = shown_of(al.DataLoader(recipe, num_workers=workers))
    assert len(shown.splitlines()) < MOST_LINES, shown
    assert "404 Not Found" in shown and f"lane 0 of {max(workers, 1)}" in shown
    assert ("in worker 0 (pid" in shown) is (workers > 0)


def test_a_killed_worker_is_told_in_a_few_lines() -> None:
    def die(number: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    shown = shown_of(al.DataLoader(al.from_iterable(list(range(4))).map(die), num_workers=1))
    assert len(shown.splitlines()) < MOST_LINES, shown
    assert "killed by signal SIGKILL" in shown


@WORKERS
@pytest.mark.parametrize("wrong", WRONG)
def test_whatever_cannot_be_read_is_told_in_a_few_lines(wrong: str, workers: int, tmp_path: Path) -> None:
    shown = shown_of(al.DataLoader(WRONG[wrong](tmp_path), num_workers=workers))
    # The error that it came from, such as that of the file system, is shown in two lines and a blank one.
    assert len(shown.splitlines()) < MOST_LINES + 5, shown
    assert shown.count("Traceback") == 1 and "During handling" not in shown
    assert "_flow" not in shown and "contextlib" not in shown


@WORKERS
async def test_an_async_loop_is_told_in_a_few_lines_too(workers: int, tmp_path: Path) -> None:
    with pytest.raises(al.FormatError) as caught:
        async for _ in al.DataLoader(_corrupt(tmp_path), num_workers=workers):
            pass
    shown = "".join(traceback.format_exception(caught.value))
    assert len(shown.splitlines()) < MOST_LINES + 5 and "_flow" not in shown, shown


def test_what_the_error_came_from_is_kept_without_frames(tmp_path: Path) -> None:
    with pytest.raises(al.StoreError) as caught:
        list(al.DataLoader(_missing_file(tmp_path)))
    cause = caught.value.__cause__
    assert isinstance(cause, FileNotFoundError) and cause.__traceback__ is None


@WORKERS
@pytest.mark.parametrize("kind", [KeyError, al.FormatError, al.StoreError])
def test_an_error_of_the_users_function_keeps_its_frames(
    kind: type[Exception], workers: int, make_corpus: Callable[..., Corpus]
) -> None:
    def refuse(sample: Any) -> Any:
        raise kind("mine")

    with pytest.raises(kind) as caught:
        list(al.DataLoader(recipe_of(make_corpus("jsonl")).map(refuse), num_workers=workers))
    assert "in refuse" in "".join(traceback.format_exception(caught.value))


class CodeError(Exception):
    """Made from other things than it hands on to Exception."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")
        self.code = code


def _fail(sample: Any) -> Any:
    try:
        return sample["absent"]
    except KeyError as error:
        raise CodeError(7, "not there") from error


@WORKERS
@pytest.mark.parametrize("kind", ["map", "threads", "async map", "filter", "collate"])
def test_an_error_of_the_users_function_is_told_once(
    kind: str, workers: int, make_corpus: Callable[..., Corpus]
) -> None:
    async def fail_async(sample: Any) -> Any:
        return _fail(sample)

    plain = recipe_of(make_corpus("tar"))
    recipe = {
        "map": plain.map(_fail),
        "threads": plain.map(_fail, concurrency=2),
        "async map": plain.map(fail_async),
        "filter": plain.filter(_fail),
        "collate": plain,
    }[kind]
    collate_fn = (lambda samples: _fail(samples[0])) if kind == "collate" else None
    with pytest.raises(CodeError) as caught:
        list(al.DataLoader(recipe, 2, num_workers=workers, collate_fn=collate_fn))
    assert caught.value.code == 7 and type(caught.value.__cause__) is KeyError
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("CodeError: code 7: not there") == 1, shown
    assert shown.count('raise CodeError(7, "not there") from error') == 1
    assert shown.count("in lane 0 of") == 1
    # With workers the cause has no frames here, and so no header; its place is told in its note.
    assert shown.count("Traceback (most recent call last)") == (1 if workers else 2)
    if workers:
        assert shown.count("in worker 0 (pid") == 2, "the error, and what it came from"
        assert "_worker_main" not in shown and "_flow" not in shown, "frames begin at the user's first one"


@WORKERS
def test_a_store_error_within_the_users_own_iterable_keeps_the_users_frames(
    workers: int, tmp_path: Path
) -> None:
    inner = _missing_file(tmp_path)

    def mine() -> Iterator[Any]:
        yield from al.DataLoader(inner)

    shown = shown_of(al.DataLoader(al.from_iterable(lambda topology: mine()), num_workers=workers))
    assert "in mine" in shown and "resuming" not in shown


def test_of_many_workers_one_tells_what_all_have_met(tmp_path: Path, programs: Programs) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import asyncloader as al, sys\n"
        "if __name__ == '__main__':\n"
        "    list(al.DataLoader(al.from_urls(sys.argv[1:]), num_workers=4))\n"
    )
    # All four are refused at the same time, while the program begins to close them.
    with testing.serve({}, [testing.Delay(0.3)]) as server:
        run = programs.run(script, *[server.url_of(f"{n}.tar") for n in range(8)])
    assert run.returncode == 1
    assert run.stderr.count("Traceback") == 1 and run.stderr.count("404 Not Found") == 1, run.stderr
    assert len(run.stderr.splitlines()) < MOST_LINES


def test_of_many_workers_one_tells_of_the_users_error(tmp_path: Path, programs: Programs) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import asyncloader as al, time\n"
        "def fail(number):\n"
        "    time.sleep(0.3)\n"  # so that all fail while the program begins to close them
        "    raise ValueError(f'mine: {number}')\n"
        "recipe = al.from_iterable(lambda topology: topology.split(range(8))).map(fail)\n"
        "list(al.DataLoader(recipe, num_workers=4))\n"
    )
    run = programs.run(script)
    assert run.returncode == 1
    assert run.stderr.count("Traceback") == 1 and run.stderr.count("ValueError: mine: 0") == 1, run.stderr
    assert run.stderr.count("ValueError") == 2, "its line of code, and the error itself"
    assert len(run.stderr.splitlines()) < MOST_LINES, run.stderr


def test_an_error_while_a_job_is_closed_is_printed_as_nobody_else_hears_of_it(
    tmp_path: Path, programs: Programs
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import asyncloader as al\n"
        "def samples(topology):\n"
        "    try:\n"
        "        yield from range(100)\n"
        "    finally:\n"
        "        raise ValueError('not closed')\n"
        "for batch in al.DataLoader(al.from_iterable(samples), num_workers=1):\n"
        "    break\n"
    )
    run = programs.run(script)
    assert run.returncode == 0 and run.stderr.count("ValueError: not closed") == 1, run.stderr


_DAEMON = """
import asyncio, sys, threading, time
import torch
import asyncloader as al

kind, workers = sys.argv[1], int(sys.argv[2])
runs = threading.Event()


class Numbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(0.001)
            yield 1


def read():
    data = Numbers() if kind == "iterable" else al.from_iterable(lambda topology: iter(Numbers()))
    loader = al.DataLoader(data, 4, num_workers=workers)
    if kind == "async":
        asyncio.run(read_async(loader))
    for _ in loader:
        runs.set()


async def read_async(loader):
    async for _ in loader:
        runs.set()


if __name__ == "__main__":
    threading.Thread(target=read, daemon=True).start()
    runs.wait()
    time.sleep(0.05)
"""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["stream", "async", "iterable"])
def test_a_daemon_thread_that_reads_at_the_program_s_end_prints_nothing(
    kind: str, workers: int, tmp_path: Path, programs: Programs
) -> None:
    script = tmp_path / "program.py"
    script.write_text(_DAEMON)
    run = programs.run(script, kind, workers)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
