"""Data sets of MDS by ``streaming`` itself, and what it reads of them; run in the peers' environment.

``python mds_writer.py FOLDER`` writes them below the folder, and ``expected.json`` beside them: the samples
of each as ``described`` has them.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["COMPRESSIONS", "ENCODINGS", "LITTLE", "described"]

ENCODINGS = {
    "bytes": "bytes",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "int": "int",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "int8": "int8",
    "jpeg": "jpeg",
    "jpeg_as_png": "jpeg",
    "jpeg_array": "jpeg_array",
    "jpegarray": "jpegarray",
    "json": "json",
    "list_jpeg": "list[jpeg]",
    "list_pil": "list[pil]",
    "list_png": "list[png]",
    "ndarray": "ndarray",
    "ndarray_any": "ndarray",
    "ndarray_dtype": "ndarray:int32",
    "ndarray_shape": "ndarray:float32:3,4",
    "pil": "pil",
    "png": "png",
    "str": "str",
    "str_decimal": "str_decimal",
    "str_float": "str_float",
    "str_int": "str_int",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "uint8": "uint8",
}

#: Of each family one without a level, and one with.
COMPRESSIONS = ("br", "br:3", "bz2", "bz2:1", "gz", "gz:1", "snappy", "zstd", "zstd:19")

#: The columns of data sets that are of something else than encodings.
LITTLE = {"ids": "ndarray:int32", "n": "int", "text": "str"}

_SAMPLES = 60
_DTYPES = [
    *("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32"),
    "uint64",
    "int64",
    "float64",
]


def described(value: Any) -> Any:
    """A value with its type, as JSON has it."""
    if isinstance(value, dict):
        return {key: described(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [described(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return ["ndarray", value.dtype.name, value.shape, value.tobytes().hex()]
    if isinstance(value, np.generic):
        return [type(value).__name__, value.tobytes().hex()]
    if hasattr(value, "getpixel"):
        return [type(value).__name__, value.mode, value.size, value.tobytes().hex()]
    return [type(value).__name__, value.hex() if isinstance(value, bytes) else repr(value)]


def _image(rng: np.random.Generator, mode: str = "RGB") -> Any:
    from PIL import Image

    height, width = rng.integers(1, 20, 2).tolist()
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8)).convert(mode)


def _file(image: Any, format: str) -> bytes:
    out = io.BytesIO()
    image.save(out, format)
    return out.getvalue()


def _every(number: int, rng: np.random.Generator) -> dict[str, Any]:
    images = [_image(rng) for _ in range(number % 4)]
    files = [_file(_image(rng), "JPEG") for _ in range(1 + number % 3)]
    numbers = {name: np.dtype(name).type(number * 3 % 120) for name in _DTYPES}
    shape = tuple(rng.integers(1, 5, 1 + number % 3))
    return {
        **numbers,
        "bytes": rng.bytes(number * 7 % 300),
        "int": -number * 10**15,
        "jpeg": _image(rng, ("RGB", "L", "CMYK")[number % 3]),
        "jpeg_as_png": _file(_image(rng), ("PNG", "WEBP", "TIFF", "GIF", "BMP")[number % 5]),
        "jpeg_array": files,
        "jpegarray": files,
        "json": {"n": [number, None, 1e300 * number, 1 << 70], "é": "\u0001", "": {}},
        "list_jpeg": images,
        "list_pil": images,
        "list_png": images,
        "ndarray": rng.integers(0, 100, 1 + number * 11).astype(np.int64),
        "ndarray_any": rng.integers(0, 100, shape).astype(_DTYPES[number % len(_DTYPES)]),
        "ndarray_dtype": rng.integers(0, 100, (1 + number * 13, *([2] if number > 40 else []))).astype(
            np.int32
        ),
        "ndarray_shape": rng.random((3, 4), np.float32),
        "pil": _image(
            rng, ("RGB", "L", "1", "RGBA", "CMYK", "YCbCr", "I", "F", "LA", "P", "HSV")[number % 11]
        ),
        "png": _image(rng, ("RGB", "L", "1", "RGBA")[number % 4]),
        "str": "é" * number,
        "str_decimal": Decimal(number) / 7,
        "str_float": number / 7,
        "str_int": 10**number,
    }


def _little(number: int, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "ids": rng.integers(0, 1000, number % 50 + 1).astype(np.int32),
        "n": number,
        "text": f"sample {number}",
    }


def _data_sets(folder: Path) -> Iterator[Path]:
    """Write all; those to be read."""
    from streaming import CSVWriter, JSONWriter, MDSWriter

    def write(name: str, columns: dict[str, str], make: Any, seed: int = 0, **options: Any) -> Path:
        rng = np.random.default_rng(seed)
        with MDSWriter(out=str(folder / name), columns=columns, **options) as writer:
            for number in range(_SAMPLES):
                writer.write(make(number, rng))
        return folder / name

    yield write("every", ENCODINGS, _every, size_limit=60_000, hashes=["sha1", "xxh64"])
    for number, compression in enumerate(COMPRESSIONS):
        options = {"compression": compression, "size_limit": 2000, "hashes": ["md5", "xxh3_64"]}
        yield write(f"packed-{number}", LITTLE, _little, number, **options)
    yield write("parts/train", LITTLE, _little, 100, size_limit=2000, hashes=["sha256"])
    yield write("parts/val", LITTLE, _little, 101, size_limit=None)
    write("pickles", {"u": "uint8", "p": "pkl"}, lambda number, rng: {"u": number, "p": {number}})
    for name, writer_type in (("json", JSONWriter), ("csv", CSVWriter)):
        with writer_type(out=str(folder / name), columns={"n": "int"}) as writer:
            writer.write({"n": 1})


def main(folder: Path) -> None:
    from streaming import StreamingDataset

    expected = {}
    for number, path in enumerate(_data_sets(folder)):
        read = StreamingDataset(
            remote=str(path), local=str(folder / f"local-{number}"), batch_size=1, shuffle=False
        )
        samples = [read[index] for index in range(len(read))]
        # Of images that are opened late, now.
        expected[path.relative_to(folder).as_posix()] = [described(sample) for sample in samples]
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
