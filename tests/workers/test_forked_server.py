"""A server that is forked from the training process: only where that is safe, and like a clean one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Programs

from asyncloader import testing

from .processes import Watch, finish, start_script

#: What a script begins with: ``run`` returns what workers find, and whether they come from a fork of it.
BEGIN = """
import os, sys, threading
from pathlib import Path
import torch
import asyncloader as al
from asyncloader.workers.forkserver import ForkServer

def run(look, **options):
    rows = al.from_iterable(lambda topology: topology.split(range(2))).map(look)
    loader = al.DataLoader(rows, None, num_workers=2, collate_fn=lambda row: row, **options)
    return loader, lambda: (list(loader), is_forked())

def is_forked():
    shown = [Path(f"/proc/{pid}/cmdline").read_text() for pid in ("self", ForkServer.shared().pid)]
    return shown[0] == shown[1]
"""

Printed = Callable[..., str]


@pytest.fixture
def printed_by(programs: Programs, tmp_path: Path) -> Printed:
    """What a script prints."""

    def printed_by(text: str, **options: bool) -> str:
        script = tmp_path / "train.py"
        script.write_text(BEGIN + text)
        done = programs.run(script, **options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return printed_by


def test_workers_come_from_a_fork_of_a_process_in_which_nothing_has_begun(printed_by: Printed) -> None:
    """Also where it has imported much, and used the threads of numeric libraries."""
    text = """
import numpy, PIL.Image, pyarrow.parquet, obstore
class LooksLikeAModule:  # as what cffi makes of a library
    __slots__ = ()
    __class__ = property(lambda self: type(os))
sys.modules["looks.like"] = LooksLikeAModule()
model = torch.nn.Linear(1000, 1000)
model(torch.ones(1000, 1000)).sum().backward
numpy.ones((500, 500)) @ numpy.ones((500, 500))
_, rows = run(lambda number: (number, "torch" in sys.modules))
print(rows())
"""
    assert printed_by(text) == "([(0, True), (1, True)], True)\n"


def test_looking_for_an_index_leaves_nothing_that_hinders_a_fork(printed_by: Printed) -> None:
    with testing.serve({"a.jsonl": b'{"number": 1}\n', "b.jsonl": b'{"number": 2}\n'}) as server:
        urls = [server.url_of(key) for key in ("a.jsonl", "b.jsonl")]
        text = f"""
loader = al.DataLoader(al.from_urls({urls}), None, num_workers=2)
print(is_forked(), [row["number"] for row in loader])
"""
        assert printed_by(text) == "True [1, 2]\n"


UNSAFE = {
    "a thread": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a thread that holds a lock": """
import logging
held = threading.Event()
def hold():
    with logging._lock:
        held.set()
        threading.Event().wait(1)
threading.Thread(target=hold, daemon=True).start()
held.wait()
""",
    "obstore was used": """
import obstore
from obstore.store import MemoryStore
obstore.put(MemoryStore(), "a", b"1")
""",
    "an open file": "file = open(__file__)",
    "a connection": "import socket; pair = socket.socketpair()",
    "an event loop": "import asyncio; loop = asyncio.new_event_loop()",
    "a pass without workers": "list(al.DataLoader(al.from_iterable(range(3))))",
    "a default device": "torch.set_default_device('meta')",
    "gradients off": "torch.set_grad_enabled(False)",
    "a trace function": "sys.settrace(lambda *_: None)",
    "a large heap": "heap = b'x' * (600 << 20)",
    "a package with a generator": """
import pathlib
folder = pathlib.Path(__file__).parent / "installed"
(folder / "draws-1.dist-info").mkdir(parents=True)
(folder / "draws.py").write_text("import numpy; generator = numpy.random.default_rng()")
sys.path.append(str(folder))
import draws
""",
}


@pytest.mark.parametrize("state", UNSAFE)
def test_they_come_from_a_clean_process_where_a_fork_may_not_be_safe(state: str, printed_by: Printed) -> None:
    assert printed_by(f"{UNSAFE[state]}\nprint(is_forked(), flush=True)\nos._exit(0)\n") == "False\n"


def test_a_loader_that_is_made_while_a_module_is_imported_has_a_clean_one(
    printed_by: Printed, tmp_path: Path
) -> None:
    (tmp_path / "loads.py").write_text(BEGIN + "forked = is_forked()\n")
    assert printed_by("import loads; print(loads.forked)") == "False\n"


def test_workers_have_the_settings_of_the_pass_and_not_of_the_fork(
    printed_by: Printed, tmp_path: Path
) -> None:
    text = """
