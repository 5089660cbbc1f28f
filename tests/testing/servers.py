"""Real servers as fixtures."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

__all__ = ["run_nginx"]

_CONFIG = """
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    default_type application/octet-stream;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root "{root}";
        autoindex on;
    }}
}}
"""


@contextmanager
def run_nginx(directory: Path) -> Iterator[str]:
    """Serve a directory with nginx on a free port; skips the test where nginx is not installed.

    The listening socket is opened here and handed over (the ``NGINX`` variable with which nginx hands
    its sockets to its own successor), so no other process can take the port in between, and clients
    that come early wait in the kernel.

    Yields:
        The base URL, without a slash at the end.
    """
    # Debian keeps it out of the PATH of a normal user.
    program = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if program is None:
        pytest.skip("nginx is not installed")
    with (
        tempfile.TemporaryDirectory(prefix="nginx-") as folder,
        socket.create_server(("127.0.0.1", 0), backlog=511) as listener,
        ExitStack() as stack,
    ):
        port = listener.getsockname()[1]
        # As root, nginx would switch to a user that cannot read pytest's private folders.
        user = "user root;" if os.getuid() == 0 else ""
        config = _CONFIG.format(user=user, folder=folder, port=port, root=directory.resolve())
        Path(folder, "nginx.conf").write_text(config)
        # A file, not a pipe: nobody reads while nginx runs, and a full pipe would block it.
        errors = Path(folder, "errors")
        process = subprocess.Popen(
            [program, "-p", folder, "-e", "stderr", "-c", f"{folder}/nginx.conf", "-g", "daemon off;"],
            env={**os.environ, "NGINX": f"{listener.fileno()};"},
            pass_fds=[listener.fileno()],
            stderr=stack.enter_context(errors.open("wb")),
        )
        try:
            listener.close()
            _wait_until_it_answers(port, errors)
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(process)


def _wait_until_it_answers(port: int, errors: Path) -> None:
    # If nginx ends, the last holder of the socket is gone and this fails at once.
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeError(f"nginx does not answer: {error!r}\n{errors.read_text()}") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
