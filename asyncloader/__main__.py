"""``python -m asyncloader``: the command line, where no program of its name is on the path."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
