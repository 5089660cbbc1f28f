"""One word stands for every secret in the tests, and no test passes in which the library tells it.

Tests write ``SENTINEL`` wherever a user has a signature, a token, a key or a password: in queries, user
info, headers, storage options and the answers of servers. While a test runs that has secrets (its file names
the word, or a server whose credentials are made of it), this plugin looks for it in

* log records of all levels, but those of clients and servers that are the tests' own,
* standard output and error as pytest captures them, of this process and its children, and what
  ``subprocess.run`` captures,
* warnings, shown and caught,
* errors that ``pytest.raises`` catches: their texts, attributes and notes, and those of their causes,
* command lines of processes as they are started,
* names of threads, of shared memory, and of files below the test's ``tmp_path``; at the end of the session
  below pytest's whole base folder.

Left out are what a failing test shows (it shows the test's own code), and names that are made of a test's
parameters: those of its ``tmp_path`` and of the thread that watches over its time. Names of tasks are looked
at where tasks run: see ``end_to_end/test_secrets.py``.
"""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import pytest
from telling import all_told

__all__ = ["SENTINEL", "Watch", "mentions", "no_file_is_named_after_a_secret"]

SENTINEL = "SENTINEL"

# Clients and servers of the tests' own, which the library never uses: boto signs, requests prints paths
# with their queries, and moto's server logs the requests that it gets.
_NOT_OURS = ("boto3", "botocore", "moto", "s3transfer", "urllib3", "werkzeug")

# The program that only users start, who may name presigned URLs on their command lines.
_USERS_OWN = "asyncloader"

_AROUND = 60

#: What the file of a test with secrets names: the word, or a module of servers that have it in credentials.
_SECRETS_ARE_IN = ("SENTINEL", "moto_s3", "servers")


def _encoded() -> list[str]:
    """Base64 of the word, as in ``Authorization: Basic``, behind any number of other bytes."""
    forms = []
    for before in range(3):
        bits = base64.b64encode(bytes(before) + SENTINEL.encode()).decode()
        forms.append(bits[-(-before * 8 // 6) : (before + len(SENTINEL)) * 8 // 6])
    return forms


_FORMS = (SENTINEL, *_encoded())


def mentions(text: str) -> str | None:
    """Where a text tells the secret, with what stands around it; None if it does not."""
    for form in _FORMS:
        at = text.find(form)
        if at != -1:
            return text[max(at - _AROUND, 0) : at + len(form) + _AROUND]
    return None


class Watch(logging.Handler):
    """The plugin: gathers what is told while a test runs, and fails it for that."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._found: list[str] = []
        self._names: set[str] = set()
        self._watching = False
        self._patches = pytest.MonkeyPatch()

    def look(self, where: str, text: str) -> None:
        """Remember if the text tells the secret."""
        told = mentions(text)
        if told is not None:
            self._found.append(f"{where}: ...{told}...")

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        text = f"{record.getMessage()} {vars(record)} {all_told(error)}"
        self.look(f"a record of the log {record.name!r}", text)

    # --- hooks ---

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if not _has_secrets(item):
            return (yield)
        root = logging.getLogger()
        levels = {name: logging.getLogger(name).level for name in _NOT_OURS}
        level = root.level
        root.addHandler(self)
        root.setLevel(logging.DEBUG)
        for name in _NOT_OURS:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._watching = True
        # Where each of them comes to be, since tests catch most of them.
        self._before(warnings.WarningMessage, "__init__", self._see_warning)
        self._before(type(pytest.raises(Exception)), "__exit__", self._see_error)
        self._before(subprocess.Popen, "__init__", self._see_command)
        self._before(subprocess.CompletedProcess, "__init__", self._see_output)
        try:
            return (yield)
        finally:
            self._patches.undo()
            self._watching = False
            root.removeHandler(self)
            root.setLevel(level)
            for name, before in levels.items():
                logging.getLogger(name).setLevel(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report = yield
        if not self._watching:
            return report
        if report.passed:
            for name, text in report.sections:
                if name.endswith(report.when):  # those of earlier parts of the test are here again
                    self.look(name, text)
            self._look_at_names(item)
        found, self._found = self._found, []
        if report.passed and found:
            report.outcome = "failed"
            report.longrepr = "\n".join(["a secret was told in", *found])
        return report

    # --- what it looks at ---

    def _look_at_names(self, item: pytest.Item) -> None:
        threads = {thread.name for thread in threading.enumerate()}
        names = {name for name in threads if not name.startswith("pytest_timeout ")}
        names |= {name.rpartition("/")[2] for name in _links("/proc/self/fd")}
        for name in names - self._names:  # what stays for long fails the test in which it came
            self.look("the name of a thread, an open file or shared memory", name)
        self._names = names
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        if folder is not None:
            for name in _names_below(folder):
                self.look("the name of a file", name)

    def _see_warning(self, warning: object, message: object, *_: object, **__: object) -> None:
        self.look("a warning", str(message))

    def _see_error(self, context: object, kind: object, error: BaseException | None, trace: object) -> None:
        self.look("an error", all_told(error))

    def _see_command(self, process: object, args: Any, *_: object, **__: object) -> None:
        words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        if _USERS_OWN not in words:
            self.look("a command line", f"{words}")

    def _see_output(self, done: object, args: object, status: int, *printed: str | bytes | None) -> None:
        for text in filter(None, printed):
            self.look(
                "what a process printed", text if isinstance(text, str) else text.decode(errors="replace")
            )

    def _before(self, kind: type, name: str, see: Callable[..., None]) -> None:
        """Have ``see`` called with whatever a method is called with."""
        real = getattr(kind, name)

        @wraps(real)
        def seen(*args: Any, **kwargs: Any) -> Any:
            see(*args, **kwargs)
            return real(*args, **kwargs)

        self._patches.setattr(kind, name, seen)


@pytest.fixture(scope="session", autouse=True)
def no_file_is_named_after_a_secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of the folders that several tests share, whose names pytest has made."""
    yield
    for folder in tmp_path_factory.getbasetemp().iterdir():
        for name in _names_below(folder):
            assert mentions(name) is None, f"a file is named after a secret: {folder / name}"


def _has_secrets(item: pytest.Item) -> bool:
    return item.get_closest_marker("servers") is not None or _names_secrets(item.path)


@cache
def _names_secrets(path: Path) -> bool:
    text = path.read_text()
    return any(word in text for word in _SECRETS_ARE_IN)


def _names_below(folder: Path) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield os.path.join(os.path.relpath(where, folder), name)


def _links(folder: str) -> Iterator[str]:
    for name in _listed(folder):
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            continue  # the descriptor that the folder was listed by


def _listed(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []
