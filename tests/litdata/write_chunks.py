"""Chunks as litdata writes them, and beside them what its own reader has of them.

Run by the Python of the peers' environment: ``write_chunks.py FOLDER``. Each data set is a folder of its own,
with ``NAME.pickle`` beside it: a list of samples, tensors as arrays of NumPy and images as their
pixels.
"""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from PIL import Image as PILImage
from PIL import ImageDraw

from litdata import StreamingDataset
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.serializers import AudioSerializer, VideoSerializer
from litdata.streaming.writer import BinaryWriter
from litdata.types import Audio, File, Image, Jpeg, JpegArray, Text, Video

SCRATCH = Path(sys.argv[1])

#: Samples of each data set, in chunks of so many.
SAMPLES, CHUNK = 46, 7

#: Serializers that would want packages for what they decode, and give the bytes if told so.
AS_BYTES = {"video": VideoSerializer(decode="bytes"), "audio": AudioSerializer(decode="bytes")}


def picture(number: int, mode: str = "RGB", size: tuple[int, int] = (17, 11)) -> Any:
    image = PILImage.new("RGB", size, (number * 5 % 256, 90, 255 - number))
    ImageDraw.Draw(image).line((0, 0, number % 17, 10), (255, number, 0), 3)
    return image.convert(mode)


def jpeg_of(number: int) -> bytes:
    """With an Exif marker: others their reader decodes by torchvision, which is not there; some turned."""
    exif = PILImage.Exif()
    exif[0x0112] = 1 + number % 8
    picture(number, "L" if number % 5 == 0 else "RGB").save(
        file := io.BytesIO(), "JPEG", exif=exif, quality=80
    )
    return file.getvalue()


def tiff_of(number: int) -> str:
    """Its path, which is all that the writer takes."""
    path = SCRATCH / f"image-{number}.tif"
    tifffile.imwrite(path, array(number, "uint16", (3, 4, 1 + number % 3)))
    return str(path)


def draw(number: int) -> np.random.Generator:
    return np.random.default_rng(number)


def array(number: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    values = draw(number).integers(0, 2 if dtype == "bool" else 100, shape)
    return values.astype(dtype)


TORCH = [
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float16",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
]
TORCH += ["bool", "uint16"]
NUMPY = [*TORCH, "uint32", "uint64"]


def tensor(number: int, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(array(number, "int64", shape)).to(getattr(torch, dtype))


#: What a sample is, by the name of the data set; and what its writer is told.
SETS: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    # Values that are rows of Arrow in dicts, and have their own serializers elsewhere.
    "scalars": (lambda i: (f"é{i}" * (i % 4), i % 3 == 0, i - 20, i / 7, bytes([i]) * (i % 9)), {}),
    "json_rows": (
        lambda i: {"text": f"ü{i}", "n": i, "x": i / 3, "ok": i % 2 == 0, "raw": bytes([i]) * i},
        {},
    ),
    "nested_rows": (
        lambda i: {"meta": {"tags": ["a"] * (i % 3), "by": {"who": f"{i}"}}, "scores": [i / 2, 1.5], "n": i},
        {},
    ),
    "rows_with_nulls": (lambda i: {"n": i, "text": None if i % 5 == 1 else f"{i}"}, {}),
    "rows_compressed": (lambda i: {"n": i, "text": f"text {i} " * 30}, {"compression": "zstd"}),
    "numpy_flat": (lambda i: {name: array(i, name, (i % 6,)) for name in NUMPY}, {}),
    "numpy": (lambda i: {name: array(i, name, (2, i % 4, 3)) for name in NUMPY}, {}),
    "tensor_flat": (lambda i: {name: tensor(i, name, (i % 6,)) for name in TORCH}, {}),
    "tensor": (
        lambda i: {**{n: tensor(i, n, (2, 1 + i % 3)) for n in TORCH}, "none": torch.tensor(i / 2)},
        {},
    ),
    "equal_shapes": (
        lambda i: {"image": array(i, "uint8", (4, 5, 3)), "x": tensor(i, "float32", (8,)), "y": i},
        {},
    ),
    "single": (lambda i: tensor(i, "int64", (i % 5, 2)), {}),
    "single_bytes": (lambda i: bytes([i]) * (i * 3), {}),
    "nested": (
        lambda i: {
            "a": (i, [array(i, "int16", (i,)), {"b": f"{i}"}]),
            "c": {"d": tensor(i, "bool", (2,)), "e": {}},
        },
        {},
    ),
    "tuple": (lambda i: (i, [tensor(i, "int32", (3,)), f"{i}"]), {}),
    "json": (
        lambda i: {
            "x": tensor(i, "int8", (1,)),
            "strings": [f"s{j}" for j in range(i % 4)],
            "ints": list(range(i % 5)),
            "floats": [j / 2 for j in range(i % 3)],
            "bools": [True, False][: i % 3],
            "records": [{"a": j, "b": None, "c": f"{j}", "d": j / 2, "e": True} for j in range(i % 3)],
            "mixed": [1, "a", None, [2, {"z": i}]],
            "deep": {"l": [[1, 2], ["x"], None]},
        },
        {},
    ),
    "files": (
        lambda i: {
            "file": File(path="blob.dat", bytes=bytes([i]) * i),
            "video": Video(path="clip.webm", bytes=b"video %d" % i),
            "audio": Audio(path="clip.wav", bytes=b"audio %d" % i),
            "text": Text(text=f"täxt {i}"),
        },
        {},
    ),
    "jpeg": (lambda i: {"jpeg": Jpeg(bytes=jpeg_of(i)), "label": i}, {}),
    "image": (lambda i: {"image": Image(path="x.jpg", bytes=jpeg_of(i)), "label": i}, {}),
    "jpeg_array": (lambda i: [JpegArray([Jpeg(bytes=jpeg_of(i + j)) for j in range(1 + i % 3)]), i], {}),
    "tifffile": (lambda i: (tiff_of(i), i), {}),
    "pil": (
        lambda i: {
            mode: picture(i, mode)
            for mode in ["1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16"]
        },
        {},
    ),
    "whole": (
        lambda i: {"x": array(i, "int64", (i,)), "s": "text " * i},
        {"compression": "zstd", "wrap": "chunk"},
    ),
    "whole_3": (lambda i: {"x": array(i, "int64", (i,))}, {"compression": "zstd:3", "wrap": "chunk"}),
    "runs": (lambda i: {"x": array(i, "int64", (i,)), "s": "text " * i}, {"compression": "zstd", "run": 3}),
    "each": (
        lambda i: {"x": array(i, "int64", (i,)), "s": "text " * i},
        {"compression": "zstd", "wrap": "sample"},
    ),
}

TOKENS: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    "tokens_tensor": (lambda i: tensor(i, "int32", (1 + i * 3 % 11,)), {}),
    "tokens_numpy": (lambda i: array(i, "uint16", (1 + i * 5 % 13,)), {}),
    "tokens_whole": (
        lambda i: tensor(i, "int64", (1 + i * 3 % 11,)),
        {"compression": "zstd", "wrap": "chunk"},
    ),
}
BLOCK = 5


def plain(value: Any) -> Any:
    """What is compared: nothing of torch, and of Pillow the pixels."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, PILImage.Image):
        return (value.mode, value.size, value.tobytes())
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return bytes(value) if isinstance(value, memoryview) else value


def write(folder: Path, make: Callable[[int], Any], options: dict[str, Any], **more: Any) -> None:
    writer = BinaryWriter(
        str(folder),
        chunk_size=CHUNK,
        compression=options.get("compression"),
        compression_level=options.get("wrap"),
        compression_batch_size=options.get("run"),
        **more,
    )
    for number in range(SAMPLES):
        writer[number] = make(number)
    writer.done()
    writer.merge()


def read(folder: Path, scratch: Path, **more: Any) -> Iterator[Any]:
    for name in folder.iterdir():  # whose compressed chunks its reader removes
        (scratch / name.name).write_bytes(name.read_bytes())
    dataset = StreamingDataset(str(scratch), **more)
    yield from map(plain, dataset)


def main(root: Path) -> None:
    warnings.simplefilter("ignore")
    for name, (make, options) in (SETS | TOKENS).items():
        folder, scratch = root / name, root / "read" / name
        scratch.mkdir(parents=True)
        loader = {"item_loader": TokensLoader(BLOCK)} if name in TOKENS else {}
        write(folder, make, options, **loader)
        if name == "files":
            loader["serializers"] = dict(AS_BYTES)
        expected = [*read(folder, scratch, **loader)]
        (root / f"{name}.pickle").write_bytes(pickle.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
