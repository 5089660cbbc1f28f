"""The index that WebDataset's users put beside a tar, as NVIDIA DALI's ``wds2idx`` writes it.

A line says the version and how many samples there are; one for each sample follows, with extension, offset,
size and, from version 1.2 on, the name of each of its members. Sizes are of bodies, and so are offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import FormatError
from ._tar_header import BLOCK, parse_header

__all__ = [
    "MOST_IDX_BYTES",
    "MemberPlace",
    "TarIndex",
    "check_end",
    "check_member",
    "idx_beside",
    "parse_idx",
]

#: Of a million samples with four members each.
MOST_IDX_BYTES = 256 << 20

# Behind the last member there are two blocks of zeros, and as many as make a record of it.
_END_BYTES = 2 * BLOCK
_MOST_END_BYTES = 1 << 20

# Of version and member: extension, offset, size, and name.
_WORDS = {"v1.1": 3, "v1.2": 4}

_STALE = "the .idx beside it is of another shard, or older than this one; make it anew, or index without it"


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """A member, by the index.

    Attributes:
        begin: Offset of its body.
        size_bytes: Of that.
        name: None if the index does not tell.
    """

    begin: int
    size_bytes: int
    name: str | None

    @property
    def stop(self) -> int:
        """Offset behind its last block."""
        return self.begin + -(-self.size_bytes // BLOCK) * BLOCK


@dataclass(frozen=True)
class TarIndex:
    """What an index says of a tar.

    Attributes:
        ends: Where each sample ends and a decoder may begin, ``(samples,)``, rising.
        looked_at: Some members, by which one can tell whether it is of this tar.
    """

    ends: Sequence[int]
    looked_at: Sequence[MemberPlace]

    @property
    def samples(self) -> int:
        return len(self.ends)


def idx_beside(url: str) -> str:
    """Where the index of a tar is: ``train-000.idx`` beside ``train-000.tar``.

    Raises:
        ValueError: The name does not end with ``.tar``; what is compressed as a whole has no offsets.
    """
    path, mark, query = url.partition("?") if "://" in url else (url, "", "")
    if not path.lower().endswith(".tar"):
        raise ValueError(
            f"an .idx is of a shard whose name ends with .tar, not of {path.rpartition('/')[2]!r}"
        )
    return f"{path[:-4]}.idx{mark}{query}"


def parse_idx(content: bytes, length: int) -> TarIndex:
    """Read an index.

    Args:
        content: All of it.
        length: Of the tar.

    Raises:
        FormatError: It is none, of another version, or damaged; or of another tar than one of this length.
    """
    if len(content) > MOST_IDX_BYTES:
        raise FormatError(f"idx: longer than {MOST_IDX_BYTES} bytes")
    try:
        first, *lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"idx: no UTF-8: {error}") from error
    version, _, count = first.partition(" ")
    if version not in _WORDS or not _is_number(count):
        raise FormatError(
            f"idx: expected {' or '.join(_WORDS)} and the number of samples in the first line, found "
            f"{first[:80]!r}"
        )
    if len(lines) != int(count):
        raise FormatError(f"idx: the first line promises {count} samples, found {len(lines)}; is it cut?")
    ends, members = [], []
    stop = 0
    key: str | None = None
    for number, line in enumerate(lines):
        found = _members_of(line, _WORDS[version], number)
        for member in found:
            if member.begin < stop + BLOCK or member.begin % BLOCK:
                raise _fault(number, f"a member at byte {member.begin}, where one ends at byte {stop}")
            stop = member.stop
            last, key = key, key if member.name is None else _key_of(member.name, number)
            if member.name is not None and (member is found[0]) == (key == last):
                raise _fault(
                    number, f"the member {member.name!r} belongs to another sample, as names have it"
                )
        ends.append(stop)
        members.append(found[0])
    if not lines or not _END_BYTES <= length - stop <= _MOST_END_BYTES:
        raise FormatError(f"the last sample ends at byte {stop} of {length}: {_STALE}")
    return TarIndex(ends, [members[place] for place in {0, len(members) // 2, len(members) - 1}])


def check_member(member: MemberPlace, header: bytes) -> None:
    """Hold a member against the block before its body.

    Raises:
        FormatError: It is not the header of that member.
    """
    try:
        name, size_bytes, _ = parse_header(header)
    except FormatError as error:
        raise FormatError(
            f"no member is before byte {member.begin}: {_STALE}", offset=member.begin
        ) from error
    # Names that are long, or no ASCII, are in an extension, and but a part of them here.
    is_short = member.name is not None and member.name.isascii() and len(member.name) < 100
    if size_bytes != member.size_bytes or (is_short and name != member.name):
        raise FormatError(
            f"expected {member.name or 'a member'} of {member.size_bytes} bytes at byte {member.begin}, "
            f"found {name} of {size_bytes}: {_STALE}",
            offset=member.begin,
        )


def check_end(content: bytes, stop: int) -> None:
    """Hold what is behind the last sample, from byte ``stop`` on, against the end of a tar.

    Raises:
        FormatError: There is something else than zeros.
    """
    if content.strip(b"\0"):
        raise FormatError(f"the shard goes on behind byte {stop}: {_STALE}", offset=stop)


def _members_of(line: str, words: int, number: int) -> list[MemberPlace]:
    """The members of a sample; at least one."""
    found = line.split(" ")
    if len(found) % words or not found[0]:
        raise _fault(number, f"{len(found)} words, which are no members of {words} each")
    return [*_each(found, words, number)]


def _each(found: Sequence[str], words: int, number: int) -> Iterator[MemberPlace]:
    for at in range(0, len(found), words):
        offset, size = found[at + 1 : at + 3]
        if not (_is_number(offset) and _is_number(size)):
            raise _fault(number, f"no offset and size: {offset[:40]!r}, {size[:40]!r} (no blanks in names)")
        yield MemberPlace(int(offset), int(size), found[at + 3] if words > 3 else None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _key_of(name: str, number: int) -> str:
    """What samples are told apart by; see ``_tar_samples``."""
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot <= start or dot == len(name) - 1:
        raise _fault(number, f"the member {name!r} is no field of a sample, by its name")
    return name[:dot]


def _fault(number: int, what: str) -> FormatError:
    return FormatError(f"idx: line {number + 2}: {what}", sample=number)
