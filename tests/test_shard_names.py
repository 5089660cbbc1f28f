"""What the names of shards tell, and what is said where they tell nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import asyncloader as al
from asyncloader.pipeline.dataset import stages_of
from asyncloader.shards.names import check_names, check_prefix, formats_of
from asyncloader.stores.urls import local_path


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def formats_found(urls: Any, **given: Any) -> list[str]:
    return list(stages_of(al.from_urls(urls, **given)).source.formats)  # type: ignore[attr-defined]


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
        ("http://h/", "'http://h/': web servers cannot be listed, so name each shard.* in a list$"),
        ("http://h?x=SENTINEL", "'http://h': web servers cannot be listed, so name each shard"),
        ("http://me:SENTINEL@h/x/y.bin?x=SENTINEL", r"'http://h/x/y\.bin': expected a name that ends with"),
        ("", "urls should name shards, but got the empty name ''"),
        ("nowhere/x.zip", r"nowhere/x\.zip'; expected a name that ends with one of \.tar"),
    ],
)
def test_a_name_without_a_format_is_told_whole_with_what_may_be_meant(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        formats_of([name], None)


def test_a_folder_without_its_slash_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"it is a folder; pass '{tmp_path}/' for all .* cannot end with '/'$"
    ):
        al.from_urls(tmp_path)


@pytest.mark.parametrize("given", [{}, {"format": "tar"}])
def test_a_folder_that_is_not_there_is_told_so(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^there is no folder '{tmp_path}/x/'; check the path$"):
        al.from_urls(f"{tmp_path}/x/", **given)
    with pytest.raises(ValueError, match=r"^there is no folder 'nowhere/' \(looked from /"):
        al.from_urls("nowhere/", **given)


@pytest.mark.parametrize("given", [{}, {"format": "tar"}])
def test_a_glob_of_a_web_server_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"'http://h/\*\.tar' is a glob, and web servers cannot be listed"):
        al.from_urls("http://h/*.tar?x=SENTINEL", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("root", ["http://h", "s3://b", "hf://datasets/o/n", "file://", "/data", "."])
@pytest.mark.parametrize("name", ["train-{000..007.tar", "train-{000..007", "{a,b/x.tar", "{{0..1}.tar"])
def test_an_unclosed_brace_is_refused(root: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{re.escape(f'{root}/{name}')}' has a brace that is not closed"):
        al.from_urls(f"{root}/{name}")


def test_a_brace_of_the_name_itself_can_be_written(tmp_path: Path) -> None:
    touch(tmp_path, "{x-0.tar", "{x-1.tar")
    found = (f"{tmp_path}/{{x-0.tar", f"{tmp_path}/{{x-1.tar")
    for name in (f"{tmp_path}/[{{]x-{{0..1}}.tar", f"{tmp_path}/[{{]*.tar"):
        assert stages_of(al.from_urls(name)).source.urls == found  # type: ignore[attr-defined]
    (named,) = stages_of(al.from_urls(f"file://{tmp_path}/%7Bx-0.tar")).source.urls  # type: ignore[attr-defined]
    assert local_path(named) == found[0]


@pytest.mark.parametrize("root", ["http://h", "s3://b", "file://", "/data"])
def test_a_range_that_falls_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match=rf"'{root}/x-\{{127\.\.000\}}\.tar'.* range should rise"):
        al.from_urls(f"{root}/x-{{127..000}}.tar")


def test_a_wrong_brace_is_told_before_any_folder_is_looked_into() -> None:
    with pytest.raises(ValueError, match="range should rise"):
        al.from_urls(["/nowhere/*.tar", "s3://b/", "/data/{9..1}.tar"])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (
            "pipe:aws s3 cp s3://b/x-{0..9}.tar -",
            r"name the shard itself by its URL or path, 's3://b/x-\{0\.\.9\}",
        ),
        (
            "pipe:curl -sH 'A: SENTINEL' https://me:SENTINEL@h/x.tar?sig=SENTINEL",
            "path, 'https://h/x.tar', and",
        ),
        (" PIPE: cat x.tar", "by its URL or path, and pass headers"),
        (
            "s3://b/x-{0..9}.tar::s3://b/y.tar",
            r"from_urls\(\['s3://b/x-\{0\.\.9\}\.tar', 's3://b/y\.tar'\]\)",
        ),
        (
            "https://u:SENTINEL@h/x.tar::https://h/y.tar?SENTINEL",
            r"\['https://h/x\.tar', 'https://h/y\.tar'\]",
        ),
        ("a.tar::/d/b.tar.gz::c.tar", r"from_urls\(\['a\.tar', '/d/b\.tar\.gz', \.\.\.\]\)"),
        ("simplecache::s3://b/x.tar", "name the shard itself, 's3://b/x.tar', and pass cache_dir="),
    ],
)
def test_what_webdataset_and_fsspec_understand_is_answered_with_what_to_write(name: str, answer: str) -> None:
    with pytest.raises(ValueError, match=answer) as caught:
        al.from_urls(name)
    assert "SENTINEL" not in str(caught.value)


def test_other_braces_and_stars_are_no_mistakes() -> None:
    check_names(
        ["http://h/{x}.tar?x={*", "s3://b/*.tar", "/data/x*.tar", "http://h/a}.tar", "s3://b/a[}].tar"]
    )
    check_names(["http://[::1]:80/x.tar", "s3://b/a::b.tar", "/data/a::b.tar", "http://h/x.tar?a::http://h/"])
