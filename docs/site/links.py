"""What the site is built with beyond its configuration: its first page, and links that work in both places.

The pages are read on the code host, too. There, README.md is the first page, and a link may lead to any file
of the repository. Here, README.md becomes the first page, with pictures, and a link out of docs/ leads to the
code host.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown"]

# A package index would show no picture of the repository, so README.md has none.
_BEFORE_PICTURES = "## What it promises\n"
_TOP = '{ style="width: 100%; height: 24rem; object-fit: cover; object-position: top" }'
_PICTURES = f"""<div class="grid" markdown>

[![Samples per second of asyncloader and other loaders](benchmarks.svg){_TOP}](benchmarks.md)

[![The report of a pass](images/report-light.png#only-light){_TOP}\
![The report of a pass](images/report-dark.png#only-dark){_TOP}](how-to/trace.md)

</div>

"""
# The tabs lead to the other pages.
_HIDE = "---\nhide: [navigation, toc]\n---\n\n"

_TARGET = re.compile(r"(?<=\]\()\.\./[^)\s]*(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make README.md the first page."""
    top = posixpath.dirname(config.docs_dir)
    with open(f"{top}/README.md") as file:
        readme = file.read()
    # Its links are absolute, for package indexes.
    text = readme.replace(f"{config.extra['repository']}/blob/main/docs/", "")
    text = text.replace(_BEFORE_PICTURES, _PICTURES + _BEFORE_PICTURES)
    files.append(File.generated(config, "index.md", content=_HIDE + text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Lead links that leave docs/ to the code host; tests check that their files exist."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def lead(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[0]))
        return link[0] if path.startswith("docs/") else f"{config.extra['repository']}/blob/main/{path}"

    return _TARGET.sub(lead, markdown)
