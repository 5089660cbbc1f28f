"""The check that no secret is told fails wherever one is; a check that cannot fail proves nothing."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sentinel import SENTINEL, mentions

HERE = Path(__file__).parent

CONFTEST = """
from sentinel import Watch, no_file_is_named_after_a_secret

def pytest_configure(config):
    config.pluginmanager.register(Watch(), "sentinel")
"""

HEADER = """
import asyncio, base64, logging, os, subprocess, sys, threading, warnings
import pytest
from sentinel import SENTINEL
"""

# What a test does that passes otherwise, and where it is said to tell the secret.
TELLS = {
    "printing": ("print(SENTINEL)", "Captured stdout call"),
    "printing in base64": (
        "for user in 'u', 'me', 'her': print(base64.b64encode(f'{user}:{SENTINEL}'.encode()).decode())",
        "Captured stdout call",
    ),
    "writing to standard error": ("print(SENTINEL, file=sys.stderr)", "Captured stderr call"),
    "a child that prints": ("os.system('echo SENT''INEL')", "Captured stdout call"),
    "a process that is run": (
        "subprocess.run('echo SENT''INEL', shell=True, capture_output=True)",
        "what a process printed",
    ),
    "logging": ("logging.getLogger('deep').debug('sent %s', SENTINEL)", "a record of the log 'deep'"),
    "logging an attribute": ("logging.info('sent', extra={'url': SENTINEL})", "a record of the log 'root'"),
    "warning where warnings are caught": (
        "with pytest.warns(UserWarning):\n        warnings.warn(SENTINEL)",
        "a warning",
    ),
    "an error": ("with pytest.raises(KeyError):\n        raise KeyError(SENTINEL)", "an error"),
    "the cause of an error": (
        "with pytest.raises(ValueError):\n"
        "        try: raise KeyError(SENTINEL)\n"
        "        except KeyError: raise ValueError from None",
        "an error",
    ),
    "a note of an error": (
        "with pytest.raises(ValueError) as caught:\n"
        "        error = ValueError()\n"
        "        error.add_note(SENTINEL)\n"
        "        raise error",
        "an error",
    ),
    "an attribute of an error in a group": (
        "error = ValueError()\n"
        "    error.url = SENTINEL\n"
        "    with pytest.raises(ExceptionGroup):\n"
        "        raise ExceptionGroup('some', [error])",
        "an error",
    ),
    "a command line": ("subprocess.run(['true', SENTINEL])", "a command line"),
    "the name of a thread": (
        "threading.Thread(target=threading.Event().wait, name=SENTINEL, daemon=True).start()",
        "the name of a thread, an open file",
    ),
    "the name of a file": ("(tmp_path / 'deep').mkdir(); (tmp_path / 'deep' / SENTINEL).touch()", "a file"),
    "the name of a folder": ("(tmp_path / SENTINEL).mkdir()", "the name of a file"),
    "the name of shared memory": ("os.memfd_create(SENTINEL)", "an open file or shared memory"),
    "the name of a file of several tests": (
        "(tmp_path_factory.mktemp('shared') / SENTINEL).touch()",
        "a file is named after a secret",
    ),
}

KEEPS = {
    "nothing": "pass",
    "an error of another kind": "with pytest.raises(KeyError):\n        raise KeyError('key')",
    "holding a secret": "headers = {'Authorization': SENTINEL}",
    "writing a file that holds it": "(tmp_path / 'file').write_text(SENTINEL)",
    "another's log": "logging.getLogger('urllib3').debug(SENTINEL)",
}


def run(bodies: dict[str, str]) -> tuple[int, str]:
    """Pytest's exit status and output for tests with such bodies, named by their numbers."""
    tests = [
        f"def test_{number}(tmp_path, tmp_path_factory):\n    {body}\n"
        for number, body in enumerate(bodies.values())
    ]
    # Not below ``tmp_path``, where this session would find the files that these tests name.
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_it.py").write_text("\n".join([HEADER, *tests]))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-rA",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            folder / "temp",
        ]
        pytest_itself = subprocess.Popen(
            [*command, folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(HERE)},
        )
        with pytest_itself:
            text, _ = pytest_itself.communicate(timeout=50)
    return pytest_itself.returncode, text


def section(text: str, number: int) -> str:
    """The part of pytest's output about one test's failure or error."""
    parts = text.split(f" test_{number} __")
    return "".join(part.split("\n__", 1)[0] for part in parts[1:])


def test_every_way_of_telling_a_secret_fails_the_test() -> None:
    _, text = run({name: body for name, (body, _) in TELLS.items()})
    missed = [
        name for number, (name, (_, where)) in enumerate(TELLS.items()) if where not in section(text, number)
    ]
    assert not missed, text


def test_a_secret_that_is_only_used_fails_nothing() -> None:
    status, text = run(KEEPS)
    assert status == 0 and f"{len(KEEPS)} passed" in text, text


@pytest.mark.parametrize("offset", range(3))
def test_a_secret_is_found_in_base64_behind_any_number_of_bytes(offset: int) -> None:
    encoded = base64.b64encode(offset * b"x" + SENTINEL.encode() + b":@").decode()
    assert mentions(f"Basic {encoded}") is not None
    assert mentions("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==") is None
