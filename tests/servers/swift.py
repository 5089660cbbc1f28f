"""OpenStack Swift with its S3 interface: it checks signatures (SigV4), expiry, 412 and 416."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .process import missing, reserve_port, run_server
from .s3 import S3Server

__all__ = ["run_swift"]

_ACCESS_KEY, _SECRET_KEY = "test:tester", "SENTINEL"

# One process each: with workers, Swift ends its whole process group when it ends, and so the tests.
_SERVER = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
fallocate_reserve = 0
log_level = WARNING
"""

_STORAGE = (
    _SERVER
    + """
[pipeline:main]
pipeline = {name}-server

[app:{name}-server]
use = egg:swift#{name}
"""
)

# tempauth insists on a cache; one that cannot be reached is as good as an empty one.
_PROXY = (
    _SERVER
    + """
[pipeline:main]
pipeline = catch_errors cache s3api tempauth proxy-server

[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true

[filter:catch_errors]
use = egg:swift#catch_errors

[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1

[filter:s3api]
use = egg:swift#s3api
location = us-east-1
allow_multipart_uploads = false

[filter:tempauth]
use = egg:swift#tempauth
user_{user_name} = {secret} .admin
"""
)

_CLUSTER = """
[swift-hash]
swift_hash_path_prefix = testing
[storage-policy:0]
name = disk
default = yes
"""


@contextmanager
def run_swift() -> Iterator[S3Server]:
    """Run the four servers that Swift consists of, on free ports and with one disk that is a folder."""
    # Isolated: the folder of the script has a module swift of ours.
    program = [_interpreter(), "-I", str(Path(__file__).with_name("_swift_main.py"))]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swift-", dir=_xattr_folder())))
        (folder / "devices" / "disk").mkdir(parents=True)
        (folder / "swift.conf").write_text(_CLUSTER)
        ports = {name: stack.enter_context(reserve_port()) for name in ("account", "container", "object")}
        rings = [str(word) for pair in ports.items() for word in pair]
        subprocess.run([*program, str(folder), "rings", *rings], check=True, timeout=30)
        ports["proxy"] = stack.enter_context(reserve_port())
        for name, port in ports.items():
            (folder / f"{name}.conf").write_text(_config(name, folder, port))
            stack.enter_context(run_server([*program, str(folder), name], port, folder))
        yield S3Server(f"http://127.0.0.1:{ports['proxy']}", _ACCESS_KEY, _SECRET_KEY)


def _interpreter() -> str:
    """The Python that has Swift: the system's, where it is a package of the system."""
    for python in ("/usr/bin/python3", sys.executable):
        with suppress(OSError):
            command = [python, "-I", "-c", "import swift.proxy"]
            if subprocess.run(command, stderr=subprocess.DEVNULL, timeout=30, check=False).returncode == 0:
                return python
    missing("OpenStack Swift (python3-swift) is not installed")


def _config(name: str, folder: Path, port: int) -> str:
    template = _PROXY if name == "proxy" else _STORAGE
    return template.format(
        name=name,
        folder=folder,
        port=port,
        user=getpass.getuser(),
        user_name=_ACCESS_KEY.replace(":", "_"),
        secret=_SECRET_KEY,
    )


def _xattr_folder() -> str:
    """A folder for Swift's disk, on a file system that keeps extended attributes."""
    for folder in (tempfile.gettempdir(), "/var/tmp", os.getcwd()):
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            try:
                os.setxattr(file.fileno(), "user.swift.metadata", b"some")
            except OSError:
                continue
            return folder
    missing("no file system here keeps the extended attributes that swift needs")
