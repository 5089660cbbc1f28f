"""Fields: what becomes what, and what stays bytes."""

from __future__ import annotations

import builtins
import io
import pickle
from typing import Any

import numpy
import pytest
from PIL import Image

from asyncloader.errors import FormatError
from asyncloader.formats.fields import decode_sample, default_handlers


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    numpy.lib.format.write_array(file, numpy.asanyarray(array), **options)
    return file.getvalue()


def image(form: str, mode: str = "RGB", color: Any = (200, 10, 30)) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (5, 3), color).save(file, form)
    return file.getvalue()


class Trap:
    """Unpickling it raises where nobody expects it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


def test_fields_are_decoded_by_their_last_extension() -> None:
    sample = {
        "__key__": "a", "__url__": b"{}", "json": b'{"x": [1]}', "en.txt": "ü".encode(), "cls": b" 7\n",
        "wav": b"RIFF", "n.count": b"-3", "other.txt": "already text",
    }  # fmt: skip
    decoded = decode_sample(sample)
    assert list(decoded) == list(sample)
    assert decoded == sample | {"json": {"x": [1]}, "en.txt": "ü", "cls": 7, "n.count": -3}
    assert sample["cls"] == b" 7\n", "the sample itself was changed"


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(6, dtype="<i8").reshape(2, 3), numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
        numpy.float32(3), numpy.zeros((0, 4), ">u2"), numpy.array(["ab", "c"]), numpy.zeros(3, "V0"),
        numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
    ids=str,
)  # fmt: skip
def test_arrays_read_back_writable(array: Any) -> None:
    read = decode_sample({"npy": npy(array)})["npy"]
    assert (read.shape, read.dtype) == (array.shape, array.dtype)
    numpy.testing.assert_array_equal(read, array)
    assert read.flags.writeable


def test_arrays_of_objects_are_refused_unread() -> None:
    body = npy(numpy.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError, match="an array of objects is a pickle") as caught:
        decode_sample({"__key__": "k", "x.npy": body})
    assert "field 'x.npy' of sample 'k'" in str(caught.value)


def test_arrays_that_lie_about_their_size_are_refused_before_memory_is_taken() -> None:
    body = npy(numpy.zeros((3, 4)))
    for shape in (b"(3, 5)", b"(9999999999, 9999999)", b"(-3, -4)", b"(1, 1)"):
        with pytest.raises(FormatError, match=r"'npy'"):
            decode_sample({"npy": body.replace(b"(3, 4), }" + b" " * (len(shape) - 6), shape + b", }")})
    for length in range(len(body)):
        with pytest.raises(FormatError):
            decode_sample({"npy": body[:length]})
    header = b"{'descr': '|S0', 'fortran_order': False, 'shape': (17179869184,), }"
    with pytest.raises(FormatError, match="does not fit the 0 bytes"):
        decode_sample({"npy": b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header})


@pytest.mark.parametrize("extension", ["pkl", "pyd", "pickle", "pt", "pth", "npz", "x.pkl"])
def test_pickles_are_never_loaded(extension: str) -> None:
    body = pickle.dumps(Trap())
    assert decode_sample({extension: body}) == {extension: body}


@pytest.mark.parametrize("extension", default_handlers)
def test_a_pickle_under_another_extension_is_not_loaded(extension: str) -> None:
    with pytest.raises(FormatError):
        decode_sample({extension: pickle.dumps(Trap())})


@pytest.mark.parametrize(
    ("extension", "form"),
    [("jpg", "JPEG"), ("jpeg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"), ("bmp", "BMP"), ("gif", "GIF"),
     ("ppm", "PPM"), ("jpg", "PNG")],
)  # fmt: skip
def test_images_become_rgb_arrays(extension: str, form: str) -> None:
    pixels = decode_sample({extension: image(form)})[extension]
    assert (pixels.shape, pixels.dtype) == ((3, 5, 3), numpy.uint8)
    assert pixels.flags.writeable
    assert abs(pixels.astype(int) - (200, 10, 30)).max() < 12


@pytest.mark.parametrize(
    ("mode", "color"), [("L", 9), ("RGBA", (9, 9, 9, 0)), ("LA", (9, 1)), ("P", 0), ("1", 1)]
)
def test_images_of_other_modes_become_rgb_too(mode: str, color: Any) -> None:
    assert decode_sample({"png": image("PNG", mode, color)})["png"].shape == (3, 5, 3)


def test_images_of_16_bits_are_refused_rather_than_clipped() -> None:
    with pytest.raises(FormatError, match="more than 8 bits"):
        decode_sample({"png": image("PNG", "I;16", 40_000)})


def test_images_that_are_cut_or_of_another_kind_are_refused() -> None:
    body = image("PNG")
    for broken in (b"", body[: len(body) // 2], b"%!PS-Adobe-3.0 EPSF-3.0\n", image("TIFF")):
        with pytest.raises(FormatError, match="field 'png'"):
            decode_sample({"png": broken})


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_pillow(name: str, *rest: Any, **options: Any) -> Any:
        if name == "PIL":
            raise ImportError("No module named 'PIL'")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ImportError, match=r"pip install asyncloader\[images\]"):
        decode_sample({"png": b""})


@pytest.mark.parametrize(
    ("field", "body"), [("json", b"{"), ("txt", b"\xff"), ("cls", b"one"), ("cls", b"9" * 5000), ("npy", b"")]
)
def test_a_fault_names_field_and_key(field: str, body: bytes) -> None:
    with pytest.raises(FormatError, match=f"field '{field}' of sample 'd/k' cannot be decoded") as caught:
        decode_sample({"__key__": "d/k", field: body})
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("body", "found"), [(b"<html><p>", r"9 bytes that begin with b'<html><p'"), (b"", "0 bytes")]
)
def test_a_fault_of_an_image_says_what_the_bytes_are(body: bytes, found: str) -> None:
    with pytest.raises(FormatError, match=rf"no image of JPEG, .*, but {found}$"):
        decode_sample({"__key__": "k", "jpg": body})


def test_a_handler_of_the_users_keeps_its_own_exception() -> None:
    def fail(body: bytes) -> None:
        raise ZeroDivisionError

    handlers = {**default_handlers, "wav": fail, "cls": bytes.decode}
    with pytest.raises(ZeroDivisionError) as caught:
        decode_sample({"__key__": "k", "wav": b""}, handlers)
    assert caught.value.__notes__ == ["while decoding field 'wav' of sample 'k'"]
    assert decode_sample({"cls": b"7"}, handlers) == {"cls": "7"}


@pytest.mark.parametrize("extension", ["png", "jpg", "webp", "gif", "bmp"])
@pytest.mark.parametrize("path", [{}, {"path": None}, {"path": "a.wav"}])
def test_a_file_of_hugging_face_is_an_image_by_its_bytes(extension: str, path: dict[str, Any]) -> None:
    out = io.BytesIO()
    Image.new("RGB", (5, 4), (10, 20, 30)).save(out, {"jpg": "jpeg"}.get(extension, extension))
    decoded = decode_sample({"image": {"bytes": out.getvalue(), **path}, "label": 3})
    assert decoded["image"].shape == (4, 5, 3) and decoded["label"] == 3


def test_other_files_of_hugging_face_go_by_their_paths_and_stay_where_nobody_knows_them() -> None:
    sound = {"bytes": b"RIFF....WAVE", "path": "a.WAV"}
    assert decode_sample({"audio": sound}) == {"audio": sound}
    assert decode_sample({"audio": sound}, {"wav": len}) == {"audio": 12}
    for other in (
        {"bytes": b"x"},
        {"bytes": None, "path": "a.png"},
        {"bytes": b"x", "path": "a.txt", "n": 1},
    ):
        assert decode_sample({"x": other}) == {"x": other}
    with pytest.raises(FormatError, match=r"field 'x' .* cannot be decoded"):
        decode_sample({"x": {"bytes": b"no png", "path": "a.png"}})
