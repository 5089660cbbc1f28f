"""The verdict on an epoch, of rows as files have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks import Origin
from asyncloader.observe.audit import (
    AuditedSource,
    Begin,
    Contents,
    End,
    LaneLog,
    LaneRow,
    LeftOut,
    RecordedPass,
    format_row,
    read_audits,
    read_contents,
    runs_of,
    write_contents,
)
from asyncloader.tools.audit import EpochVerdict, judge_epoch

SHARD = Origin((), 0, 0)


def _judge(
    *passes: Sequence[tuple[int, int, list[int]]],
    count: int | None = 10,
    lanes: int = 1,
    stopped: bool = False,
    reasons: Sequence[str] = (),
) -> EpochVerdict:
    """Passes of one lane each: the batches and samples of each row; read to their ends."""
    read = []
    for number, rows in enumerate(passes):
        lane = number % lanes
        begin = Begin(
            str(number), float(number), 0, lane, lanes, 0, {lane: rows[0][0] if rows else 0}, [lane], reasons
        )
        told = [LaneRow(str(number), lane, first, stop, [(SHARD, runs)]) for first, stop, runs in rows]
        read.append(RecordedPass(begin, told, End(str(number), stopped)))
    part = AuditedSource((), "", ["a.tar"], [count], 1)
    return judge_epoch("r", 0, Contents({"lanes": lanes}, [part], 2), read)


def test_all_samples_once_is_exact() -> None:
    verdict = _judge([(0, 1, [0, 4]), (1, 3, [4, 10])])
    assert (verdict.verdict, verdict.samples, verdict.expected, verdict.batches) == ("exact", 10, 10, 3)


def test_a_sample_twice_in_one_lane_is_named() -> None:
    verdict = _judge([(0, 1, [0, 4]), (1, 3, [3, 10])])
    assert list(map(str, verdict.findings)) == ["twice: sample 3 of a.tar (ranks 0, lanes 0)"]


def test_what_lacks_is_named_before_between_and_behind() -> None:
    found = list(map(str, _judge([(0, 1, [1, 3, 5, 9])]).findings))
    assert found == [
        "never: sample 0 of a.tar", "never: samples 3 to 4 of a.tar", "never: sample 9 of a.tar"
    ]  # fmt: skip


def test_samples_that_the_shard_has_not_are_named() -> None:
    assert [finding.what for finding in _judge([(0, 1, [0, 12])]).findings] == ["beyond"]


def test_without_counts_holes_are_named_and_the_end_is_not_known() -> None:
    assert _judge([(0, 1, [0, 7])], count=None).verdict == "exact"
    assert _judge([(0, 1, [0, 3, 4, 7])], count=None).verdict == "wrong"


def test_a_later_pass_replaces_what_came_after_its_beginning() -> None:
    first, second = [(0, 2, [0, 4]), (2, 3, [4, 6])], [(2, 5, [4, 10])]
    assert _judge(first, second).verdict == "exact"
    assert _judge(second, [(0, 5, [0, 10])]).verdict == "wrong", "the record of two batches was lacking"


def test_a_pass_from_amidst_a_row_is_no_proof() -> None:
    verdict = _judge([(0, 3, [0, 6])], [(2, 5, [4, 10])])
    assert verdict.verdict == "wrong" and "a pass resumed after 2 batches" in verdict.faults[0]


def test_what_operators_leave_out_is_told_and_no_fault() -> None:
    verdict = _judge([(0, 1, [0, 4])], reasons=["take(4)"])
    assert (verdict.verdict, verdict.left_out, verdict.reasons) == ("exact", 6, ("take(4)",))
    assert _judge([(0, 1, [0, 4, 3, 5])], reasons=["take(4)"]).verdict == "wrong"


def _left_out(runs: list[int], *, component: tuple[int, ...] = (), tells: bool = True) -> EpochVerdict:
    """A lane that delivered samples 0 to 3 of 10, and whose filter has left these out."""
    begin = Begin("0", 0.0, 0, 0, 1, 0, {0: 0}, [0], ["filter(f)"], ["filter(f)"] if tells else [])
    left = LeftOut("filter(f)", Origin(component), runs)
    rows = [LaneRow("0", 0, 0, 1, [(SHARD, [0, 4])], [left]), LaneRow("0", 0, 1, 1, [], [left])]
    part = AuditedSource((), "", ["a.tar"], [10], 1)
    passes = [RecordedPass(begin, rows, End("0", False))]
    return judge_epoch("r", 0, Contents({"lanes": 1}, [part], 2), passes, left_out=True)


def test_what_an_operator_names_as_left_out_is_not_lacking() -> None:
    verdict = _left_out([4, 10])
    assert (verdict.verdict, verdict.left_out, verdict.left_out_by) == ("exact", 6, {"filter(f)": 6})
    assert "6 more were left out: 6 by filter(f)" in str(verdict)
    assert str(verdict).splitlines()[1:] == ["  left out by filter(f): samples 4 to 9 of a.tar"]


def test_what_an_operator_that_names_does_not_name_is_lacking() -> None:
    verdict = _left_out([3, 5, 7, 10])
    assert (verdict.verdict, verdict.left_out_by) == ("wrong", {"filter(f)": 4})
    assert list(map(str, verdict.findings)) == ["never: samples 5 to 6 of a.tar"]


def test_what_is_left_out_of_sources_that_nobody_follows_explains_nothing() -> None:
    assert _left_out([4, 10], component=(1,)).verdict == "wrong"


def test_a_pass_of_a_time_when_operators_named_nothing_is_judged_as_then() -> None:
    verdict = _left_out([4, 7], tells=False)
    assert (verdict.verdict, verdict.left_out, verdict.findings) == ("exact", 6, ())


def test_ranks_that_were_stopped_left_something() -> None:
    verdict = _judge([(0, 1, [0, 4])], [(0, 1, [6, 10])], lanes=2, stopped=True)
    assert (verdict.verdict, verdict.left_out, verdict.reasons) == ("incomplete", 2, ('uneven="stop"',))
    assert str(verdict).startswith("epoch 0: INCOMPLETE: 8 samples in 2 batches")
    assert '2 by uneven="stop"' in str(verdict)


def test_ranks_that_were_stopped_are_never_exact_where_nobody_knows_how_much_there_was() -> None:
    verdict = _judge([(0, 1, [0, 4])], [(0, 1, [4, 6])], lanes=2, count=None, stopped=True)
    assert (verdict.verdict, verdict.left_out) == ("incomplete", None)
    assert 'without an index it is not known how many uneven="stop" left out' in str(verdict)


def test_a_sample_that_came_twice_is_wrong_also_where_ranks_were_stopped() -> None:
    assert _judge([(0, 1, [0, 4, 3, 5])], stopped=True).verdict == "wrong"


def test_ranks_that_go_on_after_a_stop_complete_the_epoch() -> None:
    stopped, went_on = (End(name, is_stopped) for name, is_stopped in (("0", True), ("1", False)))
    # Of two lanes of the rank one had ended before the stop, and is not read again.
    first = [LaneRow("0", 0, 0, 1, [(SHARD, [0, 4])]), LaneRow("0", 1, 0, 1, [(SHARD, [4, 6])])]
    passes = [
        RecordedPass(Begin("0", 0.0, 0, 0, 1, 0, {0: 0, 1: 0}, [0, 1]), first, stopped),
        RecordedPass(
            Begin("1", 1.0, 0, 0, 1, 0, {0: 1}, [0, 1]), [LaneRow("1", 0, 1, 2, [(SHARD, [6, 10])])], went_on
        ),
    ]
    contents = Contents({"lanes": 2}, [AuditedSource((), "", ["a.tar"], [10], 1)], 2)
    assert judge_epoch("r", 0, contents, passes[:1]).verdict == "incomplete"
    assert judge_epoch("r", 0, contents, passes).verdict == "exact"


def test_lanes_that_nobody_has_ended_are_unfinished() -> None:
    begin = Begin("0", 0.0, 0, 0, 1, 0, {0: 0}, [0])
    rows = [LaneRow("0", 0, 0, 1, [(SHARD, [0, 4])])]
    part = AuditedSource((), "", ["a.tar"], [10], 1)
    verdict = judge_epoch("r", 0, Contents({"lanes": 2}, [part], 2), [RecordedPass(begin, rows)])
    assert (verdict.verdict, verdict.open_lanes, verdict.findings) == ("unfinished", (0, 1), ())


@given(st.lists(st.lists(st.integers(0, 40), min_size=1), min_size=1), st.booleans())
def test_runs_hold_each_sample_as_often_as_it_came(parts: list[list[int]], neighbours: bool) -> None:
    given_parts = [range(part[0], part[0] + len(part)) if neighbours else np.array(part) for part in parts]
    runs = runs_of([*given_parts, range(3, 5)])
    found = Counter(s for first, stop in zip(runs[::2], runs[1::2], strict=True) for s in range(first, stop))
    assert found == Counter(int(s) for part in [*given_parts, range(3, 5)] for s in part)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "shards-rank0.jsonl"
    begin = Begin("ab", 1.5, 3, 0, 2, 4, {0: 3, 2: 0}, [0, 2], ["take(3)", "drop_last"], ["drop_last"])
    lane_rows = [
        LaneRow("ab", 2, 0, 7, [(Origin((1, 0), 5, 2), [0, 4])], []),
        LaneRow("ab", 2, 7, 7, [], [LeftOut("drop_last", Origin((1,), 5, 2), [4, 6])]),
    ]
    end = End("ab", True)
    recorded = RecordedPass(begin, lane_rows, end)
    written = b"".join([format_row(begin), *map(format_row, lane_rows), format_row(end)])
    path.write_bytes(written)
    assert read_audits([path])["shards"].passes == [recorded]
    for cut in (20, 60, -2):
        path.write_bytes(format_row(lane_rows[0])[:cut] + b"\n" + written)
        assert read_audits([path])["shards"].passes == [recorded]
    path.write_bytes(written.partition(b"\n")[2])
    with pytest.raises(ValueError, match="line 1: the pass 'ab' has no row of its beginning"):
        read_audits([path])
    for odd in ("[]", "{}", '{"row":"step"}', '{"row":"begin","id":3}', '{"row":"lane","id":"a","lane":1}'):
        path.write_bytes(written + odd.encode())
        with pytest.raises(ValueError, match="line 5: expected a row of an audit"):
            read_audits([path])


def test_a_log_tells_of_batches_that_nobody_recorded() -> None:
    log = LaneLog()
    log.reopen(3)
    assert log.faults == ["batches 0 to 2 were delivered, but not recorded; is a file missing?"]


def test_the_file_of_a_datasets_contents_says_its_version(tmp_path: Path) -> None:
    path = str(tmp_path / "contents.json")
    contents = Contents({"lanes": 2}, [AuditedSource((), "", ["a.tar"], [10], 1)], 2)
    write_contents(path, contents)
    assert read_contents(path) == contents
    for version in ("", ', "asyncloader_audit": 1', ', "asyncloader_audit": "2"'):
        Path(path).write_text('{"described": {"lanes": 1}, "parts": []' + version + "}")
        with pytest.raises(ValueError, match="has written, of version 2"):
            read_contents(path)
