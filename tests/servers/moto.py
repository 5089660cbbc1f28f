"""moto's server: S3 in memory. It keeps checksums, and checks no signatures unless told to."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from .process import missing, reserve_port, run_server
from .s3 import S3Server

__all__ = ["run_moto"]


@contextmanager
def run_moto() -> Iterator[S3Server]:
    """Run moto's server in a process of its own on a free port."""
    if find_spec("moto") is None:
        missing("moto is not installed")
    with tempfile.TemporaryDirectory(prefix="moto-") as folder, reserve_port() as port:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with run_server(command, port, Path(folder)):
            yield S3Server(f"http://127.0.0.1:{port}", "testing", "SENTINEL")