import logging, warnings
os.environ["GONE"] = "at the fork"
logging.basicConfig(level=logging.INFO)
logging.getLogger("a").setLevel(logging.ERROR)
torch.use_deterministic_algorithms(True)
torch.set_default_dtype(torch.float64)

def look(number):
    import logging, os, sys, warnings, torch
    return (
        os.environ.get("GONE"), os.environ.get("NEW"), os.getcwd(), sys.path[0], sys.argv[1:],
        [entry[0] for entry in warnings.filters], logging.getLogger("a").level, logging.root.level,
        str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled(),
    )

loader, rows = run(look)
assert is_forked()
del os.environ["GONE"]
os.environ["NEW"] = "for the pass"
os.chdir("/")
sys.path.insert(0, "/nowhere")
sys.argv.append("more")
warnings.resetwarnings()
warnings.simplefilter("ignore")
logging.getLogger("a").setLevel(logging.CRITICAL)
logging.root.setLevel(logging.DEBUG)
torch.use_deterministic_algorithms(False)
torch.set_default_dtype(torch.float32)
print(rows() == ([look(0)] * 2, True))
"""
    assert printed_by(text) == "True\n"


BESIDE = """
import sys
{}
SIZE, table = 1, {{"size": 1}}
def look(number):
    return SIZE, table["size"], hasattr(sys.modules["__main__"], "beside"), {}
"""


def test_workers_do_not_see_the_main_module_and_see_others_as_they_are_at_the_pass(
    printed_by: Printed, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text(BESIDE.format("", "number"))
    text = """
import beside
beside.SIZE, beside.table = 2, {"size": 2}
_, rows = run(beside.look)
first = rows()
beside.SIZE, beside.table = 3, {"size": 3}
print(first, rows())
thread = threading.Thread(target=threading.Event().wait, daemon=True).start()
beside.SIZE, beside.table = 4, {"size": 4}
print(rows(), flush=True)  # a fork is not safe any more: only the constant is sent
os._exit(0)
"""
    assert printed_by(text) == (
        "([(2, 2, False, 0), (2, 2, False, 1)], True) ([(3, 3, False, 0), (3, 3, False, 1)], True)\n"
        "([(4, 3, False, 0), (4, 3, False, 1)], True)\n"
    )


def test_workers_import_a_module_with_a_generator_anew_and_get_its_constants(
    printed_by: Printed, tmp_path: Path
) -> None:
    generator = "import numpy; generator = numpy.random.default_rng()"
    (tmp_path / "beside.py").write_text(BESIDE.format(generator, "int(generator.integers(1 << 62))"))
    text = """
import beside
beside.SIZE, beside.table = 2, {"size": 2}
_, rows = run(beside.look)
found, forked = rows()
print(forked, *[row[:3] for row in found], len({row[3] for row in found}))
"""
    assert printed_by(text) == "False (2, 1, False) (2, 1, False) 2\n"


def test_generators_are_found_in_what_modules_hold(printed_by: Printed, tmp_path: Path) -> None:
    text = """
import random, torch
class Held:
    def __init__(self): self.drawn = {"by": [DRAWS]}
class Proxy:
    __slots__ = ()
    def __getattr__(self, name): raise RuntimeError("no code of the program's runs")
    __class__ = property(lambda self: self.missing)
held, proxy, words, cycle = Held(), Proxy(), ["a"] * 100_000, []
cycle.append(cycle)
"""
    many = "*(object() for _ in range(20_000))"  # in doubt it is a clean process
    for draws, is_forked in (
        ("1", True),
        ("random.Random()", False),
        ("torch.Generator()", False),
        (many, False),
    ):
        (tmp_path / "beside.py").write_text(text.replace("DRAWS", draws))
        run = "import beside\nprint(is_forked(), flush=True)\nos._exit(0)\n"
        assert printed_by(run) == f"{is_forked}\n", draws


def test_nothing_of_the_program_runs_in_the_server_and_its_workers(
    printed_by: Printed, tmp_path: Path
) -> None:
    text = """
import atexit, gc, logging, signal, tempfile
folder = tempfile.TemporaryDirectory(dir=os.path.dirname(__file__))
class Told:
    def __del__(self):
        print("deleted in", "the program" if os.getpid() == program else "another process", flush=True)
program, told = os.getpid(), Told()
gc.disable()
cycle = [Told()]
cycle.append(cycle)
del cycle  # garbage that nobody has collected yet
atexit.register(lambda: print("exit of", "the program" if os.getpid() == program else "another process"))
signal.signal(signal.SIGTERM, lambda *_: print("signalled"))
logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))
sys.stdout.write("once ")  # in the buffer when the server is forked

