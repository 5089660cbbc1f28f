"""What every loader is given: where its samples are, and the work that all of them do in the same way."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BATCH", "TINY_BATCH", "Source", "decode", "keep"]

BATCH, TINY_BATCH = 64, 256


@dataclass(frozen=True)
class Source:
    """Where a pass finds its samples, and how it is to read them.

    Attributes:
        base: A folder or a URL, without a slash at the end.
        folder: Where the same is on disk.
        names: The shards there, in order.
        samples: How many samples they have.
        workers: Worker processes.
        threads: Threads that decode, where there is something to decode.
        scratch: An empty folder, for this pass alone.
    """

    base: str
    folder: str
    names: tuple[str, ...]
    samples: int
    workers: int
    threads: int
    scratch: str

    @classmethod
    def from_json(cls, text: str) -> Source:
        found = json.loads(text)
        return cls(**{**found, "names": tuple(found["names"])})

    @property
    def urls(self) -> list[str]:
        return [f"{self.base}/{name}" for name in self.names]


def keep(samples: list[Any]) -> list[Any]:
    """No collation: the list as it is."""
    return samples


def decode(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A JPEG and its number, as an image of 224 by 224 pixels and an integer."""
    from PIL import Image

    with Image.open(io.BytesIO(sample["jpg"])) as image:
        pixels = image.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
    return {"image": np.array(pixels), "number": int(sample["cls"])}
