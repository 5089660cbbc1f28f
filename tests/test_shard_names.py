"""What the names of shards tell, and what is said where they tell nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import asyncloader as al
from asyncloader.shard_names import check_names, check_prefix, formats_of


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def formats_found(urls: Any, **given: Any) -> list[str]:
    return list(al.from_urls(urls, **given).source.formats)  # type: ignore[attr-defined]


def test_a_folder_of_several_formats_is_refused_with_a_glob_that_works(tmp_path: Path) -> None:
    touch(tmp_path, "README.txt", "a.tar.gz", "deep/b.tar.gz", "notes.md")
    message = r"2 tar \(such as a\.tar\.gz\), 1 text \(such as README\.txt\).*such as (\S+), or"
    with pytest.raises(ValueError, match=message) as caught:
        al.from_urls(f"{tmp_path}/")
    glob = str(caught.value).partition("by a glob, such as ")[2].partition(",")[0]
    assert glob == f"{tmp_path}/**/*.tar.gz"
    assert formats_found(glob) == ["tar", "tar"]
    assert formats_found(f"{tmp_path}/", format="text") == ["text"] * 4
    assert formats_found(f"{tmp_path}/*.t*") == ["text", "tar"]
    assert formats_found([f"{tmp_path}/a.tar.gz", f"{tmp_path}/README.txt"]) == ["tar", "text"]


def test_each_folder_may_have_a_format_of_its_own(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.tar", "b/x.txt")
    assert formats_found(f"{tmp_path}/{{a,b}}/") == ["tar", "text"]


def test_a_prefix_of_several_formats_shows_no_secret() -> None:
    with pytest.raises(ValueError, match=r"below s3://b/ are .* s3://b/\*\*/\*\.tgz, or"):
        check_prefix("s3://me:SENTINEL@b/", ["s3://b/a.txt", "s3://b/x.tgz"], format=None)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("s3://corpus/tar", r"'s3://corpus/tar': a prefix ends with '/' \(s3://corpus/tar/ for"),
        ("gs://corpus", r"'gs://corpus': a prefix ends with '/' \(gs://corpus/ for"),
        ("http://h/", "'http://h/': web servers cannot be listed, so name each shard"),
        ("http://h?x=SENTINEL", "'http://h': web servers cannot be listed, so name each shard"),
        ("http://me:SENTINEL@h/x/y.bin?x=SENTINEL", r"'http://h/x/y\.bin': expected a name that ends with"),
        ("nowhere/", "'nowhere/': there is no such folder"),
        ("nowhere/x.zip", r"'nowhere/x\.zip': expected a name that ends with one of \.tar"),
    ],
)
def test_a_name_without_a_format_is_told_whole_with_what_may_be_meant(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        formats_of([name], None)


def test_a_folder_without_its_slash_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"it is a folder, .* \({tmp_path}/ for all"):
        al.from_urls(tmp_path)


@pytest.mark.parametrize("given", [{}, {"format": "tar"}])
def test_a_glob_of_a_web_server_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"'http://h/\*\.tar' is a glob, and web servers cannot be listed"):
        al.from_urls("http://h/*.tar?x=SENTINEL", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("root", ["http://h", "s3://b", "hf://datasets/o/n"])
def test_an_unclosed_brace_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match=r"'.*/train-\{000\.\.007\.tar' has a brace that is not closed"):
        al.from_urls(f"{root}/train-{{000..007.tar")


def test_other_braces_and_stars_are_no_mistakes() -> None:
    check_names(
        ["http://h/{x}.tar?x={*", "s3://b/*.tar", "/data/{x*.tar", "http://h/a}.tar", "s3://b/[{]}.tar"]
    )
