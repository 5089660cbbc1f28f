"""What is recorded of a pass, on a machine with another clock."""

from __future__ import annotations

from asyncloader.observe.tracing import Dropped, Flight, Incident, Padded, Slice, Traced


def test_times_of_another_clock_are_told_by_ones_own() -> None:
    def at(now_s: float) -> Traced:
        return Traced(
            until_s=now_s + 4,
            events=[
                Slice(0, "decode", now_s, now_s + 1, {"shard": "a"}),
                Flight("a", 0, 9, 9, now_s, now_s + 2, now_s + 3, True),
                Flight("b", 0, 9, 0, now_s, None, now_s + 1, False),
                Incident("retry", now_s + 1, {"shard": "b"}),
                Padded(now_s + 2, 5, 6),
            ],
            dropped=Dropped(slices=1, seconds=0.5),
        )

    assert at(100.0).shifted(-40.0) == at(60.0)
