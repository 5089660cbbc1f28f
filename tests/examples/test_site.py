"""The site is built from the pages without a complaint, has each public name, and loads nothing from afar."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import asyncloader as al

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("mkdocs", reason="mkdocs-material is in the dependency group 'docs'")

_DIRECTIVE = re.compile(r"^::: asyncloader\.([\w.]+)$", re.MULTILINE)
_ASKED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def build(top: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """The site of a repository, as `make docs` builds it."""
    command = ["mkdocs", "build", "--strict", "--config-file", f"{top}/docs/site/mkdocs.yml"]
    return subprocess.run(
        [sys.executable, "-m", *command, "--site-dir", str(site)],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stdout
    return folder


def test_the_reference_has_each_public_name_once() -> None:
    named = _DIRECTIVE.findall((ROOT / "docs/reference/api.md").read_text())
    public = [name for name in named if "." not in name]
    assert sorted(public) == sorted(al.__all__), "each has a line on docs/reference/api.md"
    assert len(set(named)) == len(named)


def test_the_reference_page_says_something_of_each_public_name(site: Path) -> None:
    page = (site / "reference/api/index.html").read_text()
    for name in al.__all__:
        at = page.index(f'id="asyncloader.{name}"')
        rest = page[at : page.find('id="asyncloader.', at + 1)]
        assert "<p>" in rest, f"{name} has no docstring"


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > len([*(ROOT / "docs").rglob("*.md")])
    asked = {found for page in pages for found in _ASKED.findall(page.read_text())}
    assert {found for found in asked if 'rel="canonical"' not in found} == set()


def test_links_out_of_the_pages_lead_to_the_code_host(site: Path) -> None:
    page = (site / "how-to/slow-loader/index.html").read_text()
    assert 'href="https://github.com/asyncloader/asyncloader/blob/main/examples/slow_loader.py"' in page
    # And those of README.md, which names all pages there, into the site.
    assert 'href="tutorial/"' in (site / "index.html").read_text()


def test_the_first_page_shows_the_plot_of_the_benchmarks_and_a_report(site: Path) -> None:
    shown = re.findall(r'<img [^>]*src="([^"#]+)', (site / "index.html").read_text())
    assert shown == ["benchmarks.svg", "images/report-light.png", "images/report-dark.png"]
    assert all((site / picture).is_file() for picture in shown)


def test_a_link_to_a_heading_that_is_not_there_ends_the_build(tmp_path: Path) -> None:
    # As the site is built, but of two pages instead of all.
    pages = tmp_path / "docs"
    (pages / "site").mkdir(parents=True)
    shutil.copy(ROOT / "docs/site/links.py", pages / "site")
    nav = "nav: [index.md, one.md]\nplugins: [search]\n"
    (pages / "site/mkdocs.yml").write_text(f"INHERIT: {ROOT}/docs/site/mkdocs.yml\n{nav}")
    (tmp_path / "README.md").write_text("# First\n")
    (pages / "one.md").write_text("# One\n\n[nowhere](index.md#nowhere)\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert "does not contain an anchor '#nowhere'" in built.stdout
    (pages / "one.md").write_text("# One\n\n[first](index.md#first)\n")
    assert build(tmp_path, tmp_path / "site").returncode == 0, "with no such link it is built"
