"""The index: read strictly, found by place, written by many at once, made and checked by a command."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from end_to_end.harness import python, subprocess_environment
from hypothesis import given
from hypothesis import strategies as st
from servers import run_moto

import asyncloader as al
from asyncloader import testing
from asyncloader.plan.pieces import Cut
from asyncloader.shards.expectations import Expected
from asyncloader.shards.index_building import update_index
from asyncloader.shards.index_check import ShardCheck
from asyncloader.shards.index_entries import format_index, is_index, parse_index
from asyncloader.shards.index_lookup import Entries, expectations, find_local_indexes
from asyncloader.stores.lookahead import ShardRead
from asyncloader.stores.reading import ShardChunks
from asyncloader.stores.store import BUFFER_BYTES

SHA = "00" * 32
ENTRY = {"name": "a.tar", "size_bytes": 3, "samples": 1, "sha256": SHA}
TWO = format_index(dict.fromkeys(("a.tar", "b.tar"), Expected(3, 1, bytes(32))))


def document(**changes: Any) -> bytes:
    return json.dumps({"asyncloader_index": 1, "shards": [ENTRY], **changes}).encode()


def with_entry(**changes: Any) -> bytes:
    return document(shards=[{**ENTRY, **changes}])


# --- parsing ---


_EXPECTED = st.builds(
    Expected,
    st.integers(0, (1 << 63) - 1),
    st.none() | st.integers(0, (1 << 63) - 1),
    st.binary(min_size=32, max_size=32),
    st.none() | st.binary(min_size=4, max_size=4),
)
_SEGMENT = st.text(min_size=1, max_size=20).filter(lambda text: "/" not in text and text not in (".", ".."))


@given(st.dictionaries(st.lists(_SEGMENT, min_size=1, max_size=3).map("/".join), _EXPECTED, max_size=5))
def test_what_is_written_is_read_back(entries: dict[str, Expected]) -> None:
    content = format_index(entries)
    assert is_index(content)
    assert parse_index(content) == entries


@given(st.binary(max_size=200))
def test_no_bytes_at_all_make_another_error(content: bytes) -> None:
    with pytest.raises(al.FormatError, match="index: "):
        parse_index(content)


def test_an_index_cut_anywhere_is_refused() -> None:
    content = format_index({"a.tar": Expected(3, 1, bytes(32))}).rstrip()
    for length in range(len(content)):
        with pytest.raises(al.FormatError, match="index: "):
            parse_index(content[:length])


def test_fields_that_are_not_known_are_ignored() -> None:
    content = json.dumps(
        {"made_by": "x", "asyncloader_index": 1, "shards": [{**ENTRY, "rows": []}], "more": {}}
    )
    assert parse_index(content.encode()) == {"a.tar": Expected(3, 1, bytes(32))}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "'asyncloader_index', which this file lacks"),
        (b'{"shards": []}', "which this file lacks"),
        (document(asyncloader_index=2), "expected version 1, found 2; update asyncloader"),
        (document(asyncloader_index=True), "expected version 1, found True"),
        (TWO.replace(b"},\n  {", b",\n  "), "two names in one entry"),
        (document(shards={}), "shards: expected array, got object"),
        (document(shards=[ENTRY, 7]), r"shards\[1\]: expected object, got int"),
        (document(shards=[ENTRY, ENTRY]), r"shards\[1\]\.name: 'a\.tar' occurs twice"),
        (b'{"asyncloader_index": 1, "shards": [' + b"9" * 5000 + b"]}", "not JSON"),
        (with_entry(name=None), r"shards\[0\]\.name: expected str, got null"),
        (with_entry(name="x" * 5000), r"shards\[0\]\.name: expected str of length <= 4096"),
        *((with_entry(name=name), r"a path below the index's folder, or a URL")
          for name in ("/etc/passwd", "../a.tar", "a/../../b.tar", "./a.tar", "a//b", "a/", "http://h/../a")),
        *((with_entry(size_bytes=size), r"shards\[0\]\.size_bytes: expected int")
          for size in (-1, 1.0, True, "3", None, 1 << 63)),
        (with_entry(samples=-1), r"shards\[0\]\.samples: expected int >= 0"),
        (with_entry(sha256=SHA[2:]), r"shards\[0\]\.sha256: expected str of length >= 64"),
        (with_entry(sha256="zz" * 32), r"shards\[0\]\.sha256: expected 64 hexadecimal digits"),
        (with_entry(crc32c=12345678), r"shards\[0\]\.crc32c: expected str, got int"),
    ],
)  # fmt: skip
def test_whatever_is_odd_is_refused_with_its_place(content: bytes, message: str) -> None:
    with pytest.raises(al.FormatError, match=message):
        parse_index(content)


def test_what_a_recipe_keeps_of_an_index_is_small() -> None:
    checks = tuple(Expected(number, 1000, os.urandom(32), os.urandom(4)) for number in range(1000))
    assert pickle.loads(pickle.dumps(checks)) == checks
    assert len(pickle.dumps(checks)) < 100 * len(checks)


# --- which entry is whose ---


@pytest.mark.parametrize(
    ("url", "index"),
    [
        ("/d/a.tar", "/d/asyncloader-index.json"),
        ("/d/x/../a.tar", "file:///d/asyncloader-index.json"),
        ("file:///d/a.tar", "/d/asyncloader-index.json"),
        ("a.tar", "asyncloader-index.json"),
        ("./a.tar", f"{os.getcwd()}/other.json"),
        ("http://h/d/a.tar?signature=1", "http://h/d/asyncloader-index.json?signature=2"),
        ("HTTP://user:word@H/d/%61.tar", "http://h/d/asyncloader-index.json"),
        ("s3://bucket/d/a.tar", "s3://bucket/d/asyncloader-index.json"),
        ("/a.tar", "/asyncloader-index.json"),
    ],
)
def test_a_relative_name_starts_from_the_folder_of_the_index(url: str, index: str) -> None:
    assert expectations([url], Entries(index, document())) == (Expected(3, 1, bytes(32)),)


def test_a_url_as_a_name_is_found_wherever_the_index_is() -> None:
    content = with_entry(name="https://h/d/a%20b.tar")
    assert expectations(["https://h/d/a b.tar?x=1"], Entries("/elsewhere/asyncloader-index.json", content))
    assert expectations(
        ["s3://b/a?b#c.tar"], Entries("asyncloader-index.json", with_entry(name="s3://b/a?b#c.tar"))
    )


@pytest.mark.parametrize(
    ("url", "index"),
    [
        ("/d/b.tar", "/d/asyncloader-index.json"),
        ("/e/a.tar", "/d/asyncloader-index.json"),
        ("/d/sub/a.tar", "/d/asyncloader-index.json"),
        ("https://h/d/a.tar", "http://h/d/asyncloader-index.json"),
        ("s3://other/a.tar", "s3://bucket/asyncloader-index.json"),
        ("s3://b/%61.tar", "s3://b/asyncloader-index.json"),  # keys know no escapes
    ],
)
def test_a_shard_that_the_named_index_does_not_know_is_refused(url: str, index: str) -> None:
    with pytest.raises(ValueError, match=r"has no entry for 1 of 1 shards; the first is .*asyncloader index"):
        expectations([url], Entries(index, document()))


def test_no_secret_of_a_url_is_in_a_message() -> None:
    with pytest.raises(ValueError, match="no entry") as caught:
        expectations(
            ["http://u:SENTINEL@h/b.tar?s=SENTINEL"], Entries("http://h/m.json?s=SENTINEL", document())
        )
    assert "SENTINEL" not in str(caught.value)
    with pytest.raises(al.FormatError) as broken:
        expectations(["http://h/b.tar"], Entries("http://h/m.json?s=SENTINEL", b"{}"))
    assert broken.value.shard == "http://h/m.json"


def test_two_names_of_one_shard_are_refused() -> None:
    content = document(shards=[ENTRY, {**ENTRY, "name": "http://h/%61.tar"}])
    with pytest.raises(al.FormatError, match=r"shards\[1\]\.name: 'a\.tar' occurs twice"):
        expectations(["http://h/a.tar"], Entries("http://h/asyncloader-index.json", content))


def test_indexes_beside_local_shards_are_found_once_per_folder(tmp_path: Path) -> None:
    for name in ("with", "without", "foreign"):
        (tmp_path / name).mkdir()
    (tmp_path / "with" / "asyncloader-index.json").write_bytes(document())
    (tmp_path / "foreign" / "asyncloader-index.json").write_text('{"name": "some web app"}')
    urls = [f"{tmp_path}/{name}" for name in ("with/a.tar", "without/a.tar", "with/b.tar", "foreign/a.tar")]
    known = Expected(3, 1, bytes(32))
    with pytest.warns(
        RuntimeWarning, match="foreign/asyncloader-index.json is no index of shards: it begins with b.{"
    ):
        found = find_local_indexes([*urls, "http://h/a.tar", f"file://{tmp_path}/with/a.tar"])
    assert found == (
        known, None, None, None, None, known,
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="is no index"):
        assert find_local_indexes(urls[1:]) == ()


def test_an_index_of_ours_that_is_broken_is_no_foreign_file(tmp_path: Path) -> None:
    (tmp_path / "asyncloader-index.json").write_bytes(document()[:-1])
    with pytest.raises(al.FormatError, match="not JSON") as caught:
        find_local_indexes([f"{tmp_path}/a.tar"])
    assert caught.value.shard == f"{tmp_path}/asyncloader-index.json"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"{", b"\0" * 5000, b"<html>", b"\xff\xfe", b"[1]", b'{"a": 1}', b"[" * 100_000],
    ids=range(9),
)
def test_a_found_index_that_is_none_is_warned_of(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "asyncloader-index.json").write_bytes(content)
    with pytest.warns(RuntimeWarning, match=rf"{tmp_path}/asyncloader-index\.json is .* asyncloader index"):
        assert find_local_indexes([f"{tmp_path}/a.tar"]) == ()


# --- holding a reading against its entry ---


CONTENT = b"the bytes of a shard"


def check_reading(
    expected: Expected | None,
    *,
    digests: dict[str, bytes] | None = None,
    total: int | None = len(CONTENT),
    start: int = 0,
) -> None:
    """Pass ``CONTENT`` from ``start`` on through a check of its bytes."""
    chunks = ShardChunks(ShardRead("s.tar", total=total, digests=digests or {}), BUFFER_BYTES, bool, bool)
    for at in range(start, len(CONTENT), 7):
        chunks.send_nowait(memoryview(CONTENT)[at : at + 7])
    chunks.finish()
    check = ShardCheck("s.tar", expected, Cut(1, byte=start))
    for chunk in chunks:
        check.add(chunks.shard, chunk)
    check.end(chunks.shard)


SOUND = Expected(len(CONTENT), None, hashlib.sha256(CONTENT).digest())
OTHER = hashlib.sha256(b"other").digest()


@pytest.mark.parametrize("start", [0, 5, len(CONTENT)])
@pytest.mark.parametrize("total", [None, len(CONTENT)])
@pytest.mark.parametrize("expected", [None, SOUND])
def test_a_sound_shard_passes_from_wherever_it_is_read(
    expected: Expected | None, total: int | None, start: int
) -> None:
    check_reading(expected, total=total, start=start, digests={"sha256": hashlib.sha256(CONTENT).digest()})


@pytest.mark.parametrize("start", [0, 5])
def test_a_length_that_the_server_does_not_tell_is_checked_at_the_end(start: int) -> None:
    with pytest.raises(al.StoreError, match="promises 21 bytes of this shard, found 20; restore"):
        check_reading(Expected(21, None, SOUND.sha256), total=None, start=start)


def test_a_digest_is_not_verified_from_the_middle_on() -> None:
    check_reading(None, start=5, digests={"sha256": OTHER})
    with pytest.raises(al.StoreError, match="the sha256"):
        check_reading(None, digests={"sha256": OTHER})


def test_the_stores_digest_is_verified_where_there_is_no_entry() -> None:
    check_reading(None, digests={"md5": hashlib.md5(CONTENT).digest(), "sha256": SOUND.sha256 or b""})
    with pytest.raises(al.StoreError, match="the md5"):
        check_reading(None, digests={"md5": bytes(16)})


def test_the_entry_is_verified_even_if_the_stores_digest_would_be_cheaper() -> None:
    crc32 = zlib.crc32(CONTENT).to_bytes(4, "big")
    with pytest.raises(al.StoreError, match=f"sha256 .* but {OTHER.hex()} was promised"):
        check_reading(Expected(len(CONTENT), None, OTHER), digests={"crc32": crc32})


def test_an_index_and_a_store_that_disagree_are_told_before_the_first_byte() -> None:
    shard = ShardRead("s.tar", total=len(CONTENT), digests={"sha256": OTHER})
    with pytest.raises(al.StoreError, match=rf"index promises the sha256 .* the store {OTHER.hex()}"):
        ShardCheck("s.tar", SOUND).add(shard, CONTENT[:1])


# --- writing ---


def entries_of(folder: Path) -> dict[str, Expected]:
    return dict(parse_index((folder / "asyncloader-index.json").read_bytes()))


def test_an_update_keeps_the_entries_of_files_that_are_there(tmp_path: Path) -> None:
    path = str(tmp_path / "asyncloader-index.json")
    for name in ("kept", "replaced"):
        (tmp_path / name).touch()
    elsewhere = {"sub/x.tar": Expected(1, 1, bytes(32)), "s3://b/x.tar": Expected(2, 2, bytes(32))}
    gone = dict.fromkeys(("kept", "replaced", "gone"), Expected(3, 3, bytes(32)))
    update_index(path, gone | elsewhere)
    update_index(path, {"replaced": Expected(4, 4, bytes(32))})
    assert entries_of(tmp_path) == {
        "kept": gone["kept"], "replaced": Expected(4, 4, bytes(32)), **elsewhere,
    }  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["asyncloader-index.json", "kept", "replaced"]


@pytest.mark.parametrize(
    "content", [b"{}", b"", b'{"name": "a web app"}', document(asyncloader_index=9), document()[:-1]]
)
def test_a_file_that_is_no_index_of_ours_is_never_replaced(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "asyncloader-index.json"
    path.write_bytes(content)
    with pytest.raises(al.FormatError) as caught:
        update_index(str(path), {"a": Expected(1, 1, bytes(32))})
    assert caught.value.shard == str(path)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["asyncloader-index.json"]


WRITE = """
import sys, asyncloader as al
folder, name = sys.argv[1:]
sys.stdin.readline()
with al.ShardWriter(f"{folder}/{name}-%d.jsonl", samples_per_shard=1) as writer:
    for number in range(5):
        writer.write({"n": number})
