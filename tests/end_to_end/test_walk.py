"""A byte, a batch and a position pass no more functions than it takes, and the page lists them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import Programs

from .walk import DESIGN, PASSES, render, section_of

#: The most functions that pass each thing on, and the most channels. They fall with every function that goes.
MOST = {
    "tar over HTTP": {"byte": 22, "batch": 12, "position": 10, "channels": 2},
    "Parquet from disk": {"byte": 25, "batch": 12, "position": 9, "channels": 2},
    "tar over HTTP with a cache": {"byte": 25, "batch": 12, "position": 10, "channels": 2},
    "tar over HTTP after a resume": {"byte": 23, "batch": 12, "position": 10, "channels": 2},
}

Walks = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def walks(programs: Programs) -> Walks:
    """Traced in a process of its own: what else runs here would be traced too."""
    done = programs.run(Path(__file__).with_name("walk.py"), timeout=580)
    assert done.returncode == 0, done.stderr
    found: Walks = json.loads(done.stdout)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PASSES)
def test_what_passes_a_byte_a_batch_and_a_position_on_is_bounded(walks: Walks, name: str) -> None:
    too_many = {
        thing: walks[name][thing] for thing, most in MOST[name].items() if len(walks[name][thing]) > most
    }
    assert not too_many, f"more than {MOST[name]}"


@pytest.mark.timeout(600)
def test_the_page_lists_them(walks: Walks) -> None:
    advice = "the lists have changed: run python tests/end_to_end/walk.py --write"
    assert listed(section_of(DESIGN.read_text())) == listed(render(walks)), advice


def listed(section: str) -> list[str]:
    """Its lines, whichever function was the first to hold something."""
    return sorted(", ".join(sorted(line.replace(": ", ", ").split(", "))) for line in section.splitlines())
