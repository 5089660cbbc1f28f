"""The program: its commands, its exit statuses, and what it says when it fails."""

from __future__ import annotations

import ast
import importlib
import io
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from end_to_end.harness import subprocess_environment

import asyncloader
from asyncloader import testing
from asyncloader.cli import COMMANDS, main, make_parser
from asyncloader.quantity import bytes_text as size_of

ROOT = Path(asyncloader.__file__).parents[1]
ROOM = ROOT / "asyncloader" / "cli"
#: Files of the room that are no command.
SHARED = {"__init__", "arguments", "printing", "recipe"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncloader", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=subprocess_environment(), check=False
    )


def test_each_command_is_a_module_of_its_name_and_none_is_forgotten() -> None:
    assert {path.stem for path in ROOM.glob("*.py")} - SHARED == {*COMMANDS}


@pytest.mark.parametrize("arguments", [(), ("--help",)], ids=["alone", "help"])
def test_the_program_names_each_command_in_a_line(arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    words = [line.split() for line in ran.stdout.splitlines() if line.startswith("    ")]
    named = {line[0]: line[1:] for line in words if line[0] in COMMANDS}
    assert named.keys() == COMMANDS.keys() and all(named.values()), "a command says what it does"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_own_help_and_prints_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: asyncloader {name} ")
    inner = [line.split()[0] for line in told.splitlines() if line.startswith("    ") and name == "cache"]
    for command in inner:
        assert main([name, command, "--help"]) == 0
        told = capsys.readouterr().out
    assert "--json" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_naming_a_commands_arguments_imports_no_torch(name: str) -> None:
    program = (
        "import sys; from asyncloader.cli import main\n"
        f"main([{name!r}, '--help'])\n"
        "print(*sorted({'torch', 'aiohttp', 'obstore', 'pyarrow'} & {*sys.modules}), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=subprocess_environment(),
        check=True,
    )
    assert ran.stderr.strip() == ""


def test_help_comes_at_once() -> None:
    # 0.1 s on a quiet machine; torch alone takes a second or two.
    taken_s = []
    for _ in range(3):
        began = time.perf_counter()
        run("--help")
        taken_s.append(time.perf_counter() - began)
    assert min(taken_s) < 2


def test_the_version_is_told() -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"asyncloader {asyncloader.__version__}\n")


def test_what_is_no_command_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    told = capsys.readouterr().err
    assert "usage: asyncloader" in told and "'nonsense'" in told and "verify" in told


def test_the_installed_program_is_this_one() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["asyncloader"].partition(":")
    assert getattr(importlib.import_module(module), function) is main


def test_errors_are_one_line_and_the_status_is_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(tmp_path / "none")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("asyncloader audit: ") and "none" in captured.err


def test_an_error_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AssertionError("ours")

    monkeypatch.setattr("asyncloader.cli.audit.verify_audit", broken)
    with pytest.raises(AssertionError, match="ours"):
        main(["audit", "/nowhere"])


def test_ctrl_c_ends_a_command_quietly(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(bytes(10240))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with testing.serve(tmp_path, latency_s=60) as server:
        index = ["index", f"{server.url}/a.tar", "-o", str(tmp_path / "m.json")]
        command = [sys.executable, "-m", "asyncloader", *index]
        with subprocess.Popen(command, env=subprocess_environment(), text=True, **pipes) as running:
            deadline_s = time.monotonic() + 50
            while not server.requests:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            running.send_signal(signal.SIGINT)
            told = running.communicate(timeout=50)
    assert (running.returncode, *told) == (130, "", "")


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{'long-name' * 10}-{number}.jsonl").write_text('{"n": 1}\n')
    index = f"{sys.executable} -m asyncloader index '{tmp_path}/*.jsonl'"
    command = f"{index} | head -n 1; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        env={**subprocess_environment(), "PYTHONUNBUFFERED": "1"},
        check=True,
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[-1] == "141"


class Terminal(io.StringIO):
    """What looks like a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "json", "draws"), [(io.StringIO, False, True), (Terminal, False, False), (Terminal, True, True)]
)
def test_a_bar_is_drawn_on_a_terminal_that_has_no_lines_to_show(
    out: type[io.StringIO], json: bool, draws: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    err = Terminal()
    monkeypatch.setattr(sys, "stdout", out())
    monkeypatch.setattr(sys, "stderr", err)
    assert main(["ls", str(tmp_path / "a.txt"), *(["--json"] if json else [])]) == 0
    assert ("1/1" in err.getvalue()) == draws


def test_sizes_are_told_in_three_digits() -> None:
    told = [size_of(size) for size in (0, 999, 1000, 31_415, 999_949, 1_500_000, 25_300_000_000)]
    assert told == ["0 B", "999 B", "1 kB", "31.4 kB", "1 MB", "1.5 MB", "25.3 GB"]


def test_each_command_and_option_is_named_in_the_reference() -> None:
    page = (ROOT / "docs/reference/command-line.md").read_text()
    for name in COMMANDS:
        parser = make_parser(name)
        (commands,) = [action for action in parser._actions if isinstance(action.choices, dict)]
        missing = [word for word in _words(commands.choices[name]) if f"`{word}" not in page]
        assert not missing, f"docs/reference/command-line.md says nothing of {name}'s {missing}"
        assert f"## `asyncloader {name}" in page


_LINES = [
    (page.name, line.partition("|")[0])
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for block in re.findall(r"^```(?:sh|text)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    for line in re.sub(r"\\\n\s*", "", block).splitlines()  # a line may go on in the next
    if line.removeprefix("$ ").startswith("asyncloader ")
]


@pytest.mark.parametrize(("page", "line"), _LINES)
def test_command_lines_in_the_pages_are_right(page: str, line: str) -> None:
    _, *arguments = shlex.split(line.removeprefix("$ ").partition(" > ")[0], comments=True)
    make_parser(arguments[0]).parse_args(arguments)


def _words(parser: object) -> list[str]:
    words = []
    for action in parser._actions:  # type: ignore[attr-defined]
        words += [word for word in action.option_strings if word not in ("-h", "--help")]
        if isinstance(action.choices, dict):
            words += [*action.choices, *(word for inner in action.choices.values() for word in _words(inner))]
    return words


def test_a_command_imports_what_it_needs_when_it_runs() -> None:
    """What is heavy is imported in ``run``, by the modules below; see their own test."""
    for path in ROOM.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "torch" not in ast.unparse(node).split(), path


def test_a_value_error_of_the_library_s_own_making_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    monkeypatch.setattr("asyncloader.cli.ls.run", lambda asked: int("a fault of ours"))
    with pytest.raises(ValueError, match="a fault of ours"):
        main(["ls", str(tmp_path / "a.jsonl")])
    assert capsys.readouterr().err == ""
