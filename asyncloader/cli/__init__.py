"""The command line: ``asyncloader COMMAND``, and ``python -m asyncloader``, which is the same.

Laws:

* A command is a module of its name in this room, with ``HELP``, ``add_arguments(parser)`` and ``run(asked)``.
  Only the one that is asked for is imported, and torch not before it is needed.
* Answers go to standard output, bars and errors to standard error. A bar is for a terminal alone.
* Lines are printed by ``printing`` alone: names in them come from anywhere, and terminals obey what they get.
* The exit status is 0 if all is well, 1 if what was looked at is bad, 2 for a call that could not be done.
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

__all__ = ["COMMANDS", "main", "make_parser"]

#: The commands, and what each does in a line; their own ``--help`` says the rest.
COMMANDS = {
    "ls": "list shards with their lengths, and what globs and braces stand for",
    "head": "show the first samples: their fields, dtypes, shapes, beginnings",
    "bench": "read batches, and say how fast they come, what limits, and what to change",
    "index": "read shards once, and write their index: lengths, digests, samples, where to begin",
    "verify": "read shards, and hold them against their index",
    "convert": "make shards of other shards: of another format, another size, with fewer fields; or of files",
    "simulate": "say how fast a pass would go, what its bottleneck is, and what a resize would cost",
    "cache": "list, verify or prune a disk cache",
    "report": "show a traced pass as a page",
    "audit": "prove from what ranks recorded that epochs delivered each sample once",
}

_WRONG_CALL = 2
# As a shell reports a program that these signals ended.
_INTERRUPTED, _PIPE_CLOSED = 130, 141

# What calls and the world are to blame for. Whatever else is raised is ours, and shown with its traceback; so
# is a ValueError that no code of ours has raised on purpose.
_TOLD = (OSError, ValueError, ImportError, RanksError, SkipBudgetError, WorkerDiedError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: What is behind the program's name; None for what it was called with.

    Returns:
        The exit status: 0 if all is well, 1 if what was looked at is bad, 2 for a call that could not be
        done, 130 after Ctrl-C, 141 if whoever read the output has gone.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # Before the command there are only options without values.
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
    except SystemExit as ended:  # argparse has printed what there is to say
        return ended.code if isinstance(ended.code, int) else _WRONG_CALL
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # What is still to be written, when Python ends, has nobody to read it either.
        with open(os.devnull, "w") as nobody:
            os.dup2(nobody.fileno(), sys.stdout.fileno())
        return _PIPE_CLOSED
    except _TOLD as error:
        if isinstance(error, ValueError) and not is_on_purpose(error):
            raise
        print(f"asyncloader {name}: {_in_a_line(error)}", file=sys.stderr)
        return _WRONG_CALL


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; only the named one knows its arguments."""
    parser = argparse.ArgumentParser(
        prog="asyncloader",
        description="Stream training data into PyTorch: look at shards and care for them.",
    )
    parser.add_argument("--version", action="version", version=f"asyncloader {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", description="each with its own --help"
    )
    for name, does in COMMANDS.items():
        if name != command:
            commands.add_parser(name, help=does)
            continue
        module = import_module(f".{name}", __name__)
        module.add_arguments(commands.add_parser(name, help=does, description=module.HELP))
    return parser


def _in_a_line(error: Exception) -> str:
    """What an error says, and its notes, which say where."""
    notes = getattr(error, "__notes__", [])
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, StoreError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"  # Python's own form begins with a number
    told = [text, *notes]
    return printable("; ".join(" ".join(text.split()) for text in told))
