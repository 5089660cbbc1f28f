"""Another Python that starts clean: none of this process's threads and locks, and not its main module."""

from __future__ import annotations

import os
import sys

__all__ = ["clean_python", "import_path"]

# Where the program is handed over: in the command it would be what `ps` shows, in the line of every worker.
_VARIABLE = "ASYNCLOADER_PROGRAM"


def clean_python(program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``program`` in a new process of this Python, with this process's import path.

    Args:
        program: Its text.
        arguments: The program has them in ``sys.argv[1:]``. Everybody on the machine can read them: no secret
            goes there.

    Returns:
        The command, and the environment that it needs, which is this process's and the program. The child
        takes that out again.

    Raises:
        RuntimeError: Python is embedded in another program, and cannot be started.
    """
    if not sys.executable:
        raise RuntimeError(
            "a process of its own was to be started, which needs sys.executable, but this embedded Python "
            "has none: load with num_workers=0, and name each shard instead of prefixes and globs"
        )
    # The path comes first: with it the child finds what this process would find.
    program = f"import sys\nsys.path[:] = {import_path()!a}\n{program}"
    # -P: without it the current directory comes first until the path is set, and a random.py there would be
    # imported.
    command = [sys.executable, "-P", "-c", f"import os; exec(os.environ.pop('{_VARIABLE}'))", *arguments]
    return command, {**os.environ, _VARIABLE: program}


def import_path() -> list[str]:
    """``sys.path`` as another process can use it."""
    # An empty entry is the current directory; other objects are ignored by import as well.
    return [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