"""


def test_writers_that_close_at_once_lose_no_entry(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path), f"w{number}"],
            stdin=subprocess.PIPE,
            env=subprocess_environment(),
        )
        for number in range(6)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        with writer:
            assert writer.wait(30) == 0
    assert sorted(entries_of(tmp_path)) == [f"w{a}-{b}.jsonl" for a in range(6) for b in range(5)]
    assert len(os.listdir(tmp_path)) == 31


HOLD = """
import sys
from asyncloader.shards.index_building import _locked
with _locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_a_killed_holder_of_the_lock_stands_in_nobodys_way(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=subprocess_environment(),
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
        waiting = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path), "w"],
            stdin=subprocess.PIPE,
            env=subprocess_environment(),
        )
        with waiting:
            assert waiting.stdin is not None
            waiting.stdin.write(b"go\n")
            waiting.stdin.flush()
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(1)
            holder.send_signal(signal.SIGKILL)
            assert waiting.wait(30) == 0
    assert len(entries_of(tmp_path)) == 5


# --- the command ---


def write_shards(folder: Path, suffix: str = "tar.gz") -> list[Path]:
    with al.ShardWriter(folder / f"s-%d.{suffix}", samples_per_shard=10) as writer:
        for number in range(25):
            writer.write({"__key__": f"{number}", "txt": f"sample {number}" * 20})
    return [Path(shard.path) for shard in writer.shards]


