"""The index beside a tar: what ``wds2idx`` writes of it, and what is no such thing."""

from __future__ import annotations

import tarfile

import pytest
from feeding import make_tar
from idx_files import idx_of

from asyncloader.errors import FormatError
from asyncloader.formats import open_decoder
from asyncloader.formats.tar_layout import check_end, check_member, idx_beside, parse_idx

MEMBERS = [
    (f"a/{n:03d}.{field}", bytes([n]) * (n * 97 % 1500)) for n in range(20) for field in ("cls", "seg.png")
]
TAR = make_tar(MEMBERS)


@pytest.mark.parametrize("version", ["v1.1", "v1.2"])
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_decoder_begins_where_the_index_says(version: str, format: int) -> None:
    members = [*MEMBERS[:8], ("a/" + "x" * 150 + ".txt", b"long"), ("ä.txt", b"other"), *MEMBERS[8:]]
    tar = make_tar(members, format if format != tarfile.USTAR_FORMAT else tarfile.GNU_FORMAT)
    ends, members = parse_idx(idx_of(tar, version), len(tar))
    assert len(ends) == 22
    keys = [row["__key__"] for block in decoded(tar) for row in block.rows()]
    for sample, end in enumerate(ends, 1):
        rest = [row["__key__"] for block in decoded(tar, sample, end) for row in block.rows()]
        assert rest == keys[sample:]
    for member in members:
        check_member(member, tar[member.start - 512 : member.start])
    check_end(tar[ends[-1] :], ends[-1])
    assert ends[:-1] == [end for block in decoded(tar) for end in block.trail.ends][:-1]


def decoded(tar: bytes, sample: int = 0, byte: int = 0) -> list[object]:
    decoder = open_decoder("tar", start_sample=sample, start_byte=byte)
    return [*decoder.feed(tar[byte:]), *decoder.finish()]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "expected v1.1 or v1.2 and the number of samples in the first line, found ''"),
        (b"\xff", "no UTF-8"),
        (b"v2.0 1\n", "expected v1.1 or v1.2"),
        (b"v1.2 x\n", "expected v1.1 or v1.2"),
        (b"v1.2 0\n", "the last sample ends at byte 0 of"),
        (b"v1.2 2\ncls 512 3 a.cls\n", "the first line promises 2 samples, found 1; truncated?"),
        (b"v1.2 1\n\n", "line 2: 1 words, which are no members of 4 each"),
        (b"v1.2 1\ncls 512 3\n", "line 2: 3 words, which are no members of 4 each"),
        (b"v1.1 1\ncls 512 3 a.cls\n", "line 2: 4 words, which are no members of 3 each"),
        (b"v1.2 1\ncls -512 3 a.cls\n", "line 2: no offset and size: '-512', '3'"),
        (b"v1.2 1\ncls 513 3 a.cls\n", "line 2: a member at byte 513, where one ends at byte 0"),
        (b"v1.2 1\ncls 0 3 a.cls\n", "line 2: a member at byte 0"),
        (b"v1.2 2\ncls 512 600 a.cls\ncls 1536 3 b.cls\n", "line 3: a member at byte 1536, where one"),
        (b"v1.2 1\ncls 512 3 a.cls\n", "ends at byte 1024 of 2097152: the .idx beside it is of"),
        (b"v1.2 1\ncls 32256 3 a.cls\n", "ends at byte 32768 of 32768"),
    ],
)  # fmt: skip
def test_what_is_no_index_of_such_a_tar_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_idx(content, 32768 if "of 32768" in says else 2 << 20)
    assert says in str(caught.value)


def test_an_index_of_another_tar_is_told_by_its_members_and_the_end() -> None:
    _, members = parse_idx(idx_of(TAR), len(TAR))
    for member, other in zip(members, MEMBERS[2::2], strict=False):
        with pytest.raises(FormatError, match="is of another shard, or older"):
            check_member(member, make_tar([other])[:512])
    with pytest.raises(FormatError, match=r"no member is before byte|is of another shard, or older"):
        check_member(members[0], bytes(512))
    with pytest.raises(FormatError, match="continues behind byte 4096"):
        check_end(bytes(600) + b"x", 4096)


def test_the_index_is_beside_the_shard() -> None:
    assert idx_beside("/data/a.b/train-000.tar") == "/data/a.b/train-000.idx"
    assert idx_beside("https://host/x/t-1.TAR?token=a.tar") == "https://host/x/t-1.idx?token=a.tar"
    for name in ("x.tar.gz", "s3://bucket/x.jsonl"):
        with pytest.raises(ValueError, match=r"of a shard whose name ends with \.tar, not of 'x"):
            idx_beside(name)
