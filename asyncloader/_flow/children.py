"""Another Python that starts clean: none of this process's threads and locks, and not its main module."""

from __future__ import annotations

import os
import sys

__all__ = ["clean_python", "import_path"]

# The path comes first: with it the child finds what this process would find.
_PATH = """
import sys
_own = 2 + int(sys.argv[1])
sys.path[:], sys.argv[1:] = sys.argv[2:_own], sys.argv[_own:]
"""


def clean_python(program: str, *arguments: str) -> list[str]:
    """The command that runs ``program`` in a new process of this Python, with this process's import path.

    Args:
        program: Its text. Everybody on the machine can read it and the arguments: no secret goes there.
        arguments: The program has them in ``sys.argv[1:]``.

    Raises:
        RuntimeError: Python is embedded in another program, and cannot be started.
    """
    if not sys.executable:
        raise RuntimeError(
            "a process of its own was to be started, which needs sys.executable, but this embedded Python "
            "has none: load with num_workers=0, and name each shard instead of prefixes and globs"
        )
    path = import_path()
    # -P: without it the current directory comes first until the path is set, and a random.py there would be
    # imported.
    return [sys.executable, "-P", "-c", _PATH + program, str(len(path)), *path, *arguments]


def import_path() -> list[str]:
    """``sys.path`` as another process can use it."""
    # An empty entry is the current directory; other objects are ignored by import as well.
    return [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
