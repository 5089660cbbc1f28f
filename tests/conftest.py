"""What all tests share: shards of unequal length, a server for them, worker processes, a leak check."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from corpus import Corpus, write_corpus
from examples_drawn import draw_afresh
from file_leaks import FileLeaks, first_uses, leaves_nothing_behind
from programs import Programs
from sentinel import Watch, no_file_is_named_after_a_secret

from asyncloader import testing
from asyncloader.workers.forkserver import ForkServer

__all__ = ["first_uses", "leaves_nothing_behind", "no_file_is_named_after_a_secret"]  # fixtures

_TESTS = Path(__file__).parent

# One sample, none, and more than a few batches; the short ones stand between the long ones.
UNEQUAL = (3, 0, 13, 1, 7, 5, 2)


#: Folders of which every test is of a kind that `make test-integration` runs.
INTEGRATION = {"interop": "interop", "examples": "programs"}
#: Fixtures that start what a kind of test is named after.
STARTS = {
    "browser": {"chromium"},
    "interop": {"chunks", "sets", "trainers", "cluster"},
    "servers": {"nginx", "moto", "swift", "azurite", "gcs", "bucket", "s3"},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle-files", metavar="SEED", help="run the files of tests in an order drawn by a seed"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three for two processors: the tests wait for others a third of their time."""
    return (3 * len(os.sched_getaffinity(0)) + 1) // 2


@pytest.hookimpl(tryfirst=True)  # the marks decide which of them are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0]
        if folder in INTEGRATION:
            item.add_marker(INTEGRATION[folder])
        for mark, fixtures in STARTS.items():
            if not fixtures.isdisjoint(getattr(item, "fixturenames", ())):
                item.add_marker(mark)
    seed = config.getoption("--shuffle-files")
    if seed is not None:
        keys = {item.path: random.Random(f"{seed} {item.path.name}").random() for item in items}
        items.sort(key=lambda item: keys[item.path])


def pytest_configure(config: pytest.Config) -> None:
    # Started in the background by a shell it would ignore Ctrl-C, and so would all that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # `make test-slow` selects the slow tests and those that draw examples, which are other ones there.
    draw_afresh("hypothesis" in config.option.markexpr)
    config.pluginmanager.register(Watch(), "sentinel")
    config.pluginmanager.register(FileLeaks(), "file-leaks")


# pyarrow's allocator starts a thread as it is imported, which a process that forks must not have.
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"


@pytest.fixture(scope="session")
def make_corpus(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Corpus]:
    """Write shards of the given numbers of samples once in a session: ``make_corpus("tar.gz", sizes)``."""
    written: dict[tuple[str, tuple[int, ...]], Corpus] = {}

    def make_corpus(suffix: str, sizes: tuple[int, ...] = UNEQUAL) -> Corpus:
        if (suffix, sizes) not in written:
            written[suffix, sizes] = write_corpus(tmp_path_factory.mktemp("corpus"), suffix, sizes)
        return written[suffix, sizes]

    return make_corpus


@pytest.fixture(scope="session")
def served(
    make_corpus: Callable[..., Corpus], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[testing.Server]:
    """A real HTTP server over every corpus."""
    with testing.serve(tmp_path_factory.getbasetemp()) as server:
        yield server


@pytest.fixture(scope="session")
def _fork_servers() -> Iterator[list[ForkServer]]:
    """Those of the whole run; it imports what a loader with workers does, and a server that much less."""
    for name in ("loader.stream", "loader.workers", "stores.http.client", "formats", "pipeline.pack"):
        import_module(f"asyncloader.{name}")
    servers: list[ForkServer] = []
    yield servers
    for server in servers:
        server.close()


@pytest.fixture(params=["native", pytest.param("portable", marks=pytest.mark.slow)])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test once more on what all systems have, as far as Linux can: see ``has_linux``."""
    if request.param == "portable":
        monkeypatch.setenv("ASYNCLOADER_PORTABLE", "1")
    return str(request.param)


@pytest.fixture
def fork_server(_fork_servers: list[ForkServer], request: pytest.FixtureRequest) -> ForkServer:
    """Keep the process that workers come from, so that a loader with workers starts in milliseconds.

    It imports of the package what this process has imported, and each worker the rest: a third of a second.
    It is the same one for all tests, but behind one that has killed it.
    """
    server = ForkServer.shared()
    if server not in _fork_servers:
        _fork_servers.append(server)
    # What workers import with a function of a test's module: a fifth of a second and more in each.
    server.preload(["pytest", "hypothesis", "corpus", request.module.__name__])
    return server


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """To run scripts in processes of their own that need not import torch."""
    with Programs.open() as programs:
        yield programs


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> None:
    """Spare leak checks the garbage collector's way through all that torch has: nine tenths of their time.

    Once a module, for what its imports and its session's fixtures have brought. Never unfrozen: garbage was
    collected just before, so that no leak is hidden.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail the test if anything it started is there a second after its end."""
    with testing.check_leaks():
        yield
