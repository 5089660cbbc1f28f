"""Commands on folders of MDS and LitData, whose shards an ``index.json`` names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from foreign_folders import BLOCK, write_litdata

import asyncloader as al

from .conftest import FOREIGN, Ask, Place

#: A folder of the corpus, and what says how it is read.
MDS = ("mds", "--format", "mds")
LITDATA = ("litdata", "--format", "litdata")
TOKENS = ("tokens", "--format", "litdata", "--block-size", str(BLOCK))


def copied(corpus: Path, tmp_path: Path, name: str) -> Path:
    """A folder of the corpus, to be changed."""
    return Path(shutil.copytree(corpus / name, tmp_path / name))


def test_head_shows_the_first_samples_and_images_by_their_headers(ask: Ask, place: Place) -> None:
    for name, *options in (MDS, LITDATA):
        told = ask("head", *place(name), *options, "-n", "2", "--json")
        assert (told.status, told.err) == (0, "")
        first, second = told.json["samples"]
        assert [*first] == ["id", "image", "text", "tokens"]
        assert (first["image"]["kind"], first["image"]["shape"]) == ("jpeg", [48, 64])
        assert (first["tokens"]["dtype"], first["tokens"]["shape"]) == ("int32", [1])
        assert second["text"]["beginning"] == "sample 1 é"
    name, *options = TOKENS
    (sample,) = ask("head", *place(name), *options, "-n", "1", "--json").json["samples"]
    assert sample["tokens"]["shape"] == [BLOCK]


def test_head_picks_columns_in_order(ask: Ask, corpus: Path) -> None:
    for name, *options in (MDS, LITDATA):
        told = ask("head", corpus / name, *options, "--columns", "text,id", "--json")
        assert [*told.json["samples"][0]] == ["text", "id"]
        told = ask("head", corpus / name, *options, "--columns", "texts")
        assert (told.status, told.err.count("\n")) == (2, 1) and "did you mean 'text'" in told.err
    told = ask("head", corpus / "mds/shard.00001.mds", "-n", "1")  # by its suffix
    assert "jpeg 64x48" in told.out


def test_ls_names_the_shards_of_the_index(ask: Ask, place: Place, corpus: Path) -> None:
    for name, *options in (MDS, LITDATA, TOKENS):
        files = sorted(path for path in (corpus / name).iterdir() if path.name != "index.json")
        told = ask("ls", *place(name), *options, "--json")
        assert (told.status, told.err) == (0, "")
        shards = [(shard["url"], shard["size_bytes"], shard["format"]) for shard in told.json["shards"]]
        format = options[1]
        assert shards == [(f"{place.root}{name}/{file.name}", file.stat().st_size, format) for file in files]


def test_ls_names_a_shard_that_is_missing(ask: Ask, corpus: Path, tmp_path: Path) -> None:
    folder = copied(corpus, tmp_path, "mds")
    (folder / "shard.00001.mds").unlink()
    told = ask("ls", folder, "--format", "mds")
    assert told.status == 1
    assert told.out.splitlines()[1].startswith(f"BAD {folder}/shard.00001.mds: ")
    assert told.out.count("\n") == 4 and told.out.endswith("; 1 unavailable\n")


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_bench_reads_all_samples(ask: Ask, place: Place, workers: str) -> None:
    options = ("--batch-size", "8", "--num-workers", workers, "--json")
    for (name, *format), more in (
        (MDS, ["--pad", "tokens"]),
        (LITDATA, ["--columns", "id,image"]),
        (TOKENS, []),
    ):
        told = ask("bench", *place(name), *format, *options, *more)
        assert (told.status, told.err) == (0, "")
        (ran,) = told.json["runs"]
        assert ran["is_whole"] and (ran["statistics"]["samples"] == sum(FOREIGN)) == (name != "tokens")


@pytest.mark.usefixtures("fork_server")
def test_bench_decodes_images_if_it_is_asked_to(ask: Ask, corpus: Path) -> None:
    measured = {}
    for decode in ([], ["--decode"]):
        told = ask("bench", corpus / "litdata", *LITDATA[1:], "--columns", "image", *decode, "--json")
        (ran,) = told.json["runs"]
        measured[bool(decode)] = ran["statistics"]["size_bytes"]
    assert measured[True] == sum(FOREIGN) * 3 * 48 * 64 > measured[False]


@pytest.mark.parametrize("to", ["tar", "parquet"])
def test_convert_writes_what_from_urls_reads(ask: Ask, place: Place, tmp_path: Path, to: str) -> None:
    for name, *options in (MDS, LITDATA, TOKENS):
        (url,) = place(name)[:1]
        command = (
            "convert",
            *place.options,
            *options,
            url,
            tmp_path / name,
            "--to",
            to,
            "--num-workers",
            "0",
        )
        told = ask(*command, "--samples-per-shard", "15", "--json")
        assert told.status == 0, told.err
        found = al.from_urls(f"{tmp_path / name}/").head(1000)
        assert len(found) == told.json["samples"]
        if name != "tokens":
            assert (told.json["samples"], told.json["shards"]) == (sum(FOREIGN), 3)
            assert found[7]["image"][-4:] == b"\7\0\0\0"
        assert "existed" in ask(*command, "--samples-per-shard", "15").out


def test_verify_holds_shards_against_the_index(ask: Ask, place: Place) -> None:
    for name, *options in (MDS, LITDATA, TOKENS):
        told = ask("verify", *place(name), *options, "--json")
        assert (told.status, told.err) == (0, "")
        assert told.json["index"] == f"{place.root}{name}/index.json"
        assert [shard["wrong"] for shard in told.json["shards"]] == [[], [], []]
        assert ask("verify", *place(name), *options).out.endswith("3 shards match index.json\n")


def test_verify_tells_what_differs(ask: Ask, corpus: Path, tmp_path: Path) -> None:
    folder = copied(corpus, tmp_path, "mds")
    shards = [folder / f"shard.0000{number}.mds" for number in range(3)]
    content = bytearray(shards[0].read_bytes())
    content[-1] ^= 1
    shards[0].write_bytes(content)
    shards[1].unlink()
    index = json.loads((folder / "index.json").read_text())
    index["shards"][2]["samples"] += 1
    (folder / "index.json").write_text(json.dumps(index))
    told = ask("verify", folder, *MDS[1:], "--json")
    assert (told.status, told.json["bad"]) == (1, 3)
    (digest,), (missing,), (samples,) = (shard["wrong"] for shard in told.json["shards"])
    assert digest.startswith("sha256: expected ") and "No such file" in missing
    assert samples == f"samples: expected {FOREIGN[2] + 1}, found {FOREIGN[2]}"


def test_verify_tells_a_chunk_of_another_length(ask: Ask, corpus: Path, tmp_path: Path) -> None:
    folder = copied(corpus, tmp_path, "litdata")
    with open(folder / "chunk-0-1.bin", "ab") as file:
        file.write(b"x")
    told = ask("verify", folder, *LITDATA[1:])
    assert told.status == 1 and told.out.splitlines()[1].startswith(f"BAD {folder}/chunk-0-1.bin: ")


def test_verify_computes_whichever_digest_the_index_has(ask: Ask, corpus: Path, tmp_path: Path) -> None:
    folder = copied(corpus, tmp_path, "mds")
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["hashes"] = {"sha1": "00" * 20}
    (folder / "index.json").write_text(json.dumps(index))
    told = ask("verify", folder, *MDS[1:], "--json")
    assert [shard["wrong"][0][:17] for shard in told.json["shards"]] == ["sha1: expected 00"] * 3


def test_simulate_goes_by_the_index(ask: Ask, place: Place, tmp_path: Path) -> None:
    for name, *options in (MDS, LITDATA, TOKENS):
        told = ask("simulate", *place(name), *options, "--first-byte", "10ms")
        assert (told.status, told.err) == (0, "")
        assert told.out.startswith("3 shards, ") and "without an index" in told.out
    packed = write_litdata(tmp_path / "packed", (3, 4), "zstd")
    told = ask("simulate", packed, *LITDATA[1:])
    assert told.status == 2 and "the index lacks the length of 2 of the 2 shards" in told.err


READERS = ("ls", "head", "bench", "verify")


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/mds", "{}/mds", *MDS[1:]], "takes one URL, that of the folder with the index.json, but got 2"),
        (["{}/tar", *MDS[1:]], "/tar/index.json': a folder of MDS has an index.json"),
        (["{}/tar", *LITDATA[1:]], "/tar/index.json': a folder of LitData's chunks has an index.json"),
        (["{}/mds/shard.00000.mds", *MDS[1:]], "there is no "),
        (["{}/litdata", *MDS[1:]], "expected the index.json of MDS"),
        (["{}/tokens", *LITDATA[1:]], "pass the number of tokens of a sample, by block_size= (--block-size)"),
        (["{}/litdata", *TOKENS[1:]], "these hold samples: leave it out"),
        (["{}/mds", *MDS[1:], "--block-size", "4"], "block_size (--block-size) is for LitData's chunks"),
        (["{}/tar/", "--block-size", "4"], "block_size (--block-size) is for LitData's chunks"),
        (["{}/tokens", *LITDATA[1:], "--block-size", "0"], "block_size should be a positive integer"),
        (["{}/tokens", *LITDATA[1:], "--block-size", "x"], "invalid int value: 'x'"),
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_wrong_calls_are_told_in_a_line(
    ask: Ask, corpus: Path, command: str, arguments: list[str], message: str
) -> None:
    told = ask(command, *(argument.format(corpus) for argument in arguments))
    assert (told.status, told.out) == (2, "")
    assert message in told.err
    assert told.err.startswith(f"asyncloader {command}: ") or "invalid int value" in message


def test_a_bucket_without_an_index_says_what_has_one(ask: Ask, bucket: Place) -> None:
    told = ask("head", *bucket("tar"), *MDS[1:])
    assert (told.status, told.out, told.err.count("\n")) == (2, "", 1)
    assert "404" in told.err and "a folder of MDS has an index.json" in told.err


def test_no_index_is_made_where_there_is_one(ask: Ask, corpus: Path) -> None:
    for name, *options in (MDS, LITDATA, TOKENS):
        told = ask("index", corpus / name, *options)
        assert (told.status, told.err.count("\n")) == (2, 1)
        assert "have an index.json, and need no other index" in told.err
    told = ask("index", f"{corpus}/tar/", "--block-size", "4")
    assert told.status == 2 and "block_size (--block-size) is for LitData's chunks" in told.err


def test_an_index_beside_an_index_is_refused(ask: Ask, corpus: Path, tmp_path: Path) -> None:
    for command in (["verify"], ["simulate"], ["convert", "--num-workers", "0"]):
        told = ask(
            *command, *MDS[1:], "--index", "m.json", corpus / "mds", *([tmp_path] * (len(command) > 1))
        )
        assert told.status == 2 and "an index is for shards without an index.json" in told.err
