"""Whole loaders that are given secrets in every place there is, and fail in every way: nothing tells one.

What this process logs, prints, raises and names is looked at after every test: see ``sentinel``. Here is
what a user can have shown beside that, and what worker processes log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from corpus import Corpus
from sentinel import SENTINEL, mentions

import asyncloader as al
from asyncloader import testing
from asyncloader.pipeline.dataset import stages_of

pytestmark = pytest.mark.usefixtures("fork_server")

QUERY = f"?versionId=7&X-Amz-Credential={SENTINEL}&X-Amz-Signature={SENTINEL}#{SENTINEL}"
HEADERS = {"Authorization": f"Bearer {SENTINEL}", "X-Token": SENTINEL}
KEYS = {
    "access_key_id": SENTINEL,
    "secret_access_key": SENTINEL,
    "session_token": SENTINEL,
    "region": "us-east-1",
}
TOKEN = {"token": SENTINEL}
ELSEWHERE = f"http://me:{SENTINEL}@127.0.0.1:1/x?sig={SENTINEL}"

# What goes wrong is to be told at once, and a second attempt be made all the same.
HASTY = al.NetworkPolicy(attempts=2, first_byte_s=0.5, stall_s=0.5, backoff_s=0.01, connect_s=2)


def presigned(server: testing.Server, key: str) -> str:
    return server.url_of(key).replace("//", f"//me:{SENTINEL}@") + QUERY


def on_the_web(server: testing.Server, keys: Sequence[str], **options: Any) -> al.Dataset:
    options = {"storage_options": {"headers": HEADERS}, "network": HASTY, **options}
    return al.from_urls([presigned(server, key) for key in keys], **options)


def in_a_bucket(
    server: testing.Server, keys: Sequence[str], *, scheme: str = "s3", **options: str
) -> al.Dataset:
    credentials = KEYS if scheme == "s3" else {"account_name": "me", "sas_key": f"sv=1&sig={SENTINEL}"}
    return al.from_urls(
        [f"{scheme}://corpus/{key}" for key in keys],
        storage_options={"endpoint": server.url, **credentials, **options},
        network=HASTY,
    )


def on_the_hub(server: testing.Server, keys: Sequence[str]) -> al.Dataset:
    urls = [f"hf://datasets/me/set/{key}" for key in keys]
    return al.from_urls(urls, storage_options={"endpoint": server.url, **TOKEN}, network=HASTY)


def with_index(content: bytes) -> Callable[[testing.Server, Sequence[str]], al.Dataset]:
    def make(server: testing.Server, keys: Sequence[str]) -> al.Dataset:
        with testing.serve({"asyncloader-index.json": content}) as beside:
            return on_the_web(server, keys, index=presigned(beside, "asyncloader-index.json"))

    return make


def with_unlisted(server: testing.Server, keys: Sequence[str], *, scheme: str) -> al.Dataset:
    if scheme == "hf":
        return on_the_hub(server, [""])
    return in_a_bucket(server, [""], scheme=scheme)


def renewed(renew: Callable[[str], Any]) -> Callable[[testing.Server, Sequence[str]], al.Dataset]:
    return lambda server, keys: on_the_web(server, keys, renew=renew)


def away(url: str) -> str:
    raise LookupError("the signer is away")


def failing_on_its_own(server: testing.Server, keys: Sequence[str]) -> al.Dataset:
    def fail(sample: Mapping[str, Any]) -> Any:
        raise LookupError("the user's own")

    return on_the_web(server, keys).map(fail)


@dataclass(frozen=True)
class Failure:
    """A recipe, and how its server fails it.

    Attributes:
        kind: Of the error.
        faults: Of the server.
        make: Of the recipe, which may fail already.
    """

    kind: type[Exception]
    faults: Sequence[testing.Fault] = ()
    make: Callable[[testing.Server, Sequence[str]], al.Dataset] = on_the_web


S, F = al.StoreError, al.FormatError
GZIP, AWAY = testing.GzipEncoding(), testing.Redirect(ELSEWHERE)

FAILURES: dict[str, Failure] = {
    **{f"status {code}": Failure(S, [testing.Status(code)]) for code in (400, 401, 403, 404, 503)},
    "cut": Failure(S, [testing.CutAt(10)]),
    "reset": Failure(S, [testing.Reset(10)]),
    "stall": Failure(S, [testing.Stall(10, 30)]),
    "hang up": Failure(S, [testing.HangUp()]),
    "late": Failure(S, [testing.Delay(30)]),
    "wrong digest": Failure(S, [testing.Headers({"x-goog-hash": "crc32c=AAAAAA=="})]),
    "compressed": Failure(S, [GZIP]),
    "redirect to nobody": Failure(S, [AWAY]),
    "redirect to another scheme": Failure(S, [testing.Redirect(f"ftp://me:{SENTINEL}@h/?sig={SENTINEL}")]),
    "redirect to no URL": Failure(S, [testing.Redirect(f"http://h:port/?sig={SENTINEL}")]),
    "redirect in a circle": Failure(S, [testing.Redirect(f"/x?sig={SENTINEL}")]),
    "renew raises": Failure(LookupError, [testing.Status(403)], renewed(away)),
    "renew is refused": Failure(S, [testing.Status(403)], renewed(lambda url: url + SENTINEL)),
    "renew changes the scheme": Failure(
        ValueError, [testing.Status(403)], renewed(lambda url: f"s3://b/x?{SENTINEL}")
    ),
    "renew gives no URL": Failure(
        ValueError, [testing.Status(403)], renewed(lambda url: f"http://[{SENTINEL}")
    ),
    "corrupt shard": Failure(F, [testing.FlipBit(148)]),
    "index that is none": Failure(F, make=with_index(b"{")),
    "index of others": Failure(ValueError, make=with_index(b'{"version": 1, "shards": []}')),
    "the user's function": Failure(LookupError, make=failing_on_its_own),
    **{
        f"{scheme}, {name}": Failure(S, [fault], partial(in_a_bucket, scheme=scheme))
        for scheme in ("s3", "az")
        for name, fault in {
            "refused": testing.Status(403),
            "not there": testing.Status(404),
            "cut": testing.CutAt(10),
            "stalled": testing.Stall(10, 30),
            "hung up": testing.HangUp(),
            "redirected": AWAY,
        }.items()
    },
    **{
        f"{scheme}, listing {name}": Failure(S, [fault], partial(with_unlisted, scheme=scheme))
        for scheme in ("s3", "az", "hf")
        for name, fault in {"refused": testing.Status(403), "redirected": AWAY}.items()
    },
    "hub, refused": Failure(S, [testing.Status(401)], on_the_hub),
    "hub, redirected": Failure(S, [AWAY], on_the_hub),
}


def log_everything(folder: str, worker: int) -> None:
    """In a worker: all that is ever logged there goes to a file, and asyncio looks closely."""
    os.environ["PYTHONASYNCIODEBUG"] = "1"
    logging.basicConfig(filename=f"{folder}/log-{worker}", level=logging.DEBUG, force=True)


@dataclass
class Shown:
    """Everything that a user can have shown.

    Attributes:
        folder: Where workers log to.
        texts: So far.
    """

    folder: Path
    texts: list[str] = field(default_factory=list)

    def loader(self, recipe: al.Dataset, workers: int) -> al.DataLoader[Any]:
        init = partial(log_everything, str(self.folder)) if workers else None
        loader = al.DataLoader(recipe, 4, num_workers=workers, worker_init_fn=init, collate_fn=list, lanes=2)
        self.texts += [
            repr(recipe),
            str(recipe),
            repr(stages_of(recipe).source),
            str(stages_of(recipe).describe()),
        ]
        self.show(loader)
        return loader

    def show(self, loader: al.DataLoader[Any]) -> None:
        self.texts += [repr(loader), str(loader), repr(loader.statistics), json.dumps(loader.state_dict())]

    def error(self, error: BaseException) -> None:
        self.texts += traceback.format_exception(error)

    def check(self) -> None:
        logs = [path.read_text() for path in self.folder.glob("log-*")]
        for text in (*self.texts, *logs):
            assert mentions(text) is None


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    shown = Shown(tmp_path)
    yield shown
    shown.check()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", FAILURES)
def test_no_failure_tells_a_secret(
    name: str, workers: int, make_corpus: Callable[..., Corpus], shown: Shown
) -> None:
    corpus, failure = make_corpus("tar").first(2), FAILURES[name]
    objects = {}
    for path in map(Path, corpus.paths):
        objects |= dict.fromkeys(
            (path.name, f"corpus/{path.name}", f"datasets/me/set/resolve/main/{path.name}"), path.read_bytes()
        )
    with testing.serve(objects, failure.faults) as server, pytest.raises(failure.kind) as caught:
        recipe = failure.make(server, [Path(path).name for path in corpus.paths])
        loader = shown.loader(recipe, workers)
        try:
            list(loader)
        finally:
            shown.show(loader)
    shown.error(caught.value)


# --- nothing fails ---


def names_around() -> Iterator[str]:
    """Threads, shared memory, and the command lines of the library's processes."""
    yield from (thread.name for thread in threading.enumerate())
    yield from Path("/proc/self/maps").read_text().splitlines()
    for pid in [entry for entry in os.listdir("/proc") if entry.isdigit()]:
        with suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_text()
            if "asyncloader" in arguments:
                yield arguments