def index(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "asyncloader", "index", *arguments)


def verify(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "asyncloader", "verify", *arguments)


def test_the_command_makes_the_index_that_the_writer_made(tmp_path: Path) -> None:
    write_shards(tmp_path)
    written = (tmp_path / "asyncloader-index.json").read_bytes()
    (tmp_path / "asyncloader-index.json").unlink()
    ran = index(tmp_path / "s-*.tar.gz")
    assert ran.returncode == 0, ran.stderr
    assert "s-2.tar.gz: 5 samples" in ran.stdout and not ran.stderr
    assert (tmp_path / "asyncloader-index.json").read_bytes() == written
    assert verify(tmp_path / "s-{0..2}.tar.gz").returncode == 0


def test_the_command_reads_shards_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    write_shards(tmp_path / "shards", "tar")
    with testing.serve(tmp_path / "shards") as server:
        urls = f"{server.url}/s-{{0..2}}.tar?signature=SENTINEL"
        assert index(urls).returncode == 2, "a place for the index must be named"
        made = index(urls, "-o", tmp_path / "made.json")
        assert made.returncode == 0, made.stderr
        checked = [
            verify(urls, "-m", index)
            for index in (tmp_path / "made.json", f"{server.url}/asyncloader-index.json?signature=SENTINEL")
        ]
    assert [ran.returncode for ran in checked] == [0, 0], checked
    assert "SENTINEL" not in "".join(ran.stdout + ran.stderr for ran in (made, *checked))
    names = parse_index((tmp_path / "made.json").read_bytes())
    assert list(names) == [f"{server.url}/s-{number}.tar" for number in range(3)]
    assert list(names.values()) == list(entries_of(tmp_path / "shards").values())


