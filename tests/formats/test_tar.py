"""Tar decoding: what is read, in which chunks, from where, and what is refused."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from typing import Any

import pytest
from examples_drawn import examples
from feeding import (
    END,
    assert_any_chunking_equal,
    blocks_of,
    cut,
    limited,
    make_tar,
    outcome,
    padded,
    pax_header,
    pax_record,
    raw_header,
    samples_of,
    with_checksum,
)
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.errors import FormatError
from asyncloader.formats import open_decoder
from asyncloader.formats.tar import TarDecoder
from asyncloader.formats.tar_layout import parse_header

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}

SMALL = make_tar(
    [("a.txt", b"one"), ("a.cls", b"1"), ("d/b.txt", b"x" * 600), ("d/b.seg.PNG", b""), ("c.txt", b"three")]
)
SMALL_SAMPLES = [
    {"__key__": "a", "txt": b"one", "cls": b"1"},
    {"__key__": "d/b", "txt": b"x" * 600, "seg.png": b""},
    {"__key__": "c", "txt": b"three"},
]


def grouped_by_tarfile(archive: bytes) -> list[dict[str, Any]]:
    """The samples as an independent reader sees them."""
    samples: list[dict[str, Any]] = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            folder, slash, base = member.name.rpartition("/")
            stem, _, field = base.partition(".")
            if not member.isreg() or not stem or not field:
                continue
            body = members.extractfile(member)
            assert body is not None
            key = folder + slash + stem
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key})
            samples[-1][field.lower()] = body.read()
    return samples


def refused(archive: bytes, **limits: int) -> FormatError:
    """The error, the same in any chunking, of an archive that must not be read."""
    _, _, fault = assert_any_chunking_equal(limited(TarDecoder, **limits), archive, (512,))
    assert fault is not None, "read without an error"
    with pytest.raises(FormatError) as caught:
        samples_of(limited(TarDecoder, **limits)(), archive)
    return caught.value


def test_adjacent_members_with_one_key_are_one_sample() -> None:
    samples, _, fault = assert_any_chunking_equal(TarDecoder, SMALL, (3, 700))
    assert samples == SMALL_SAMPLES
    assert fault is None


def test_bodies_are_plain_bytes_in_any_chunking() -> None:
    for sizes in ((len(SMALL),), (1,), (300,)):
        for sample in samples_of(TarDecoder(), *cut(SMALL, sizes)):
            assert all(type(value) is bytes for field, value in sample.items() if field != "__key__")


def test_other_buffers_than_bytes_are_taken() -> None:
    half = len(SMALL) // 2
    assert samples_of(TarDecoder(), bytearray(SMALL[:half]), memoryview(SMALL)[half:]) == SMALL_SAMPLES


def test_a_buffer_may_be_reused_after_its_feed() -> None:
    decoder, samples, buffer = TarDecoder(), [], bytearray(100)
    for piece in cut(SMALL, (100,)):
        buffer[: len(piece)] = piece
        samples += [s for block in decoder.feed(memoryview(buffer)[: len(piece)]) for s in block.rows()]
    assert samples + [s for block in decoder.finish() for s in block.rows()] == SMALL_SAMPLES


_PART = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
_NAMES = st.builds(
    lambda folders, stem, field, repeat: "/".join([*folders, stem * repeat]) + "." + field,
    st.lists(_PART.filter(lambda part: part.strip(".")), max_size=4),
    _PART.map(lambda part: part.replace(".", "_")),
    _PART.filter(lambda part: part == part.lower()),
    st.sampled_from((1, 1, 3, 20)),
)


@examples(60)
@given(
    st.lists(st.tuples(_NAMES, st.binary(max_size=1500)), max_size=8, unique_by=lambda m: m[0].lower()),
    st.sampled_from(("gnu", "pax")),
    st.lists(st.integers(1, 2000), min_size=1, max_size=4),
)
def test_gnu_and_pax_archives_read_as_by_tarfile(
    members: list[tuple[str, bytes]], form: str, sizes: list[int]
) -> None:
    archive = make_tar(members, FORMATS[form])
    expected = grouped_by_tarfile(archive)
    assert samples_of(TarDecoder(), *cut(archive, sizes)) == expected
    assert samples_of(TarDecoder(), archive) == expected


@examples(30)
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"([a-z0-9]{1,30}/){0,5}[a-z0-9]{1,30}\.[a-z]{1,5}", fullmatch=True),
            st.binary(max_size=1500),
        ),
        max_size=8,
        unique_by=lambda m: m[0],
    )
)
def test_ustar_archives_with_prefixes_read_as_by_tarfile(members: list[tuple[str, bytes]]) -> None:
    archive = make_tar(members)
    assert samples_of(TarDecoder(), archive) == grouped_by_tarfile(archive)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("length", [90, 99, 100, 101, 155, 200, 255, 256, 257, 3000])
def test_names_around_every_field_limit_are_whole(form: str, length: int) -> None:
    name = ("d" * 40 + "/") * (length // 60)
    name += "k" * (length - len(name) - 4) + ".txt"
    if form == "ustar" and (length > 255 or "/" not in name[-101:] or len(name) - name.find("/") < 3):
        pytest.skip("ustar has no room for it")
    try:
        archive = make_tar([(name, b"body")], FORMATS[form])
    except ValueError:
        pytest.skip("ustar cannot split this name")
    assert samples_of(TarDecoder(), archive) == [{"__key__": name[:-4], "txt": b"body"}]


def test_long_unicode_names_are_whole() -> None:
    name = "ü" * 200 + "/" + "漢字" * 60 + ".tXt"
    for form in ("gnu", "pax"):
        assert samples_of(TarDecoder(), make_tar([(name, b"1")], FORMATS[form]))[0]["txt"] == b"1"


def test_undecodable_names_stay_different() -> None:
    archive = raw_header(b"\xff.txt") + raw_header(b"\xfe.txt") + END
    assert [sample["__key__"] for sample in samples_of(TarDecoder(), archive)] == ["\udcff", "\udcfe"]


@pytest.mark.parametrize("form", FORMATS)
def test_only_regular_files_are_fields(form: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form]) as archive:

        def add(name: str, kind: bytes, body: bytes = b"", link: str = "") -> None:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(body), link
            archive.addfile(member, io.BytesIO(body))

        add("a.txt", tarfile.REGTYPE, b"1")
        add("dir.d", tarfile.DIRTYPE)
        add("a.cls", tarfile.CONTTYPE, b"2")
        add("b.sym", tarfile.SYMTYPE, link="a.txt" if form == "ustar" else "l" * 300)
        add("b.lnk", tarfile.LNKTYPE, link="a.txt")
        add("b.fifo", tarfile.FIFOTYPE)
        add("b.chr", tarfile.CHRTYPE)
        add("b.blk", tarfile.BLKTYPE)
        add("b.vol", b"V", b"v" * 700)
        add("README", tarfile.REGTYPE, b"no dot")
        add(".hidden.txt", tarfile.REGTYPE, b"dot file")
        add("dot.", tarfile.REGTYPE, b"no field")
        add("a.v7", tarfile.AREGTYPE, b"3")
    samples, _, fault = assert_any_chunking_equal(TarDecoder, out.getvalue())
    assert samples == [{"__key__": "a", "txt": b"1", "cls": b"2", "v7": b"3"}]
    assert fault is None


def test_v7_headers_are_read() -> None:
    archive = (
        raw_header(b"d.d/", 0, b"\0", b"") + raw_header(b"d.d/a.txt", b"         4 ", b"\0", b"")
        + padded(b"body") + END
    )  # fmt: skip
    assert samples_of(TarDecoder(), archive) == [{"__key__": "d.d/a", "txt": b"body"}]


def test_old_gnu_times_are_not_taken_for_a_prefix() -> None:
    archive = raw_header(b"a.txt", 0, magic=b"ustar  \0", b345=b"01234567012\0") + END
    assert samples_of(TarDecoder(), archive) == [{"__key__": "a", "txt": b""}]


def test_base_256_sizes_are_read() -> None:
    archive = raw_header(size=b"\x80" + (4).to_bytes(11, "big")) + padded(b"body") + END
    assert samples_of(TarDecoder(), archive) == [{"__key__": "a", "txt": b"body"}]
    assert parse_header(raw_header(size=b"\x80" + (1 << 40).to_bytes(11, "big")))[1] == 1 << 40


def test_headers_with_hardly_a_zero_have_a_checksum_all_the_same() -> None:
    # Their sum may be more than that which is worked out in one go can be.
    header = bytearray(with_checksum(raw_header(b"\xc3\xbf" * 46 + b"/b.txt", magic=b"ustar\x0000")))
    header[157:257] = header[345:500] = b""
    header[157:157] = b"\xff" * 100  # the target of a link, which this is none
    header[345:345] = b"\xff" * 155  # the prefix
    block = with_checksum(bytes(header))
    assert block.count(0) < 256 and sum(block) > 65521
    assert len(samples_of(TarDecoder(), block + END)) == 1
    assert "checksum" in str(refused(block[:400] + b"\xfe" + block[401:] + END))


def test_signed_checksums_are_accepted() -> None:
    block = bytearray(raw_header("ü.txt".encode()))
    block[148:156] = b"        "
    signed = sum(byte - 256 if byte > 127 else byte for byte in block)
    block[148:156] = b"%06o\0 " % signed
    assert samples_of(TarDecoder(), bytes(block) + END) == [{"__key__": "ü", "txt": b""}]


@pytest.mark.parametrize("field", [b"%06o\0 ", b"%07o\0", b" %05o \0", b"%06o  ", b"%06o\0x"])
def test_checksums_in_the_styles_of_old_writers_are_accepted(field: bytes) -> None:
    block = raw_header()
    written = field % (sum(block[:148]) + 256 + sum(block[156:]))
    archive = block[:148] + written + block[156:] + END
    assert samples_of(TarDecoder(), archive)[0]["txt"] == b""


@pytest.mark.parametrize("field", [b"7 %05o\0", b"0o%05o\0", b"-%06o\0", b"%06o\n\0", b"\x80" + bytes(7)])
def test_checksums_that_are_no_numbers_are_refused(field: bytes) -> None:
    block = raw_header()
    written = field % (sum(block[:148]) + 256 + sum(block[156:])) if b"%" in field else field
    assert "checksum" in str(refused(block[:148] + written + block[156:] + END))


# What a tar of many small members may have between them, with the number of the member for its name.
_BETWEEN = {
    "gnu": lambda n: raw_header(b"%04d.gnu" % n, 1, magic=b"ustar  \0", b345=b"01234567012\0") + padded(b"g"),
    "prefix": lambda n: raw_header(b"%04d.pre" % n, 1, b345=b"folder\0") + padded(b"p"),
    "v7": lambda n: raw_header(b"%04d.v7" % n, 1, b"\0", b"") + padded(b"7"),
    "pax": lambda n: pax_header((b"size", b"600")) + raw_header(b"%04d.pax" % n, 0) + padded(b"x" * 600),
    "other numbers": lambda n: raw_header(b"%04d.num" % n, b"         3 ") + padded(b"odd"),
    "folder": lambda n: raw_header(b"%04d.d/" % n, 0, b"5"),
    "no field": lambda n: raw_header(b"README", 9) + padded(b"read this"),
    "tar in tar": lambda n: raw_header(b"%04d.tar" % n, len(SMALL)) + SMALL,
    "bytes behind the name": lambda n: raw_header(b"%04d.end\0x" % n, 1) + padded(b"e"),
    "not UTF-8": lambda n: raw_header(b"%04d\xff.txt" % n, 1) + padded(b"u"),
    "same again": lambda n: 2 * raw_header(b"%04d.dup" % n),
    "wrong checksum": lambda n: raw_header(b"%04d.sum" % n).replace(b"%04d" % n, b"%04d" % (n + 1)),
    "wrong size": lambda n: raw_header(b"%04d.size" % n, b"0000000008\0\0"),
    "zeros": lambda n: bytes(512),
}


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(sorted(_BETWEEN))), max_size=4),
    st.integers(0, 40),
    st.integers(1, 3),
    st.sampled_from((512, 4096, 20_480, 30_001)),
)
def test_many_members_read_as_one_by_one(
    odd: list[tuple[int, str]], last: int, fields: int, size: int
) -> None:
    archive = b""
    for count, what in [*odd, (last, "")]:
        for _ in range(count):
            number = archive.count(b"ustar")
            for field in range(fields):
                body = b"%d" % number * (number % 200)
                archive += raw_header(b"%04d.F%d" % (number, field), len(body)) + padded(body)
        archive += _BETWEEN[what](archive.count(b"ustar")) if what else END
    # A chunk of a block has no room for many.
    one_by_one = outcome(TarDecoder(), cut(archive, (512,)))
    assert outcome(TarDecoder(), [archive]) == one_by_one
    assert outcome(TarDecoder(), cut(archive, (size,))) == one_by_one
    small = limited(TarDecoder, most_sample_bytes=3000)
    assert outcome(small(), [archive]) == outcome(small(), cut(archive, (512,)))


# -- PAX ------------------------------------------------------------------------------------------


def test_pax_path_and_size_replace_the_header() -> None:
    archive = (
        pax_header((b"mtime", b"1.5"), (b"path", "ü/k.txt".encode()), (b"size", b"4"))
        + raw_header(b"short.bin", 0) + padded(b"body") + raw_header(b"b.txt", 1) + padded(b"2") + END
    )  # fmt: skip
    samples, _, _ = assert_any_chunking_equal(TarDecoder, archive)
    assert samples == [{"__key__": "ü/k", "txt": b"body"}, {"__key__": "b", "txt": b"2"}]


def test_pax_sizes_above_8_gib_are_skipped_by_their_full_length() -> None:
    size = (9 << 30) + 1
    head = pax_header((b"size", b"%d" % size)) + raw_header(b"no-field", 0)
    decoder = TarDecoder()
    assert list(decoder.feed(head)) == []
    assert list(decoder.feed(b"z" * 4096)) == [], "the skipped body was taken for headers"
    with pytest.raises(FormatError, match="within a member"):
        list(decoder.finish())


def test_a_member_above_the_limit_is_refused_at_its_header() -> None:
    head = pax_header((b"size", b"%d" % (9 << 30))) + raw_header(b"a.bin", 0)
    with pytest.raises(FormatError, match="over the most of 4294967296 bytes") as caught:
        list(TarDecoder().feed(head))
    assert caught.value.offset == 1024
    assert "over the most of 700 bytes" in str(refused(SMALL, most_sample_bytes=700))


def test_a_sample_of_many_members_is_bounded_too() -> None:
    archive = make_tar([(f"a.{index}", b"") for index in range(20)])
    assert "over the most of" in str(refused(archive, most_sample_bytes=19 * 512))
    assert len(samples_of(limited(TarDecoder, most_sample_bytes=20 * 512)(), archive)[0]) == 21


def test_a_global_header_that_names_nothing_keeps_positions() -> None:
    archive = pax_header((b"comment", b"by git archive"), kind=b"g") + SMALL
    samples, positions, _ = outcome(TarDecoder(), [archive])
    assert samples == SMALL_SAMPLES
    assert all("byte" in position for position in positions)


def test_sparse_members_are_refused() -> None:
    old = raw_header(
        b"a.bin", 512, b"S", b"ustar  \0", b386=b"%011o\0%011o\0" % (0, 512), b483=b"%011o\0" % 4096
    )
    pax = pax_header((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9"))
    for head in (old, pax + raw_header(b"a.bin", 512)):
        error = refused(head + bytes(512) + END)
        assert "'a.bin' is stored as a sparse file" in str(error)
        assert "without --sparse" in str(error) and error.sample == 0


@pytest.mark.parametrize("key", [b"path", b"size", b"GNU.sparse.realsize", b"GNU.sparse.\xff"])
def test_a_global_header_about_one_member_is_refused(key: bytes) -> None:
    archive = pax_header((key, b"3"), kind=b"g") + raw_header(b"a.txt") + padded(b"abc") + END
    assert "in a global header" in str(refused(archive))


@pytest.mark.parametrize(
    "body",
    [
        b"0 path=a.txt\n", b"-5 path=a.txt\n", b"00 a=\n", b"3 a\n", b"4 a\n", b"99 path=a.txt\n",
        b"13 path=a.txtX", b"path=a.txt\n", b"13path=a.txt\n", b"+13 path=a.txt", b"1_3 path=a.txt\n",
        b"9" * 40 + b" a=b\n", b"6 a=b\nX", b"5 =b\n", b"\n", b" \n",
    ],
)  # fmt: skip
def test_wrong_pax_record_lengths_are_refused_and_do_not_loop(body: bytes) -> None:
    archive = raw_header(b"pax", len(body), b"x") + padded(body) + raw_header() + END
    assert "PAX record" in str(refused(archive))


@pytest.mark.parametrize("value", [b"-1", b"+1", b"1_0", b" 1", b"1e3", b"9" * 19, b"9" * 5000, b"\xb2"])
def test_pax_sizes_that_are_no_numbers_are_refused(value: bytes) -> None:
    assert "PAX size" in str(refused(pax_header((b"size", value)) + raw_header() + END))


def test_pax_padding_that_was_counted_in_is_tolerated() -> None:
    body = pax_record(b"path", b"p.txt") + bytes(7)
    archive = raw_header(b"pax", len(body), b"x") + padded(body) + raw_header() + END
    assert samples_of(TarDecoder(), archive) == [{"__key__": "p", "txt": b""}]


@pytest.mark.parametrize("kind", [b"x", b"X", b"g", b"L", b"K"])
def test_extension_bodies_above_a_mebibyte_are_refused_unread(kind: bytes) -> None:
    with pytest.raises(FormatError, match="at most 1048576"):
        list(TarDecoder().feed(raw_header(b"pax", (1 << 20) + 1, kind)))


def test_endless_names_are_refused() -> None:
    name = b"n" * 70_000 + b".txt"
    assert "70004 bytes" in str(refused(pax_header((b"path", name)) + raw_header() + END))
    longlink = raw_header(b"././@LongLink", len(name), b"L") + padded(name)
    assert "70004 bytes" in str(refused(longlink + raw_header() + END))


def test_names_that_readers_would_read_differently_are_refused() -> None:
    longlink = raw_header(b"././@LongLink", 6, b"L") + padded(b"l.txt\0")
    pax = pax_header((b"path", b"p.txt"))
    assert "both" in str(refused(longlink + pax + raw_header() + END))
    assert "two 'x'" in str(refused(pax + pax + raw_header() + END))
    body = pax_record(b"size", b"7")  # Solaris has another typeflag for the same header
    solaris = raw_header(b"pax", len(body), b"X") + padded(body)
    assert "two 'x'" in str(refused(pax + solaris + raw_header() + END))
    assert "expected a name" in str(refused(pax_header((b"path", b"p\0.txt")) + raw_header() + END))


def test_an_extension_without_a_member_is_refused() -> None:
    assert "without a member" in str(refused(pax_header((b"path", b"p.txt")) + END))


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size",
    [b"\xff" * 12, b"\xc0" + bytes(11), b"-0000000001\0", b"0000000008\0\0", b"000000x0000\0", b"1 2\0",
     b"\x81" + bytes(11), b"0o17\0", b"1_7\0", b"+17\0", b"\x80" + b"\xff" * 11],
)  # fmt: skip
def test_sizes_that_are_no_numbers_are_refused(size: bytes) -> None:
    error = refused(raw_header(size=size) + END)
    assert "size" in str(error)
    assert (error.offset, error.sample) == (0, 0)


def test_a_duplicate_field_is_refused() -> None:
    for names in (("a.txt", "a.txt"), ("a.txt", "a.TXT")):
        error = refused(make_tar([(name, b"") for name in ("z.txt", *names)]))
        assert "duplicate field 'txt' in sample 'a'" in str(error)
        assert (error.offset, error.sample) == (1024, 1)
    assert "duplicate field" in str(refused(make_tar([("a.__key__", b"")])))


def test_members_continued_from_another_volume_are_refused() -> None:
    assert "volume" in str(refused(raw_header(b"a.txt", 3, b"M") + padded(b"abc") + END))


def test_a_wrong_header_in_the_middle_raises_after_the_samples_before_it() -> None:
    at = SMALL.index(b"c.txt")
    broken = SMALL[:at] + b"X" + SMALL[at + 1 :]
    samples, _, fault = assert_any_chunking_equal(TarDecoder, broken, (512,), (5000,))
    assert samples == SMALL_SAMPLES[:1]
    assert fault is not None
    assert "checksum" in fault[0]
    assert fault[1:] == (at, 1)


@pytest.mark.parametrize("at", range(512))
def test_a_changed_header_byte_raises_or_changes_nothing(at: int) -> None:
    header = SMALL.index(b"d/b.txt")
    for flip in (0x01, 0x10, 0x80):
        broken = bytearray(SMALL)
        broken[header + at] ^= flip
        samples, _, fault = outcome(TarDecoder(), [bytes(broken)])
        assert fault is not None or samples == SMALL_SAMPLES


def test_a_tar_cut_at_any_byte_before_its_end_marker_is_truncated() -> None:
    whole = len(SMALL)
    for length in range(whole - 512):
        samples, _, fault = outcome(TarDecoder(), [SMALL[:length]])
        assert fault is not None, f"cut at {length} of {whole} was read without an error"
        assert "truncated" in fault[0]
        assert samples == SMALL_SAMPLES[: len(samples)]
        assert len(samples) < 3
        assert fault[1] == length or length == 0


def test_a_lone_zero_block_at_the_end_proves_the_end() -> None:
    for length in range(len(SMALL) - 512, len(SMALL) + 1):
        assert outcome(TarDecoder(), [SMALL[:length]])[::2] == (SMALL_SAMPLES, None)


def test_zero_padding_of_any_length_may_follow_the_end() -> None:
    for extra in (1, 511, 512, 9 * 512 + 7):
        samples, _, fault = assert_any_chunking_equal(TarDecoder, SMALL + bytes(extra))
        assert (samples, fault) == (SMALL_SAMPLES, None)


@pytest.mark.parametrize("gap", [512, 1024, 1025, 1536, 4000])
@pytest.mark.parametrize("garbage", [b"x", SMALL])
def test_anything_but_zeros_after_the_end_is_refused(gap: int, garbage: bytes) -> None:
    error = refused(SMALL[:-1024] + bytes(gap) + garbage)
    assert "trailing garbage" in str(error)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"<!DOCTYPE html><title>403</title>", "web page"),
        (b"\n <?xml version='1.0'?><Error/>" * 50, "web page or an XML listing"),
        (b'{"error": "no such bucket"}', "JSON"),
        (b'[{"name": "x"}]' * 100, "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
        (b"\x1f\x8b\x08" + b"x" * 600, "gzip"),
        (b"", "the shard is empty"),
    ],
)
def test_what_is_no_tar_is_named(body: bytes, hint: str) -> None:
    assert hint in str(refused(body))


# -- positions ------------------------------------------------------------------------------------


@examples(25)
@given(
    st.lists(
        st.tuples(_NAMES, st.binary(max_size=900)), min_size=1, max_size=8, unique_by=lambda m: m[0].lower()
    ),
    st.sampled_from(("gnu", "pax")),
    st.integers(1, 3000),
)
def test_restart_goes_on_from_every_position(members: list[tuple[str, bytes]], form: str, size: int) -> None:
    archive = make_tar(members, FORMATS[form])
    samples, positions, fault = outcome(TarDecoder(), cut(archive, (size,)))
    assert fault is None
    for index, position in enumerate(positions, 1):
        assert position["sample"] == index
        decoder = TarDecoder(start_sample=index, start_byte=position["byte"])
        rest = outcome(decoder, cut(archive[position["byte"] :], (size,)))
        assert rest == (samples[index:], positions[index:], None)


def test_a_position_is_the_first_header_of_the_next_sample() -> None:
    archive = SMALL[: SMALL.index(b"c.txt")] + pax_header((b"path", b"p.txt")) + raw_header() + END
    _, positions, _ = outcome(TarDecoder(), [archive])
    assert [position["byte"] for position in positions] == [2048, 4096, 4096 + 1536]


def test_errors_after_a_restart_name_places_in_the_whole_shard() -> None:
    decoder = TarDecoder(start_sample=7, start_byte=5120)
    with pytest.raises(FormatError) as caught:
        samples_of(decoder, SMALL[:2048], b"x" * 512)
    assert (caught.value.offset, caught.value.sample) == (5120 + 2048, 7)


def test_blocks_are_bounded_in_samples_and_bytes() -> None:
    tiny = make_tar([(f"{index:06d}.t", b"") for index in range(2500)])
    lengths = [len(block) for block in blocks_of(TarDecoder(), [tiny])]
    assert sum(lengths) == 2500 and max(lengths) <= 1024
    assert [len(block) for block in blocks_of(TarDecoder(), cut(tiny, (512,)))] == 2500 * [1]
    large = make_tar([(f"{index}.t", bytes(3 << 20)) for index in range(7)])
    assert [len(block) for block in blocks_of(TarDecoder(), [large])] == [3, 3, 1]


@pytest.mark.parametrize("format", ["tar", "jsonl", "text"])
@pytest.mark.parametrize("option", ["start_sample", "start_byte", "skip"])
def test_negative_options_are_refused(format: str, option: str) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        open_decoder(format, **{option: -1})


def test_random_damage_never_changes_a_body_unnoticed_by_length() -> None:
    # Bodies carry no checksum; but lengths, names and their order do.
    shape = [{field: len(value) for field, value in sample.items()} for sample in SMALL_SAMPLES]
    for at in range(0, len(SMALL) - 1024, 37):
        broken = bytearray(SMALL)
        broken[at] ^= 0x5A
        samples, _, fault = outcome(TarDecoder(), [bytes(broken)])
        if fault is None:
            assert [{f: len(v) for f, v in sample.items()} for sample in samples] == shape


def test_checksum_helper_agrees_with_tarfile() -> None:
    assert with_checksum(SMALL[:512]) == SMALL[:512]


@pytest.mark.parametrize("piece_bytes", [1 << 20, 5_000_001])
def test_a_large_body_is_held_once(piece_bytes: int) -> None:
    body = bytes(range(256)) * (100 << 12)  # 100 MiB
    shard = make_tar([("a.bin", body), ("b.bin", b"after")])
    decoder = TarDecoder()
    samples: list[Any] = []
    tracemalloc.start()
    try:
        for start in range(0, len(shard), piece_bytes):
            for block in decoder.feed(shard[start : start + piece_bytes]):
                samples += block.rows()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert samples[0]["bin"] == body
    assert type(samples[0]["bin"]) is bytes
    assert samples[1:] == [{"__key__": "b", "bin": b"after"}]
    assert peak_bytes < 1.5 * len(body)
