"""LitData, which reads chunks of its own, written beforehand; over HTTP with a downloader over requests."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import torch
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.downloader import Downloader, register_downloader
from litdata.streaming.resolver import Dir
from litdata.streaming.writer import BinaryWriter

from . import over_torch
from .corpora import Corpus
from .given import BATCH, TINY_BATCH, Source, decode

__all__ = ["images", "parquet", "tar", "tiny_tar", "write"]


class FromServer(Downloader):
    """LitData has none for plain HTTP: a file at a time, as its downloader for S3 does."""

    def download_file(self, remote_filepath: str, local_filepath: str) -> None:
        if os.path.exists(local_filepath):
            return
        draft = self._temp_download_path(local_filepath)
        with requests.get(remote_filepath, stream=True, timeout=60) as response, open(draft, "wb") as file:
            response.raise_for_status()
            shutil.copyfileobj(response.raw, file, 1 << 20)
        self._publish_file(draft, local_filepath)


register_downloader("http://", FromServer)


class Decoded(StreamingDataset):
    """Images, decoded as they are taken out."""

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return decode(super().__getitem__(index))


def tar(source: Source) -> Any:
    return _loader(source, lambda samples: [sample["bin"] for sample in samples])


def images(source: Source) -> Any:
    return _loader(source, None, kind=Decoded)


def parquet(source: Source) -> Any:
    return _loader(source, _pad)


def tiny_tar(source: Source) -> Any:
    return _loader(source, lambda samples: [(sample["num"], sample["cls"]) for sample in samples], TINY_BATCH)


def _pad(samples: list[Any]) -> torch.Tensor:
    return over_torch.pad([torch.from_numpy(sample["tokens"].copy()) for sample in samples])


def _loader(
    source: Source, collate: Callable[[list[Any]], Any] | None, batch: int = BATCH, *, kind: Any = None
) -> Any:
    place: Any = f"{source.base}/chunks"
    if place.startswith("http"):
        place = Dir(path=None, url=place)
    dataset = (kind or StreamingDataset)(place, cache_dir=source.scratch)
    return StreamingDataLoader(dataset, batch_size=batch, num_workers=source.workers, collate_fn=collate)


def write(folder: Path) -> None:
    """The samples of a corpus once more, as chunks of some 32 MB."""
    corpus = Corpus(**json.loads((folder / "corpus.json").read_text()))
    writer = BinaryWriter(str(folder / "chunks"), chunk_bytes="32MB")
    samples = (
        _SAMPLES[corpus.kind](sample)
        for name in corpus.names()
        for sample in _READ[corpus.kind](f"{folder}/{name}")
    )
    for number, sample in enumerate(samples):
        writer[number] = sample
    writer.done()
    writer.merge()


_READ: dict[str, Callable[[str], Any]] = {
    "bodies": over_torch.read_bodies,
    "images": over_torch.read_pairs,
    "tokens": over_torch.read_parquet,
    "tiny tar": over_torch.read_pairs,
}
_SAMPLES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "bodies": lambda body: {"bin": body},
    "images": lambda pair: {"jpg": pair[0], "cls": pair[1]},
    "tokens": lambda sequence: {"tokens": sequence.numpy()},
    "tiny tar": lambda pair: {"num": pair[0], "cls": pair[1]},
}

if __name__ == "__main__":
    write(Path(sys.argv[1]))
