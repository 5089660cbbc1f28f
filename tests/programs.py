"""Python programs that begin with torch imported: scripts of tests need not wait two seconds for it.

They are forked from a process that has imported torch, other libraries and nothing of ours, and then run as
``python script.py`` does: with a main module of their own, arguments, environment, folder and outputs as they
are asked for, and down to the end of the interpreter. What is about how processes are started (``-c``, ``-``,
``-m``, closed descriptors, the methods of multiprocessing) is for ``subprocess``; that ``torchrun`` itself is
understood is for the tests that start it, and what ranks do with each other for those that start ranks here.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["Program", "Programs"]

_ROOT = Path(__file__).parents[1]
_LARGEST_REQUEST = 1 << 17


class Program:
    """One that was started, with as much of ``subprocess.Popen`` as tests ask for."""

    def __init__(self, told: int, outputs: tuple[int, int]) -> None:
        self._told, self._outputs = told, outputs
        self._printed = {output: b"" for output in outputs}
        self.returncode: int | None = None
        self.pid = int(self._told_line(90))  # of the first one, after all imports

    def read_line(self, within_s: float = 120) -> str:
        """The next line on standard output."""
        output, deadline = self._outputs[0], time.monotonic() + within_s
        while b"\n" not in self._printed[output]:
            if self._read([output], deadline):
                raise EOFError(f"it printed {self._printed}")
        line, _, self._printed[output] = self._printed[output].partition(b"\n")
        return line.decode() + "\n"

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """The rest of what it prints, on standard output and error, until it has ended."""
        deadline, left = time.monotonic() + timeout, list(self._outputs)
        while left:
            for output in self._read(left, deadline):
                left.remove(output)
        if self.returncode is None:
            self.returncode = int(self._told_line(deadline - time.monotonic()))
        out, err = (self._printed[output].decode() for output in self._outputs)
        return out, err

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it; it is killed if it has not ended."""
        if self.returncode is None and not select.select([self._told], [], [], 0)[0]:
            self.kill()
        for descriptor in (self._told, *self._outputs):
            os.close(descriptor)

    def _read(self, outputs: list[int], deadline: float) -> list[int]:
        """Read what there is once there is something; those that have come to their end."""
        ready = select.select(outputs, [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            raise TimeoutError(f"process {self.pid} still runs; it printed {self._printed}")
        ended = []
        for output in ready:
            chunk = os.read(output, 1 << 16)
            self._printed[output] += chunk
            if not chunk:
                ended.append(output)
        return ended

    def _told_line(self, within_s: float) -> bytes:
        """The process's id, and then how it ended, as the one that it was forked from tells it."""
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._told], [], [], max(0.0, within_s))[0]:
                raise TimeoutError("the process that programs are forked from does not answer")
            byte = os.read(self._told, 1)
            assert byte, "the process that programs are forked from has ended"
            line += byte
        return line


