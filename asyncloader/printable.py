"""Texts that come from shards, file names and servers, as a terminal may show them."""

from __future__ import annotations

__all__ = ["clip", "printable"]


def printable(text: str) -> str:
    """The text in a line. What a terminal would obey is escaped: shards and their names are not trusted.

    So is what it cannot show, such as the half of a surrogate pair that stands for an odd byte of a file's
    name, which Python would refuse to print.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def clip(text: str, most: int) -> str:
    """The beginning of a text, in a line of so many characters; ``...`` at its end if it is not all."""
    text = printable(text[: most + 1])
    return text if len(text) <= most else text[: most - 3] + "..."