@pytest.mark.servers
def test_the_command_reads_the_shards_below_a_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shards").mkdir()
    write_shards(tmp_path / "shards", "tar")
    with run_moto() as s3:
        client = s3.client()
        client.create_bucket(Bucket="corpus")
        for path in (tmp_path / "shards").iterdir():
            client.upload_file(str(path), "corpus", f"train/{path.name}")
        client.close()
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_access_key)
        monkeypatch.setenv("AWS_REGION", s3.region)
        made = index("s3://corpus/train/", "-o", tmp_path / "made.json")
        assert made.returncode == 0, made.stderr
        checked = verify("s3://corpus/*/s-?.tar", "-m", "s3://corpus/train/asyncloader-index.json")
        missing = index("s3://corpus/elsewhere/", "-o", tmp_path / "none.json")
    assert checked.returncode == 0, checked.stderr
    names = parse_index((tmp_path / "made.json").read_bytes())
    assert list(names) == [f"s3://corpus/train/s-{number}.tar" for number in range(3)]
    assert list(names.values()) == list(entries_of(tmp_path / "shards").values())
    assert missing.returncode == 2 and "there is no object at all" in missing.stderr


def test_a_bad_shard_fails_the_command_and_nothing_is_written(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    (tmp_path / "asyncloader-index.json").unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-20])
    ran = index(*shards, tmp_path / "missing.tar")
    assert ran.returncode == 1
    assert f"BAD {shards[1]}: gzip: truncated" in ran.stdout and "BAD" in ran.stdout.splitlines()[3]
    assert "2 of 4 shards bad: no index was written" in ran.stdout
    assert not (tmp_path / "asyncloader-index.json").exists()


