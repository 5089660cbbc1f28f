"""Folders of compressed shards of MDS, to be made wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from mds_files import COLUMNS, shard
from packed_files import COMPRESS

__all__ = ["BAD", "EACH", "SHARDS", "Packed"]

SHARDS, EACH = 4, 20
BAD = 2  # the shard that is damaged


class Packed:
    """A folder of compressed shards of ``EACH`` samples and its index, both of which may be made wrong.

    Args:
        folder: Where it is written.
        family: How it is compressed.
        hashes: The algorithms of the digests that the index has, of what is compressed and of what that
            becomes.
    """

    def __init__(
        self, folder: Path, family: str, *, hashes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    ) -> None:
        self.folder = folder
        self.family = family
        self._hashes = hashes
        self.entries = [self._entry(number, shard(EACH)) for number in range(SHARDS)]
        self.save()

    def path(self, number: int = BAD) -> Path:
        return self.folder / f"shard.{number:05}.mds.{self.family}"

    def replace(self, content: bytes, *, is_told: bool = True) -> None:
        """Put other bytes in place of a shard, and have the index tell their length if ``is_told``."""
        self.path().write_bytes(content)
        if is_told:
            self.entries[BAD]["zip_data"]["bytes"] = len(content)
            self.save()

    def save(self) -> None:
        (self.folder / "index.json").write_text(json.dumps({"version": 2, "shards": self.entries}))

    def _entry(self, number: int, raw: bytes) -> dict[str, Any]:
        content = COMPRESS[self.family](raw)
        self.path(number).write_bytes(content)
        names, encodings, sizes = zip(*COLUMNS, strict=True)
        files = {}
        for kind, body, algorithms in zip(("zip", "raw"), (content, raw), self._hashes, strict=True):
            hashes = {name: hashlib.new(name, body).hexdigest() for name in algorithms}
            name = self.path(number).name if kind == "zip" else f"shard.{number:05}.mds"
            files[f"{kind}_data"] = {"basename": name, "bytes": len(body), "hashes": hashes}
        return {
            **files,
            "column_encodings": encodings,
            "column_names": names,
            "column_sizes": sizes,
            "compression": self.family,
            "format": "mds",
            "hashes": [],
            "samples": EACH,
            "size_limit": 1 << 26,
            "version": 2,
        }
