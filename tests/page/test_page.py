"""The page of a traced pass, in a real browser: it says nothing on the console, and draws everything."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncloader as al
from asyncloader import testing
from asyncloader.cli import main
from asyncloader.observe.page import render
from asyncloader.observe.trace_file import read_run

from .chromium import Chromium, Page, run_chromium

PLOTS = {"throughput", "waits", "balance", "latency", "flight", "padding", "incidents"}

#: What each plot has drawn: how many shapes, and the largest of them on the screen.
DRAWN = """Object.fromEntries([...document.querySelectorAll("figure")].map(figure => {
  const shapes = [...figure.querySelectorAll("svg path,svg rect,svg line:not(.grid),.bar i,.row i")];
  const boxes = shapes.map(shape => shape.getBoundingClientRect());
  const sizes = boxes.map(box => Math.max(box.width, box.height));
  return [figure.id, [shapes.length, Math.max(...sizes), figure.querySelectorAll("tbody tr").length]];
}))"""

#: Contrast of a text with what it lies on, after WCAG 2.1; how dark what lies below all is.
CONTRAST = """(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const [r, g, b] = parts(colour).map(v => v / 255).map(v => v <= .03928 ? v/12.92 : ((v+.055)/1.055)**2.4);
    return .2126*r + .7152*g + .0722*b;
  };
  const below = node => {
    const colour = getComputedStyle(node).backgroundColor;
    return (parts(colour)[3] ?? 1) > 0 ? colour : below(node.parentElement);
  };
  const texts = [...document.querySelectorAll("h1,h2,p,dt,dd,li,td,th,span,summary,footer")];
  const ratios = texts.map(node => {
    const [high, low] = [light(getComputedStyle(node).color), light(below(node))].sort((a, b) => b - a);
    return (high + .05) / (low + .05);
  });
  return {page: light(below(document.body)), least: Math.min(...ratios)};
})()"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with run_chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a pass in which a little of everything happens."""
    folder = tmp_path_factory.mktemp("traced")
    with al.ShardWriter(str(folder / "{:02d}.tar"), samples_per_shard=40) as writer:
        for number in range(400):
            writer.write({"__key__": f"{number:04d}", "txt": "x" * (3 + number % 30), "bin": bytes(5_000)})
    path = folder / "run.json"
    faults = [testing.CutAt(20_000, key="03.tar", times=1), testing.Status(503, key="05.tar", times=1)]
    with testing.serve(folder, faults, latency_s=0.01) as server:
        recipe = al.from_urls(f"{server.url}/{{00..09}}.tar").map(tokens)
        for _ in al.DataLoader(recipe, batch_size=8, collate_fn=al.Pad({"tokens": 0}), trace=path):
            time.sleep(0.005)
    return path


def tokens(sample: Any) -> Any:
    time.sleep(0.001)
    return {"tokens": list(sample["txt"])}


@pytest.fixture
def show(chromium: Chromium, tmp_path: Path) -> Iterator[Any]:
    """Open HTML in the browser; what is on the console, or asked for, fails the test."""
    pages: list[tuple[Page, Path]] = []

    def show(html: str, **options: Any) -> Page:
        path = tmp_path / f"page-{len(pages)}.html"
        path.write_text(html)
        pages.append((chromium.open(path, **options), path))
        return pages[-1][0]

    yield show
    for page, path in pages:
        assert page.complaints() == []
        assert page.requests() == [path.as_uri()]
        page.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_plot_is_drawn_and_can_be_read(show: Any, run_file: Path, dark: bool) -> None:
    page = show(render(read_run(str(run_file))), dark=dark)
    drawn = page.ask(DRAWN)
    assert drawn.keys() == PLOTS
    for name, (shapes, largest, rows) in drawn.items():
        assert shapes and rows and largest > (3 if name == "incidents" else 20), name
    contrast = page.ask(CONTRAST)
    assert contrast["least"] >= 4.5
    assert contrast["page"] < 0.05 if dark else contrast["page"] > 0.8


def test_a_phone_shows_it_without_moving_sideways(show: Any, run_file: Path) -> None:
    page = show(render(read_run(str(run_file))), width=360, height=740)
    assert page.ask("document.documentElement.scrollWidth") <= 360
    texts = "[...document.querySelectorAll('.x span,.y span,td,dt,li')]"
    smallest = page.ask(f"Math.min(...{texts}.map(node => parseFloat(getComputedStyle(node).fontSize)))")
    assert smallest >= 11


def test_hostile_names_stay_text(show: Any, run_file: Path) -> None:
    run = copy.deepcopy(read_run(str(run_file)))
    evil = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'"
    run["loader"] = evil
    run["report"]["lines"] = [evil, f"{evil}; {evil}", evil]
    run["series"]["rows"][f"stage/map({evil})"] = run["series"]["rows"]["stage/map(tokens)"]
    run["statistics"]["makers"][0]["stages_s"][f"map({evil})"] = 3.0
    page = show(render(run))
    assert page.ask("document.scripts.length + document.images.length") == 0
    assert "owned" in page.ask("document.body.innerText") and "<script>" in page.ask("document.title")


def test_a_pass_of_nothing_has_a_page_too(show: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    list(al.DataLoader(al.from_iterable([]), trace=path))
    page = show(render(read_run(str(path))))
    assert page.ask("document.querySelectorAll('figure').length") >= 3
    assert "NaN" not in page.ask("document.documentElement.outerHTML")


def test_the_command_writes_the_page_and_prints_the_verdict(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(run_file), "-o", str(page)]) == 0
    assert page.read_text() == render(read_run(str(run_file)))
    assert capsys.readouterr().out.splitlines() == read_run(str(run_file))["report"]["lines"]
    assert main(["report", str(run_file), "-o", f"{run_file.parent}/./{run_file.name}"]) == 2
    assert "another file than the run itself" in capsys.readouterr().err
    read_run(str(run_file))  # is what it was
    assert main(["report", str(run_file), "--json"]) == 0
    assert '"page": null' in capsys.readouterr().out


def test_what_a_terminal_would_obey_is_printed_as_text(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, path = json.loads(run_file.read_text()), tmp_path / "run.json"
    run["asyncloader"]["report"]["lines"] = ["\x1b[2Ja\nb", "\x9b31m", "c"]
    path.write_text(json.dumps(run))
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["\\x1b[2Ja\\nb", "\\x9b31m", "c"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.json"], "No such file"),
        (["{page}"], "expected a file that DataLoader(trace=...) has written"),
        (["{run}", "-o", "/nowhere/report.html"], "there is no /nowhere: make it"),
    ],
)
def test_a_bad_argument_is_told_in_a_line(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    page = tmp_path / "report.html"
    page.write_text("<html>")
    assert main(["report", *(word.format(run=run_file, page=page) for word in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("asyncloader report: ") and told in line
