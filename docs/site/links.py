"""What the site is built with beyond its configuration: the links hold here as they do on the code host.

The pages are read in both places. There, README.md is the first page, and a link may lead to any file of the
repository; here, README.md becomes the first page, and a link out of docs/ leads to the code host.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown"]

_TARGET = re.compile(r"(?<=\]\()\.\./[^)\s]*(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Let README.md be the first page."""
    top = posixpath.dirname(config.docs_dir)
    with open(f"{top}/README.md") as file:
        readme = file.read()
    # It names the files in full, for package indexes; from here they are near.
    text = readme.replace(f"{config.extra['repository']}/blob/main/docs/", "")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Lead links that leave docs/ to the code host; that their files exist, the tests know."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def lead(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[0]))
        return link[0] if path.startswith("docs/") else f"{config.extra['repository']}/blob/main/{path}"

    return _TARGET.sub(lead, markdown)
