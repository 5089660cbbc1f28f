"""``asyncloader ls``."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from asyncloader import testing

from .conftest import Ask, Place


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(folder.glob("s-*"))]


def test_a_prefix_a_glob_and_braces_mean_the_same_shards(ask: Ask, place: Place, corpus: Path) -> None:
    wanted = [f"{place.root}tar/s-{number}.tar" for number in range(3)]
    for name in ("tar/", "tar/*.tar", "tar/s-{0..2}.tar"):
        told = ask("ls", *place(name), "--json")
        assert (told.status, told.err) == (0, "")
        assert [shard["url"] for shard in told.json["shards"]] == wanted
        assert [shard["size_bytes"] for shard in told.json["shards"]] == sizes(corpus / "tar")
        assert {shard["format"] for shard in told.json["shards"]} == {"tar"}
        assert told.json["size_bytes"] == sum(sizes(corpus / "tar")) and told.json["bad"] == 0


def test_the_table_ends_in_a_total(ask: Ask, place: Place) -> None:
    told = ask("ls", *place("tar/", "jsonl/"))
    *lines, total = told.out.splitlines()
    assert [line.split()[-1] for line in lines] == [
        *(f"{place.root}tar/s-{number}.tar" for number in range(3)),
        *(f"{place.root}jsonl/s-{number}.jsonl.gz" for number in range(3)),
    ]
    assert total.startswith("6 shards, ") and " to " in total


def test_a_shard_that_is_not_there_is_named_beside_the_others(ask: Ask, place: Place) -> None:
    told = ask("ls", *place("tar/s-{1..3}.tar"))
    assert told.status == 1
    lines = told.out.splitlines()
    assert lines[2].startswith(f"BAD {place.root}tar/s-3.tar: ") and lines[3].endswith("1 unavailable")
    assert ask("ls", *place("tar/s-{1..3}.tar"), "--json").json["bad"] == 1


def test_a_web_server_is_asked_for_each_length_and_gets_the_headers(ask: Ask, corpus: Path) -> None:
    with testing.serve(corpus / "tar") as server:
        told = ask("ls", f"{server.url}/s-{{0..2}}.tar?key=SENTINEL", "--header", "X-Who: me", "--json")
        assert {request.headers["x-who"] for request in server.requests} == {"me"}
    assert [shard["size_bytes"] for shard in told.json["shards"]] == sizes(corpus / "tar")
    assert "SENTINEL" not in told.out


class _InChunks(BaseHTTPRequestHandler):
    """Answers in chunks, as servers do that make their answers: the length is nowhere to be read."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"3\r\nabc\r\n0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_shard_whose_length_a_server_does_not_tell_is_counted_as_such(ask: Ask) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _InChunks) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            told = ask("ls", f"http://127.0.0.1:{server.server_port}/x.tar")
        finally:
            server.shutdown()
            thread.join()
    assert told.status == 0 and told.out.splitlines()[-1] == "1 shard, 0 B; 1 of unknown length"


def test_a_file_of_an_unknown_format_is_listed_all_the_same(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(bytes(1500))
    assert ask("ls", tmp_path / "a.zip").out.splitlines()[0].split() == [
        "1.5",
        "kB",
        "?",
        str(tmp_path / "a.zip"),
    ]


def test_shards_of_no_bytes_are_told(ask: Ask, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.txt", "c.jsonl.gz", "d.tar", "e.bin"):
        (tmp_path / name).touch()
    told = ask("ls", f"{tmp_path}/a.jsonl", f"{tmp_path}/b.txt", f"{tmp_path}/e.bin")
    assert told.status == 0 and told.out.splitlines()[-1].endswith("; 3 empty")
    assert [line.endswith(": empty, without a sample") for line in told.out.splitlines()[:-1]] == [True] * 3
    told = ask("ls", f"{tmp_path}/c.jsonl.gz", f"{tmp_path}/d.tar")
    assert told.status == 1
    assert told.out.splitlines() == [
        f"BAD {tmp_path}/c.jsonl.gz: it has 0 bytes, which is no whole gzip",
        f"BAD {tmp_path}/d.tar: it has 0 bytes, which is no whole tar",
        "2 shards, 0 B: from 0 B to 0 B each; 2 unavailable",
    ]