def test_a_check_lists_everything_that_is_wrong(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, "tar")
    flipped = bytearray(shards[0].read_bytes())
    flipped[600] ^= 1
    shards[0].write_bytes(flipped)
    shards[2].write_bytes(shards[1].read_bytes())
    (tmp_path / "new.tar").write_bytes(shards[1].read_bytes())
    ran = verify(*shards, tmp_path / "new.tar")
    assert ran.returncode == 1
    first, second, third, fourth, last = ran.stdout.splitlines()
    assert f"BAD {shards[0]}: crc32c: expected" in first and "; sha256: expected" in first
    assert "matches the index" in second
    assert "samples: expected 5, found 10" in third and "size_bytes" in third
    assert fourth.endswith("new.tar: no entry in the index")
    assert last == "3 of 4 shards bad"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: URL"),
        (["/nowhere/*.tar"], "no file matches"),
        (["/d/a.zip"], "cannot tell the format"),
        (["/d/a.zip", "--format", "zip"], "format must be one of"),
        (["/d/a.tar", "/e/a.tar"], "not of one folder or prefix: pass the place of their index as -o"),
        (["/d/a.tar", "-o", "/e/asyncloader-index.json"], "is not below /e"),
        (["/d/a.tar", "-o", "http://h/asyncloader-index.json"], "written to a local path"),
        (["http://h/a.tar?x=1", "http://h/a.tar?x=2", "-o", "m.json"], "two of the shards have one name"),
    ],
)
def test_wrong_calls_of_the_command_are_refused(arguments: list[str], message: str) -> None:
    ran = index(*arguments)
    assert ran.returncode == 2 and message in ran.stderr
