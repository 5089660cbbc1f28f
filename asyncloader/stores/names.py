"""The shards of a recipe as a sequence: a range of a million stays a range, and is not looked through.

Law: whatever is asked of the names of a pattern (scheme, server, bucket, what of it may be shown, whether
somebody has to be asked what it means) is the same for all of them. One that does not promise that by its
text alone is expanded.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TypeAlias

from ..texts import Texts
from .braces import Braces
from .runs import runs_of
from .schemes import SCHEMES
from .urls import LOCAL, PLAIN, WEB, redact

__all__ = ["Part", "ShardNames", "is_even", "names_digest"]

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


def _shown(names: Iterable[str]) -> str:
    return "\n".join([*map(redact, names), ""])
