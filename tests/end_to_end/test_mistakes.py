"""Each of forty mistakes of beginners has one short message, and the page of errors lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .mistakes import MISTAKES, PAGE, Message, Mistake, messages_of, row_of, rows_on

pytestmark = pytest.mark.usefixtures("fork_server")

MOST_SENTENCES = 3
MOST_CHARACTERS = 400
#: Files, modules and private names of the package.
INTERNAL = re.compile(r"[\\/]asyncloader[\\/]|\basyncloader\.[a-z]|site-packages|\basyncio\b|\baiohttp\b")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.make.__name__)
def test_a_mistake_has_one_message_that_says_what_to_do(mistake: Mistake, tmp_path: Path) -> None:
    messages = messages_of(mistake, tmp_path)
    assert len(messages) == 1, messages
    (message,) = messages
    text = " ".join(message.parts)
    assert message.kind == mistake.kind, text
    assert [word for word in mistake.words if word not in text] == [], text
    assert sentences_of(message) <= MOST_SENTENCES, text
    assert len(text) <= MOST_CHARACTERS, text
    assert not INTERNAL.search(text), text
    advice = "the messages have changed: run python tests/end_to_end/mistakes.py --write"
    assert row_of(mistake, message) in rows_on(PAGE.read_text()), advice


def test_the_page_lists_forty_mistakes() -> None:
    listed = [row.split("|")[1] for row in rows_on(PAGE.read_text())]
    assert listed == [mistake.name for mistake in MISTAKES]
    assert len(listed) == 40


def sentences_of(message: Message) -> int:
    """How many sentences; a note is at least one, and a dot within a path or a number ends none."""
    return sum(len(re.split(r"(?<=[.?!])\s+", part.strip())) for part in message.parts)


def test_sentences_are_counted_by_their_ends() -> None:
    assert sentences_of(Message("", ["one at a.tar, 1.5 s"])) == 1
    assert sentences_of(Message("", ["One. Two? Three", "a note. And more."])) == 5
