"""The tables of docs/benchmarks.md, out of the figures in docs/benchmarks.json."""

from __future__ import annotations

from typing import Any

from .rounds import FIGURES, is_reached, median_of, ratio_to, reference_of
from .rows import Goal, Workload
from .workloads import WORKLOADS

__all__ = ["BEGIN", "END", "render", "render_details", "replace_section"]

BEGIN, END = "<!-- against peers: begin -->", "<!-- against peers: end -->"

#: Figure, head of its column, and how it is written.
_COLUMNS = [
    ("samples_s", "samples/s", "{:,.0f}"),
    ("steady_samples_s", "from the first batch", "{:,.0f}"),
    ("first_s", "first batch, s", "{:.2f}"),
    ("cpu_s", "CPU, s", "{:.1f}"),
    ("peak_mb", "peak, MB", "{:,.0f}"),
]
_RESUMED = [
    ("fresh_first_s", "first batch of a fresh start, s", "{:.2f}"),
    ("first_s", "after half, s", "{:.2f}"),
    *_COLUMNS[3:],
]
_FIGURE_NAMES = {
    "samples_s": "samples/s",
    "steady_samples_s": "samples/s from the first batch",
    "first_s": "first batch",
    "peak_mb": "peak memory",
}


def render(results: dict[str, Any]) -> str:
    """The tables of all workloads that have results, and the targets that were missed, for the page."""
    found = {name: results[name] for name in WORKLOADS if name in results}
    conditions = {name: _conditions(each) for name, each in found.items()}
    # What all tables have in common is named once.
    shared = [
        one for one in next(iter(conditions.values()), []) if all(one in each for each in conditions.values())
    ]
    above = [f"All tables: {'; '.join(shared)}."] if shared else []
    tables = [
        _workload(WORKLOADS[name], each, [one for one in conditions[name] if one not in shared])
        for name, each in found.items()
    ]
    missed = [
        _cells(WORKLOADS[name].title, *_goal(goal, each["rows"])[:3])
        for name, each in found.items()
        for goal in _goals(WORKLOADS[name], each["rows"])
        if not is_reached(goal, each["rows"])[1]
    ]
    if missed:
        head = [_cells("workload", "figure", "target", "found"), _cells(*4 * ["---"])]
        about = "The target is the least for samples/s, and the most for times and memory."
        tables.append("\n".join([f"### Missed targets\n\n{about}\n", *head, *missed]))
    return "\n\n".join([*above, *tables])


def render_details(workload: Workload, rows: list[dict[str, Any]]) -> str:
    """What the page leaves out: all targets, and where the time went. Empty if nothing is known."""
    goals = [_goal(goal, rows) for goal in _goals(workload, rows)]
    if goals:
        goals = [("figure", "target", "found", ""), ("---", "---", "---", "---"), *goals]
    lines = [_cells(*goal) for goal in goals]
    profiles = [line for row in rows if (line := _profile(row))]
    if profiles:
        lines += ["", "Where the time of the producers went, by `loader.report()`:", "", *profiles]
    return "\n".join(lines).strip()


def replace_section(document: str, section: str) -> str:
    """The document with another text between the two marks.

    Raises:
        ValueError: The marks are not there.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the lines {BEGIN!r} and {END!r}; put them where the tables belong")
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{after}"


def _workload(workload: Workload, found: dict[str, Any], conditions: list[str]) -> str:
    rows = found["rows"]
    columns = _RESUMED if workload.resumes else _COLUMNS
    heads = ["loader", *(head for _, head, _ in columns), "ratio"]
    return "\n".join(
        [
            f"### {workload.title}\n\n{workload.about}\n",
            f"{_cells(*heads)}\n{_cells(*['---'] * len(heads))}",
            *(_row(row, rows, columns, workload.figure) for row in rows),
            "\n" + "; ".join([f"`{found['command']}`", *conditions]),
        ]
    )


def _conditions(found: dict[str, Any]) -> list[str]:
    """What a table was measured of and on; the number of rounds is in its command."""
    part = [] if found["scale"] == 1 else [f"only {found['scale']:g} of the samples"]
    return [f"commit {found['commit']}", found["machine"], *part]


def _cells(*cells: str) -> str:
    """A line of a table; without spaces around the cells, since the lines are long enough."""
    return f"|{'|'.join(cells)}|"


def _row(
    row: dict[str, Any], rows: list[dict[str, Any]], columns: list[tuple[str, str, str]], by: str
) -> str:
    wrong = next((run["wrong"] for run in row["runs"] if run["wrong"]), "")
    if wrong:
        # Its speed is that of other work.
        cells = [f"**wrong: {wrong}**", *[""] * len(columns)]
    else:
        # A limit comes in one piece, without batches, and what it holds is this program's.
        of_loaders = {"steady_samples_s", "first_s", "peak_mb"} if row["module"] == "limits" else ()
        cells = [
            "" if figure in of_loaders else form.format(median_of(row, figure)) for figure, _, form in columns
        ]
        reference = reference_of(row, rows)
        ratio = None if reference in (None, row) else ratio_to(reference, [row], by)
        # How many times as good.
        cells.append("" if ratio is None else f"{ratio if FIGURES[by] else 1 / ratio:.2f}x")
    return _cells(row["label"], *cells)


def _profile(row: dict[str, Any]) -> str:
    """The stages of the last round; empty for a loader that does not tell."""
    shares = row["runs"][-1].get("shares") or {}
    told = ", ".join(f"{share:.0%} {stage}" for stage, share in shares.items() if share >= 0.01)
    return f"- {row['name']}, {row['setting']}: {told}" if told else ""


def _goals(workload: Workload, rows: list[dict[str, Any]]) -> list[Goal]:
    """The goals whose rows were measured: without the peers, some were not."""
    labels = {row["label"] for row in rows}
    return [goal for goal in workload.goals if {goal.row, *goal.others} <= labels]


def _goal(goal: Goal, rows: list[dict[str, Any]]) -> tuple[str, str, str, str]:
    """What is compared, the bound, what was found, and whether that is enough."""
    found, reached = is_reached(goal, rows)
    if len(goal.others) > 2:
        beside = f"vs the best of {len(goal.others)} others"
    else:
        beside = f"vs {' or '.join(goal.others)}" if goal.others else "in s"
    if goal.extra:
        beside += f" + {goal.extra:g} MB"
    shown = "-" if found is None else f"{found:.2f}"
    what = f"{goal.row}: {_FIGURE_NAMES[goal.figure]} {beside}"
    return what, f"{goal.bound:.2f}", shown, "reached" if reached else "missed"