async def look_around(sample: dict[str, Any]) -> dict[str, Any]:
    """What there is to see beside a running loader, from a function of the user's."""
    loop = asyncio.get_running_loop()
    loop.slow_callback_duration = 0  # in debug mode, whatever runs is logged then
    tasks = asyncio.all_tasks()
    seen = [*map(repr, tasks), *(task.get_name() for task in tasks), *names_around()]
    told = next(filter(None, map(mentions, seen)), None)
    return {**sample, "told": told, "debug": loop.get_debug()}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cached", [False, True])
def test_a_running_loader_tells_no_secret(
    cached: bool, workers: int, make_corpus: Callable[..., Corpus], shown: Shown, tmp_path: Path
) -> None:
    corpus = make_corpus("tar")
    names = [Path(path).name for path in corpus.paths]
    # Each goes wrong once: what is told of that goes to logs alone.
    faults = [testing.CutAt(100, after=1, times=1), testing.Status(503, after=3, times=1)]
    faults += [testing.Status(403, key=names[0], times=1)]
    with testing.serve(corpus.folder, faults) as server:
        options: dict[str, Any] = {"cache_dir": tmp_path / "cache"} if cached else {}
        recipe = on_the_web(
            server,
            names,
            network=al.NetworkPolicy(backoff_s=0.01),
            renew=lambda url: url.replace(f"#{SENTINEL}", f"&n={SENTINEL}"),
            **options,
        ).map(look_around, concurrency=2)
        loader = shown.loader(recipe, workers)
        batches = []
        for batch in loader:
            batches += batch
            shown.show(loader)
        state = loader.state_dict()
        other = shown.loader(on_the_web(server, names[:1]), workers)
        with pytest.raises(ValueError, match="saved by another loader") as caught:
            other.load_state_dict(state)
        shown.error(caught.value)
    assert sorted(sample["__key__"] for sample in batches) == corpus.keys
    assert {(sample["told"], sample["debug"]) for sample in batches} == {(None, True)}
    assert not any(mentions(sample["__url__"]) for sample in batches)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or mentions(path.read_bytes().decode(errors="replace")) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_cache_tells_no_secret(
    workers: int, make_corpus: Callable[..., Corpus], shown: Shown, tmp_path: Path
) -> None:
    corpus = make_corpus("tar").first(1)
    with testing.serve(corpus.folder) as server:
        for _ in range(2):
            recipe = on_the_web(server, [Path(corpus.paths[0]).name], cache_dir=tmp_path / "cache")
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                list(shown.loader(recipe, workers))
            for path in (tmp_path / "cache").glob("*/shards/*/*"):
                path.write_bytes(path.read_bytes()[:-1] + b"?")
    if not workers:  # which warn on standard error
        assert ["damaged copy" in str(warning.message) for warning in told] == [True]
    shutil.rmtree(tmp_path / "cache")
