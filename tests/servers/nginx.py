"""nginx over a folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .process import find_program, reserve_port, run_server

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
        {directives}
    }}
}}
"""


@contextmanager
def run_nginx(directory: Path, directives: str = "") -> Iterator[str]:
    """Serve a directory with nginx on a free port.

    Args:
        directory: What is served, with ranges and lists of folders.
        directives: More of nginx's own words for the server, such as ``location`` blocks.

    Yields:
        The base URL, without a slash at the end.
    """
    # Debian keeps it out of the PATH of a normal user.
    program = find_program("nginx", "/usr/sbin")
    with tempfile.TemporaryDirectory(prefix="nginx-") as folder, reserve_port() as port:
        # As root, nginx would switch to a user that cannot read pytest's private folders.
        user = "user root;" if os.getuid() == 0 else ""
        config = Path(folder, "nginx.conf")
        config.write_text(
            _CONFIG.format(
                user=user, folder=folder, port=port, root=directory.resolve(), directives=directives
            )
        )
        command = [program, "-p", folder, "-e", "stderr", "-c", str(config), "-g", "daemon off;"]
        with run_server(command, port, Path(folder)):
            yield f"http://127.0.0.1:{port}"
