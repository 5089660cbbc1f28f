"""``python -m asyncloader``: which commands there are, and which version this is."""

from __future__ import annotations

import argparse
import sys

from . import __version__

#: The modules that are programs, and what each does in a line; their own ``--help`` says the rest.
COMMANDS = {
    "asyncloader.audit": "prove from what ranks recorded that epochs delivered each sample once",
    "asyncloader.cache": "verify the shards of a disk cache",
    "asyncloader.manifest": "make the manifest of shards, or check shards against it",
}


def main(arguments: list[str]) -> int:
    """Print the commands, or the version; for whatever else argparse exits with 2 and the usage."""
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="python -m asyncloader",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Stream training data into PyTorch. The commands, each with its own --help:\n\n"
        + "\n".join(f"  python -m {name:{width}}  {does}" for name, does in COMMANDS.items()),
    )
    parser.add_argument("--version", action="version", version=f"asyncloader {__version__}")
    parser.parse_args(arguments)
    parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
