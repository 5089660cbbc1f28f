"""The command line: ``asyncloader COMMAND``, and ``python -m asyncloader``, which is the same.

Laws:

* A command is a module of its name in this room, with ``HELP``, ``add_arguments(parser)`` and ``run(asked)``.
  Only the requested one is imported, and torch only when it is needed.
* Results go to standard output, progress bars and errors to standard error. Bars are shown on terminals only.
* Only ``printing`` prints lines: names in them are untrusted, and may contain control characters.
* The exit status is 0 if all is well, 1 if a shard or epoch is bad, 2 if the command could not run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from .. import __version__
from ..errors import RanksError, SkipBudgetError, StoreError, WorkerDiedError, is_on_purpose
from ..quantity import printable

#: The commands, each with a summary; ``--help`` of a command has the details.
COMMANDS = {
    "ls": "list shards with their lengths; expands globs and braces",
    "head": "show the first samples: the dtype, shape and first values of each field",
    "bench": "measure how fast batches are read, name the bottleneck, and say what to change",
    "index": "read each shard once and write an index: lengths, digests, samples, offsets",
    "verify": "read each shard and compare it with the index",
    "convert": "write shards from files, or from shards of another format or size",
    "simulate": "estimate the speed of a pass without reading data",
    "cache": "list, verify or prune a disk cache",
    "report": "print the bottleneck of a traced pass, and write an HTML page about it",
    "audit": "prove that each epoch delivered each sample exactly once",
}

_WRONG_CALL = 2
# As a shell reports a program that was ended by these signals.
_INTERRUPTED, _PIPE_CLOSED = 130, 141

# Errors of calls and of the environment. All others are bugs, and are shown with a traceback; so is an error
# of the first kind that our code has not raised on purpose.
_WRONG_ARGUMENTS = (ValueError, TypeError, KeyError)
_EXPECTED = (OSError, ImportError, RanksError, SkipBudgetError, WorkerDiedError, *_WRONG_ARGUMENTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The arguments after the program's name; None for those of this process.

    Returns:
        The exit status: 0 if all is well, 1 if a shard or epoch is bad, 2 if the command could not run, 130
        after Ctrl-C, 141 if the reader of the output has closed it.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # Options before the command have no values.
    name = next((word for word in arguments if not word.startswith("-")), None)
    try:
        parser = make_parser(name)
        asked = parser.parse_args(arguments)
        if asked.command is None:
            parser.print_help()
            return 0
        status: int = import_module(f".{name}", __name__).run(asked)
        sys.stdout.flush()
        return status
    except SystemExit as ended:  # argparse has printed its message
        return ended.code if isinstance(ended.code, int) else _WRONG_CALL
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # At exit, Python flushes what is left, which would fail as well.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return _PIPE_CLOSED
    except _EXPECTED as error:
        if isinstance(error, _WRONG_ARGUMENTS) and not is_on_purpose(error):
            raise
        print(f"asyncloader {name}: {_in_a_line(error)}", file=sys.stderr)
        return _WRONG_CALL


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; only the named one knows its arguments."""
    parser = argparse.ArgumentParser(
        prog="asyncloader",
        description="Stream training data into PyTorch: inspect, index, verify and convert shards.",
    )
    parser.add_argument("--version", action="version", version=f"asyncloader {__version__}")
    commands = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        title="commands",
        description="`asyncloader COMMAND --help` lists the options of a command",
    )
    for name, does in COMMANDS.items():
        if name != command:
            commands.add_parser(name, help=does)
            continue
        module = import_module(f".{name}", __name__)
        own = commands.add_parser(name, help=does, description=module.HELP)
        module.add_arguments(own)
        if name != "cache":  # each of its own commands has it
            add_json(own)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``, which every command has."""
    parser.add_argument("--json", action="store_true", help="print one JSON document in place of text")


def _in_a_line(error: Exception) -> str:
    """The message of an error and its notes, on one line."""
    notes = getattr(error, "__notes__", [])
    text = str(error.args[0] if isinstance(error, KeyError) else error) or type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, StoreError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"  # Python's own form begins with a number
    return printable("; ".join(" ".join(part.split()) for part in [text, *notes]))
