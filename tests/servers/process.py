"""Programs as servers: found, started on a port of their own, waited for, and ended."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import NoReturn

import pytest

__all__ = ["find_program", "missing", "reserve_port", "run_server"]

# Half a second is usual, and Swift's four programs take three; a busy machine may need ten times that.
_START_DEADLINE_S = 40.0

_LOOK_AGAIN_AFTER_S = 0.02


def missing(what: str) -> NoReturn:
    """Skip the test for want of a server; fail it where all servers are to be there."""
    reason = f"{what}: see docs/CONTRIBUTING.md"
    if os.environ.get("ASYNCLOADER_REQUIRE_SERVERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def find_program(name: str, *folders: str) -> str:
    """Where a program is, in ``PATH`` or one of the folders; skips or fails the test if it is nowhere."""
    program = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    if program is None:
        missing(f"{name} is not installed")
    return program


@contextmanager
def reserve_port() -> Iterator[int]:
    """A port of 127.0.0.1 that nobody is given but a server that is told to listen there.

    The kernel gives a bound port to nobody who asks for any, but lets a program that sets SO_REUSEADDR,
    as servers do, bind it once more, as long as this socket does not listen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextmanager
def run_server(
    command: Sequence[str], port: int, folder: Path, *, environ: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a program that speaks HTTP on ``port`` until the end of the ``with``.

    Args:
        command: The program and its arguments. It should stay in the foreground.
        port: Where it answers.
        folder: Where it runs, and its output is kept.
        environ: Its environment, if not this one.

    Raises:
        RuntimeError: It ended, or did not answer within 40 s; with what it printed.
    """
    # Its death signal: a test that passes its time limit ends the tests' process without any clean-up.
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
    # A file, not a pipe: nobody reads while the server runs, and a full pipe would block it.
    output = folder / f"output-{port}"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environ,
        )
    try:
        problem = _wait_until_it_answers(process, port)
        if problem is not None:
            raise RuntimeError(f"{Path(command[0]).name} {problem}\n{output.read_text(errors='replace')}")
        yield
    finally:
        _end(process)


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int) -> str | None:
    """None once the server answers; else what is wrong with it."""
    deadline = monotonic() + _START_DEADLINE_S
    while (left_s := deadline - monotonic()) > 0:
        with (
            suppress(OSError, http.client.HTTPException),
            closing(http.client.HTTPConnection("127.0.0.1", port, timeout=left_s)) as connection,
        ):
            connection.request("GET", "/")
            connection.getresponse().read()
            return None
        with suppress(subprocess.TimeoutExpired):
            return f"ended with status {process.wait(_LOOK_AGAIN_AFTER_S)} before it answered"
    return f"did not answer within {_START_DEADLINE_S:.0f} s"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
