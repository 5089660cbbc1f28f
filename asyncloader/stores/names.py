"""The shards of a recipe as a sequence: a range of a million stays a range, and is not looked through.

Law: whatever is asked of the names of a pattern (scheme, server, bucket, what of it may be shown, whether
somebody has to be asked what it means) is the same for all of them. One that does not promise that by its
text alone is expanded.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import eq
from typing import TypeAlias

from ..texts import Texts
from .braces import Braces
from .runs import runs_of
from .schemes import SCHEMES
from .urls import LOCAL, PLAIN, WEB, local_path, redact, scheme_of

__all__ = ["Part", "ShardNames", "is_even", "names_digest", "places_digest"]

Part: TypeAlias = Braces | tuple[str, ...]

# Up to the first brace stands the scheme with server or bucket; without a scheme no colon is anywhere, so
# that no name can be taken for a URL, and no tilde that may be a home. What is in and between the braces
# means no more than itself.
_LISTED = "|".join(scheme.name for scheme in SCHEMES.values() if scheme.is_listed)
_EVEN = re.compile(
    rf"(?:(?P<web>(?:{'|'.join(WEB)})://[^/?#{{}}]+/)|(?:{_LISTED})://[A-Z0-9._@:-]+/"
    rf"|(?:{'|'.join(LOCAL)})://(?:localhost)?/|(?![^:]*:|[^~]*~))"
    r"(?P<before>[^{}?#]*)\{(?P<inside>[A-Z0-9_.,={}/+-]*)\}(?P<behind>[^{}]*)",
    re.IGNORECASE | re.ASCII,
)
# A glob, or an escape that may be one; or what a message leaves out.
_SPECIAL = re.compile(r"[*?\[#%]")

# Names that are shown as they are, a line each.
_PLAIN_LINES = re.compile(rf"(?:{PLAIN}\n)*")


class ShardNames(Texts):
    """Names in order, of which those of even patterns are made when they are asked for.

    It pickles as its parts.

    Args:
        parts: Names, and patterns for which ``is_even`` holds, without a part that is empty.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self._firsts = [0, *accumulate(map(len, self.parts))]

    @property
    def examples(self) -> Iterator[str]:
        """Every name, but only one of each pattern: enough to ask what is the same for all of its names."""
        return chain.from_iterable(part[:1] if isinstance(part, Braces) else part for part in self.parts)

    def __len__(self) -> int:
        return self._firsts[-1]

    def at(self, index: int) -> str:
        part = bisect_right(self._firsts, index) - 1
        return self.parts[part][index - self._firsts[part]]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)

    def __reduce__(self) -> tuple[type[ShardNames], tuple[tuple[Part, ...]]]:
        return ShardNames, (self.parts,)

    def __repr__(self) -> str:
        return f"ShardNames({len(self)})"  # names may hold secrets


def is_even(pattern: str) -> bool:
    """Whether one name of a pattern of braces tells of all; see the law above.

    One that may be a glob, a folder or a prefix is none: what it means has to be looked up.
    """
    match = _EVEN.fullmatch(pattern)
    if match is None:
        return False
    before, inside, behind = match["before"], match["inside"], match["behind"]
    if match["web"] is not None:
        return True
    if _SPECIAL.search(before) or _SPECIAL.search(behind):
        return False
    return not behind.endswith("/") if behind else not {",", "/"} & {*inside}


def names_digest(names: Sequence[str]) -> str:
    """SHA-256 of the names as they may be shown, a line each; the same however they were named."""
    digest = hashlib.sha256()
    for part in names.parts if isinstance(names, ShardNames) else (names,):
        # Braces are where nothing is left out, so that what is shown of all names is shown of the pattern.
        is_shown = isinstance(part, Braces)
        for run in runs_of(Braces(redact(part.pattern)) if isinstance(part, Braces) else part):
            shown = run.lines if is_shown or _PLAIN_LINES.fullmatch(run.lines) else _shown(run.names)
            digest.update(shown.encode(errors="surrogatepass"))
    return digest.hexdigest()


def places_digest(names: Sequence[str]) -> str | None:
    """The digest that the names would have with local paths written in full; None if they are so already."""
    parts = names.parts if isinstance(names, ShardNames) else (tuple(names),)
    in_full = [*map(_in_full, parts)]
    if all(map(eq, map(_text_of, parts), map(_text_of, in_full))):
        return None
    return names_digest(ShardNames(filter(len, in_full)))


def _text_of(part: Part) -> str | tuple[str, ...]:
    return part.pattern if isinstance(part, Braces) else part


def _in_full(part: Part) -> Part:
    if isinstance(part, Braces):
        end = part.pattern.rfind("/", 0, part.pattern.find("{")) + 1
        folder, rest = part.pattern[:end], part.pattern[end:]
        if not any(odd in f"/{rest}" for odd in ("//", "/./", "/../")):
            return Braces(_folder_in_full(folder) + rest)
    folders: dict[str, str] = {}
    found: list[str] = []
    for run in runs_of(part):
        if run.is_flat:
            full, cut = _folder_in_full(run.folder), len(run.folder)
            found += run.names if full == run.folder else [full + name[cut:] for name in run.names]
            continue
        for name in run.names:
            cut = name.rfind("/") + 1
            if (full := folders.get(name[:cut], "")) == "":
                full = folders[name[:cut]] = _folder_in_full(name[:cut])
            found.append(full + name[cut:])
    return tuple(found)


def _folder_in_full(folder: str) -> str:
    """A folder with its slash; empty is the working directory."""
    if not scheme_of(folder).is_local:
        return folder
    return os.path.join(os.path.abspath(local_path(folder)), "")


def _shown(names: Iterable[str]) -> str:
    return "\n".join([*map(redact, names), ""])
