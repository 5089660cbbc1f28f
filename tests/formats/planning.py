"""Run a plan and its decoder over a shard in memory, as a reader over a server would."""

from __future__ import annotations

from typing import Any

from asyncloader.blocks import Block
from asyncloader.formats import open_plan
from asyncloader.formats.selection import make_selection
from asyncloader.types import Answer, Layout, Span

__all__ = ["Reading", "plan", "read"]


class Reading:
    """What came of reading a shard by its plan.

    Attributes:
        asked: What the plan wanted to see.
        layout: What it decided on.
        blocks: What was decoded.
    """

    def __init__(self, asked: list[Span], layout: Layout, blocks: list[Block]) -> None:
        self.asked = asked
        self.layout = layout
        self.blocks = blocks

    @property
    def rows(self) -> list[Any]:
        return [row for block in self.blocks for row in block.rows()]

    @property
    def positions(self) -> list[Any]:
        return [block.trail.after(index)[0] for block in self.blocks for index in range(len(block))]

    @property
    def requested_bytes(self) -> int:
        return sum(stop - start for start, stop in (*self.asked, *self.layout.spans))


def plan(name: str, content: bytes, **options: Any) -> tuple[list[Span], Layout]:
    """What a plan asks for, and decides on."""
    plan = open_plan(name, **options)
    assert plan is not None
    asked: list[Span] = []
    try:
        span = next(plan)
        while True:
            asked.append(span)
            assert 0 <= span.start < span.stop
            span = plan.send(Answer(content[span.start : span.stop], len(content), "version"))
    except StopIteration as end:
        return asked, end.value


def read(
    name: str,
    content: bytes,
    *,
    columns: list[str] | None = None,
    filters: Any = None,
    start: int = 0,
    chunk_bytes: int = 5000,
    footers: Any = None,
) -> Reading:
    """Plan and decode, the spans fed in chunks of so many bytes."""
    selection = make_selection(columns, filters)
    asked, layout = plan(name, content, start_sample=start, selection=selection, footers=footers)
    assert all(0 <= begin < stop <= len(content) for begin, stop in layout.spans)
    decoder = layout.open_decoder()
    body = b"".join(content[begin:stop] for begin, stop in layout.spans)
    blocks = []
    for at in range(0, len(body), chunk_bytes):
        blocks += decoder.feed(body[at : at + chunk_bytes])
    blocks += decoder.finish()
    assert all(map(len, blocks)), "empty blocks are not yielded"
    return Reading(asked, layout, blocks)