def look(number):
    import gc, logging, signal, sys
    gc.collect()
    logging.getLogger().error("logged by a worker")
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, sys.stdin.read()

_, rows = run(look)
found = rows()
print(found, os.path.isdir(folder.name), flush=True)
ForkServer.shared().close()
print(os.path.isdir(folder.name), flush=True)
gc.collect()
folder.cleanup()
del told
"""
    script = tmp_path / "train.py"
    script.write_text(BEGIN + text)
    done = subprocess.run(
        [sys.executable, script],
        input="not for workers",
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout.splitlines() == [
        "once ([(True, ''), (True, '')], True) True",
        "True",
        "deleted in the program",
        "deleted in the program",
        "exit of the program",
    ]
    assert (done.returncode, done.stderr.splitlines()) == (0, ["logged by a worker"] * 2)


def test_pools_of_numeric_libraries_work_on_both_sides_of_the_fork() -> None:
    """A worker has one thread; more if its function asks for them."""
    text = """
import numpy

def product():
    square, plain = torch.ones(700, 700), numpy.ones((700, 700))
    return [(square @ square).min().item(), (plain @ plain).min().item()]

def threads():
    return len(os.listdir("/proc/self/task"))

assert product() == [700, 700]
before = threads()

def look(number):
    began, found = threads(), [torch.get_num_threads(), *product()]
    others = threads() - began
    torch.set_num_threads(3)
    return [*found, others, *product(), threads() - began]

_, rows = run(look)
found, forked = rows()
assert found == [[1, 700, 700, 0, 700, 700, 2]] * 2, found
assert product() == [700, 700]
assert threads() == before
print(forked)
"""
    assert finish(start_script(BEGIN + text)) == (0, "True\n", "")


def test_a_class_that_changed_after_the_fork_travels_as_it_is(printed_by: Printed) -> None:
    text = """
class Sized:
    size = 1
loader, rows = run(lambda number: (Sized().size, Sized()))
Sized.size = 2
found, forked = rows()
print(forked, [size for size, _ in found], all(type(each) is Sized for _, each in found))
"""
    assert printed_by(text) == "True [2, 2] True\n"


@pytest.mark.parametrize("victim", ["the program", "the server", "a worker"])
def test_whoever_is_killed_nothing_is_left_and_the_pass_goes_on(
    victim: str, programs: Programs, tmp_path: Path
) -> None:
    text = """
def look(number):
    import os
    return number, os.getpid()

rows = al.from_iterable(lambda topology: topology.split(range(1000))).map(look)
loader = al.DataLoader(rows, None, num_workers=2, lanes=2, collate_fn=lambda row: row)
batches = iter(loader)
pids = {next(batches)[1], next(batches)[1]}
assert is_forked()
print(ForkServer.shared().pid, *pids, flush=True)
threading.Event().wait(0.5)
print(sorted(number for number, _ in batches) == list(range(2, 1000)), loader.statistics.worker_restarts)
"""
    script = tmp_path / "train.py"
    script.write_text(BEGIN + text)
    with programs.started(script) as program:
        server, *workers = map(int, program.read_line().split())
        killed = {"the program": program.pid, "the server": server, "a worker": workers[0]}[victim]
        with Watch([server, *workers]) as watch:
            os.kill(killed, signal.SIGKILL)
            output, _ = program.communicate()
            assert watch.left_after(1) == set()
    if victim == "the program":
        assert (program.returncode, output) == (-signal.SIGKILL, "")
    else:
        restarts = 2 if victim == "the server" else 1
        assert (program.returncode, output) == (0, f"True {restarts}\n")


@pytest.mark.parametrize("ending", ["", "os._exit(3)", "1 / 0"])
def test_the_shared_server_outlives_its_loaders_and_ends_with_the_process(
    ending: str, programs: Programs, tmp_path: Path
) -> None:
    """A process that was forked from it later does not keep the server."""
    text = """
import gc, time
pids = []
for _ in range(2):
    loader, rows = run(lambda number: number)
    with loader:
        rows()
    pids.append(ForkServer.shared().pid)
    del loader, rows
    gc.collect()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, *pids, flush=True)
"""
    script = tmp_path / "train.py"
    script.write_text(BEGIN + text + ending)
    with programs.started(script) as program:
        child, first, second = map(int, program.read_line().split())
        try:
            assert first == second
            with Watch([first]) as watch:
                assert watch.left_after(20) == set()
        finally:
            os.kill(child, signal.SIGKILL)
