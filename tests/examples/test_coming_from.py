"""The programs of docs/coming-from: theirs and ours give the same samples, each with the library itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from peer_programs import peers_python

ROOT = Path(__file__).resolve().parents[2]

#: What each prints. Those of the second part run in the environment that `make peers` makes.
OF_TORCH = {"coming_from_torch.py": r"^200 samples, the same\n13 batches, the same$"}
OF_PEERS = {
    "coming_from_datasets.py": r"^133 samples, the same$",
    "coming_from_ray.py": r"^200 samples, the same$",
    "coming_from_webdataset.py": r"^200 samples, the same$",
}
#: Of other pages, which need the libraries as well.
WITH_PEERS = {
    "litdata_chunks.py": (
        r"32 batches, images \(4, 8, 8, 3\), each once: True\n"
        r"17 batches of tokens, \(8, 128\) torch\.int32, \(8, 128\)\n"
        r"500 samples, the same$"
    ),
    "mds_shards.py": (
        r"^26 batches, images \(8, 32, 32, 3\), each once: True\n"
        r"10 batches of \['id', 'tokens', 'tokens_lengths'\]\n"
        # Their loader collates by torch's function, which warns of read-only arrays.
        r"(?:.*torch/utils/data/_utils/collate\.py.*\n.*\n)*200 samples, the same$"
    ),
}

# None of them may ask the network for anything, or leave a file outside the test's folder.
_APART = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
# Ray alone takes half of it on two busy cores.
_LIMIT_S = 140


@pytest.fixture
def folder() -> Iterator[Path]:
    """Their home and place for files; with a short name, since Ray has sockets in it."""
    # Ray's processes may still write logs when they have been told to end.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        yield Path(name)


def run(python: Path | str, example: str, folder: Path) -> str:
    """What it prints; its own words if it fails."""
    ran = subprocess.run(
        [str(python), str(ROOT / "examples" / example)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder), "TMPDIR": str(folder)} | _APART,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def test_every_page_has_its_program_and_every_program_is_run() -> None:
    programs = {path.name for path in (ROOT / "examples").glob("coming_from_*.py")}
    assert programs == OF_TORCH.keys() | OF_PEERS.keys()
    pages = {path.stem for path in (ROOT / "docs/coming-from").glob("*.md")}
    assert {f"coming_from_{page}.py" for page in pages} == programs


@pytest.mark.parametrize("example", OF_TORCH)
def test_a_program_for_torch_gives_the_same(example: str, folder: Path) -> None:
    assert re.search(OF_TORCH[example], run(sys.executable, example, folder), re.MULTILINE)


@pytest.mark.parametrize("example", OF_PEERS | WITH_PEERS)
def test_a_program_for_another_library_gives_the_same(example: str, folder: Path) -> None:
    printed = run(peers_python(), example, folder)
    assert re.search((OF_PEERS | WITH_PEERS)[example], printed, re.MULTILINE), printed
