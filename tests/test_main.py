"""``python -m asyncloader`` names the commands there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import asyncloader

PACKAGE = Path(asyncloader.__file__).parent


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("arguments", [(), ("--help",)], ids=["alone", "help"])
def test_the_package_run_as_a_program_names_each_command_in_a_line(arguments: tuple[str, ...]) -> None:
    programs = {f"asyncloader.{path.parent.name}" for path in PACKAGE.glob("*/__main__.py")}
    ran = run("asyncloader", *arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    named = [line.split() for line in ran.stdout.splitlines() if line.startswith("  python -m ")]
    assert {words[2] for words in named} == programs
    assert all(len(words) > 3 for words in named), "a command says what it does"


def test_each_command_that_is_named_has_its_own_help() -> None:
    from asyncloader.__main__ import COMMANDS

    for module in COMMANDS:
        ran = run(module, "--help")
        assert ran.returncode == 0 and ran.stdout.startswith(f"usage: python -m {module} "), ran


def test_the_version_is_told() -> None:
    ran = run("asyncloader", "--version")
    assert (ran.returncode, ran.stdout) == (0, f"asyncloader {asyncloader.__version__}\n")


def test_what_is_no_command_is_refused_with_the_usage() -> None:
    ran = run("asyncloader", "verify")
    assert ran.returncode == 2
    assert "usage: python -m asyncloader" in ran.stderr and "verify" in ran.stderr
