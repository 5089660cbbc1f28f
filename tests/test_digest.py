"""Digests: known answers, any chunking, any buffer, and the cheapest that can be computed."""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Mapping

import google_crc32c
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.errors import StoreError
from asyncloader.formats.digest import ALGORITHMS, Verifier, extra_of, open_digest
from asyncloader.types import Buffer

CHECK = b"123456789"  # what checksums are compared by
ANSWERS = {
    "crc32": bytes.fromhex("cbf43926"),
    "crc32c": bytes.fromhex("e3069283"),
    **{
        name: hashlib.new(name, CHECK).digest()
        for name in ALGORITHMS
        if name in hashlib.algorithms_guaranteed
    },
    "xxh32": bytes.fromhex("937bad67"),
    "xxh64": bytes.fromhex("8cb841db40e6ae83"),
    "xxh3_64": bytes.fromhex("72dcb18b67a17dff"),
    **dict.fromkeys(("xxh128", "xxh3_128"), bytes.fromhex("33119477ede5dcd5e9716427681d5860")),
}


def test_every_algorithm_has_a_known_answer() -> None:
    assert set(ANSWERS) == set(ALGORITHMS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: numpy.frombuffer(b, "u1").data])
def test_known_answers_come_in_any_chunking_of_any_buffer(algorithm: str, kind: type) -> None:
    for size in (1, 4, 9):
        digest = open_digest(algorithm)
        assert digest is not None
        for at in range(0, len(CHECK), size):
            digest.update(kind(CHECK[at : at + size]))
        assert digest.digest() == ANSWERS[algorithm]


def test_the_cheapest_promised_digest_is_verified() -> None:
    promised: dict[str, bytes] = {}
    for algorithm in reversed(ALGORITHMS):
        promised[algorithm] = ANSWERS[algorithm]
        assert Verifier(promised).algorithm == algorithm


@pytest.mark.parametrize("promised", [{}, {"sha3": b"x"}, {"crc64nvme": bytes(8)}])
def test_nothing_is_verified_where_nothing_can_be(promised: Mapping[str, bytes]) -> None:
    verifier = Verifier(promised)
    assert verifier.algorithm is None
    verifier.update(b"anything")
    verifier.check("s.tar")


def test_without_its_package_crc32c_leaves_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert open_digest("crc32c") is None
    assert Verifier({name: ANSWERS[name] for name in ("crc32c", "crc32")}).algorithm == "crc32"
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert open_digest("xxh64") is None and extra_of(["md5", "xxh64"]) == "mds"


def test_crc32c_in_python_is_too_slow_to_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    assert Verifier({name: ANSWERS[name] for name in ("crc32c", "sha256")}).algorithm == "sha256"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(body=st.binary(min_size=1, max_size=200), bit=st.integers(min_value=0))
def test_every_flipped_bit_is_seen_and_both_values_are_named(algorithm: str, body: bytes, bit: int) -> None:
    def verifier() -> Verifier:
        digest = open_digest(algorithm)
        assert digest is not None
        digest.update(body)
        return Verifier({algorithm: digest.digest()})

    whole = verifier()
    whole.update(body)
    whole.check("s.tar")
    flipped = bytearray(body)
    flipped[bit // 8 % len(body)] ^= 1 << bit % 8
    damaged = verifier()
    feed(damaged, bytes(flipped), body)
    with pytest.raises(StoreError, match=f"the {algorithm} [0-9a-f]+, but [0-9a-f]+ was promised") as caught:
        damaged.check("s.tar")
    assert caught.value.shard == "s.tar"


def feed(verifier: Verifier, chunk: Buffer, other: bytes) -> None:
    assert bytes(chunk) != other
    verifier.update(chunk)


def test_crc32_is_written_as_stores_do() -> None:
    assert ANSWERS["crc32"] == zlib.crc32(CHECK).to_bytes(4, "big")
