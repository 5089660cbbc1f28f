"""Where shards are read from: the disk, nginx on loopback, or a server that is some milliseconds away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["open_place"]

RATE_BYTES_S = 40e6


@contextmanager
def open_place(place: str, folder: Path) -> Iterator[str]:
    """The folder as a base URL or path without a slash at the end.

    Args:
        place: ``local``; ``http``; or a number, the milliseconds before the first byte of each answer.
        folder: What is there.
    """
    if place == "local":
        yield str(folder)
    elif place == "http":
        sys.path.append(str(Path(__file__).resolve().parents[2]))
        from servers import run_nginx

        with run_nginx(folder) as base:
            yield base
    else:
        command = [sys.executable, "-m", "peers.places", str(folder), place]
        cwd = Path(__file__).parents[1]
        with subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdin is not None and server.stdout is not None
            try:
                yield server.stdout.readline().strip()
            finally:
                server.stdin.close()  # which ends it


def serve_until_closed(folder: Path, latency_ms: float) -> None:
    """The server's process: the clients are not to share an interpreter with it."""
    from asyncloader.testing import serve

    with serve(folder, latency_s=latency_ms / 1000, rate_bytes_s=RATE_BYTES_S) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    serve_until_closed(Path(sys.argv[1]), float(sys.argv[2]))
