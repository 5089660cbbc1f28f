"""Writes what the cases give now to ``frozen.json``: only where a change of behaviour is wanted.

python -m golden.freeze        # in tests/
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .cases import CASES, write_shards

__all__ = ["FROZEN"]

FROZEN = Path(__file__).parent / "frozen.json"


def freeze() -> dict[str, Any]:
    found = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder)
        for number, (case, how) in enumerate(CASES.items()):
            if how.same_as is None:
                (folder / f"scratch-{number}").mkdir()
                found[case] = how.give(folder, folder / f"scratch-{number}")
    return found


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(freeze(), indent=0, sort_keys=True) + "\n")