class Programs:
    """What starts them."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    @classmethod
    @contextmanager
    def open(cls, *modules: str) -> Iterator[Programs]:
        """Start the process that they are forked from; it ends with the block, or with this process.

        Args:
            modules: What it imports beside torch, whatever they warn of; they may start no thread.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A process that forks must have no pool of threads, and none of pyarrow's allocator.
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        threads["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
        with ours:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno()), *modules],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=os.environ | {"PYTHONPATH": str(_ROOT)} | threads,
                    start_new_session=True,  # a Ctrl-C is not for it
                )
            yield cls(ours)
            ours.shutdown(socket.SHUT_RDWR)
            process.wait(timeout=20)

    @contextmanager
    def started(
        self,
        script: Path,
        *arguments: object,
        more: Mapping[str, str] | None = None,
        strict: bool = True,
        new_session: bool = False,
        one_output: bool = False,
    ) -> Iterator[Program]:
        """Start a script; it is killed if it is there at the end of the block.

        Args:
            script: A file.
            arguments: Of the script.
            more: To the environment of this process.
            strict: Whether each warning is an error, as with ``-W error``.
            new_session: Whether it leads a session of its own.
            one_output: Whether its standard error is its standard output.
        """
        request = {
            "argv": [str(script), *map(str, arguments)],
            "environment": os.environ | {"PYTHONPATH": str(_ROOT)} | dict(more or {}),
            "folder": os.getcwd(),
            "strict": strict,
            "new_session": new_session,
        }
        told, telling = os.pipe()
        out, printing = os.pipe()
        err, complaining = os.pipe()
        theirs = [telling, printing, printing if one_output else complaining]
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], theirs)
        finally:
            for descriptor in (telling, printing, complaining):
                os.close(descriptor)
        program = Program(told, (out, err))
        try:
            yield program
        finally:
            program.close()

    def run(
        self, script: Path, *arguments: object, timeout: float = 120, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end; the options are those of ``started``."""
        with self.started(script, *arguments, **options) as program:
            out, err = program.communicate(timeout)
        assert program.returncode is not None
        return subprocess.CompletedProcess([str(script), *map(str, arguments)], program.returncode, out, err)

    def run_ranks(
        self, ranks: int, script: Path, *arguments: object, timeout: float = 120, **options: Any
    ) -> list[subprocess.CompletedProcess[str]]:
        """Run a script on so many ranks to their ends, with the environment that ``torchrun`` gives them.

        As its agent does, this process keeps the store by which they find each other. Nobody is ended
        because another one was.
        """
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        options["more"] = _torchruns_own(ranks, store.port) | dict(options.get("more") or {})
        arguments_of = [str(script), *map(str, arguments)]
        with ExitStack() as stack:
            programs = []
            for rank in range(ranks):
                own = {name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
                more = options["more"] | own
                started = self.started(script, *arguments, **{**options, "more": more})
                programs.append(stack.enter_context(started))
            # All at once: one that nobody reads could wait for that, and the others for it.
            with ThreadPoolExecutor(ranks) as readers:
                printed = list(readers.map(lambda program: program.communicate(timeout), programs))
        return [
            subprocess.CompletedProcess(arguments_of, program.returncode or 0, *texts)
            for program, texts in zip(programs, printed, strict=True)
        ]


def _torchruns_own(ranks: int, port: int) -> dict[str, str]:
    """What ``torchrun --nproc-per-node`` sets to the same for all ranks."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "ROLE_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
        "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }


# --- the process that they are forked from ---


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork a program for each request. Returns in the programs alone, with what is asked of them."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        for ready in select.select([control, *running], [], [])[0]:
            if ready is not control:
                pid, telling = running.pop(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(BrokenPipeError):  # whoever asked for it has let go of it
                    os.write(telling, f"{status}\n".encode())
                os.close(telling)
                os.close(ready)
                continue
            message, descriptors, *_ = socket.recv_fds(control, _LARGEST_REQUEST, 3)
            if not message:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            telling, *outputs = descriptors
            pid = os.fork()
            if pid == 0:
                for number, output in enumerate(outputs, 1):
                    os.dup2(output, number)
                control.detach()
                os.closerange(3, 1 << 12)
                asked: dict[str, Any] = json.loads(message)
                return asked
            with suppress(BrokenPipeError):
                os.write(telling, f"{pid}\n".encode())
            for output in outputs:
                os.close(output)
            running[os.pidfd_open(pid)] = pid, telling


def _become(asked: dict[str, Any]) -> None:
    """Run the script, as Python does."""
    if asked["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv[:] = asked["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    if asked["strict"]:
        sys.warnoptions.append("error")  # which processes that it starts are given too
        warnings.simplefilter("error")
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=sys.argv[0], __builtins__=__builtins__)
    sys.modules["__main__"] = main
    sys.excepthook = _without_these_frames
    exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), main.__dict__)


def _without_these_frames(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    # So that no program has to.
    import aiohttp  # noqa: F401
    import cloudpickle  # noqa: F401
    import torch

    # The first optimizer imports torch's compiler, which takes as long as torch itself.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in sys.argv[2:]:
            import_module(module)

    assert len(os.listdir("/proc/self/task")) == 1, "what is forked must have no threads"
    gc.collect()
    gc.freeze()
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
