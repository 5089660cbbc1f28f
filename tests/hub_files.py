"""What a hub's server has of a data set: listings of its revisions, and their files."""

from __future__ import annotations

import json
from collections.abc import Mapping

__all__ = ["hub_of"]


def hub_of(name: str, revisions: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
    """Contents for ``testing.serve``: each revision's tree, and its files."""
    contents = {}
    for revision, files in revisions.items():
        entries = [{"type": "file", "path": path, "size": len(content)} for path, content in files.items()]
        contents[f"api/datasets/{name}/tree/{revision}"] = json.dumps(entries).encode()
        for path, content in files.items():
            contents[f"datasets/{name}/resolve/{revision}/{path}"] = content
    return contents
