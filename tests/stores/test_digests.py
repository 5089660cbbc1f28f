from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from asyncloader.stores.http.answers import digests_of

CONTENT = b"the object"
DIGESTS = {name: hashlib.new(name, CONTENT).digest() for name in ("md5", "sha1", "sha256", "sha512")} | {
    "crc32": b"\x01\x02\x03\x04",
    "crc32c": b"\x05\x06\x07\x08",
}
TEXT = {name: b64encode(digest).decode() for name, digest in DIGESTS.items()}


def found(*headers: tuple[str, str], whole: bool = True) -> set[str]:
    """The algorithms found, whose digests are the object's."""
    digests = digests_of(CIMultiDict(headers), whole=whole)
    assert all(DIGESTS[name] == digest for name, digest in digests.items())
    return set(digests)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("headers", "names"),
    [
        ([], set()),
        ([("x-goog-hash", f"crc32c={TEXT['crc32c']},md5={TEXT['md5']}")], {"crc32c", "md5"}),
        (
            [("X-Goog-Hash", f"crc32c={TEXT['crc32c']}"), ("X-Goog-Hash", f"md5={TEXT['md5']}")],
            {"crc32c", "md5"},
        ),
        ([("x-goog-hash", "sha3=unknown")], set()),
        ([("x-ms-blob-content-md5", TEXT["md5"])], {"md5"}),
        ([("Repr-Digest", f"sha-256=:{TEXT['sha256']}:")], {"sha256"}),
        (
            [("Repr-Digest", f"sha-512=:{TEXT['sha512']}:, sha-256=:{TEXT['sha256']}:;q=1, md5=:x:")],
            {"sha256", "sha512"},
        ),
        ([("Content-Digest", f"sha-256=:{TEXT['sha256']}:")], set()),
        ([("x-amz-checksum-crc32", TEXT["crc32"]), ("x-amz-checksum-type", "FULL_OBJECT")], {"crc32"}),
        ([("x-amz-checksum-crc64nvme", "AAAAAAAAAAA="), ("x-amz-checksum-type", "FULL_OBJECT")], set()),
    ],
)
def test_digests_of_the_object_come_with_any_part_of_it(
    headers: list[tuple[str, str]], names: set[str], whole: bool
) -> None:
    assert found(*headers, whole=whole) == names


@pytest.mark.parametrize("name", ["crc32", "crc32c", "sha1", "sha256"])
def test_digests_of_the_body_are_the_objects_if_the_body_is_whole(name: str) -> None:
    header = (f"x-amz-checksum-{name}", TEXT[name])
    assert found(header) == {name} and found(header, whole=False) == set()
    assert found(("Content-MD5", TEXT["md5"])) == {"md5"}
    assert found(("Content-MD5", TEXT["md5"]), whole=False) == set()


def test_digests_of_digests_are_ignored() -> None:
    assert found(("x-amz-checksum-sha256", f"{TEXT['sha256']}-3")) == set()
    assert found(("x-amz-checksum-crc32", TEXT["crc32"]), ("x-amz-checksum-type", "COMPOSITE")) == set()


@pytest.mark.parametrize(
    "sign",
    [
        ("x-goog-stored-content-encoding", "gzip"),
        ("Content-Encoding", "gzip"),
        ("Warning", "214 UploadServer gunzipped"),
    ],
)
def test_digests_of_another_form_of_the_object_are_ignored(sign: tuple[str, str]) -> None:
    digest = ("x-goog-hash", f"md5={TEXT['md5']}")
    assert found(digest, sign) == set()
    assert found(digest, ("x-goog-stored-content-encoding", "identity"), ("Warning", "110 stale")) == {"md5"}


def test_hexadecimal_is_read_as_well() -> None:
    assert found(("Content-MD5", DIGESTS["md5"].hex())) == {"md5"}
    assert found(("x-amz-checksum-crc32c", DIGESTS["crc32c"].hex())) == {"crc32c"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Content-MD5", ""),
        ("Content-MD5", "not base64!"),
        ("Content-MD5", TEXT["sha1"]),
        ("x-goog-hash", "crc32c="),
        ("x-goog-hash", "md5"),
        ("x-amz-checksum-sha256", TEXT["sha256"][:-4]),
        ("Repr-Digest", f"sha-256={TEXT['md5']}"),
    ],
)
def test_a_digest_that_cannot_be_read_is_an_error_and_not_no_check(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name.lower()):
        found((name, value))


def test_digests_that_contradict_each_other_are_an_error() -> None:
    other = b64encode(hashlib.md5(b"another").digest()).decode()
    with pytest.raises(ValueError, match="different md5"):
        found(("Content-MD5", TEXT["md5"]), ("x-goog-hash", f"md5={other}"))


@given(st.sampled_from(["Content-MD5", "x-goog-hash", "x-amz-checksum-sha1", "Repr-Digest"]), st.text())
def test_no_value_breaks_the_reading(name: str, value: str) -> None:
    try:
        digests_of({name: value}, whole=True)
    except ValueError as error:
        assert name.lower() in str(error)
