"""From what the user names to shards: braces, local folders and globs, and what is no name at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncloader.stores import expanding
from asyncloader.stores import names as names_module
from asyncloader.stores.expanding import RemotePattern, read_urls
from asyncloader.stores.names import Braces, ShardNames


def expand_urls(urls: Any, *given: Any) -> ShardNames:
    """The shards that are named; nothing has to be asked for."""
    parts = expanding.expand_urls(read_urls(urls), *given).parts
    return ShardNames(part for part in parts if not isinstance(part, RemotePattern))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{0..2}", ["0", "1", "2"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{008..011}", ["008", "009", "010", "011"]),
        ("{00..2}", ["00", "01", "02"]),
        ("{1..03}", ["01", "02", "03"]),
        ("{5..5}", ["5"]),
        ("{a,b}", ["a", "b"]),
        ("x{,.idx}", ["x", "x.idx"]),
        ("{0..1}-{a,b}", ["0-a", "0-b", "1-a", "1-b"]),
        ("{train-{0..1},val-{a,b}}.tar", ["train-0.tar", "train-1.tar", "val-a.tar", "val-b.tar"]),
        ("{a,{b,{c,d}}}", ["a", "b", "c", "d"]),
        ("{x{0..1}}", ["{x0}", "{x1}"]),
    ],
)
def test_braces_expand_as_in_a_shell(pattern: str, names: list[str]) -> None:
    assert expand_urls(f"https://h/{pattern}") == tuple(f"https://h/{name}" for name in names)


@pytest.mark.parametrize("literal", ["{}", "{x}", "{a", "a}", "}{", "{a,b", "{-1..3}", "{a..c}", "{{x}}"])
def test_other_braces_are_left_alone(literal: str) -> None:
    assert expand_urls(f"https://h/{literal}") == (f"https://h/{literal}",)


@given(st.integers(0, 99_999), st.integers(0, 50), st.integers(0, 6))
@example(995, 3010, 0)
@example(995, 3010, 3)
@example(99_990, 1010, 7)
def test_padded_ranges_have_one_width_and_every_number(low: int, count: int, width: int) -> None:
    first, last = str(low).zfill(width), str(low + count).zfill(width)
    names = expand_urls(f"s3://b/{{{first}..{last}}}")
    numbers = [name.removeprefix("s3://b/") for name in names]
    assert [int(number) for number in numbers] == list(range(low, low + count + 1))
    if width:
        assert all(len(number) >= width for number in numbers)


@given(st.lists(st.text(alphabet="ab{},.0", max_size=12), min_size=1, max_size=3))
def test_no_pattern_of_braces_breaks_the_expansion(patterns: list[str]) -> None:
    for name in expand_urls([f"s3://b/{pattern}" for pattern in patterns]):
        assert name.startswith("s3://b/")


def test_a_list_keeps_its_order_and_its_repetitions() -> None:
    names = ["s3://b/2", Path("/data/x"), "s3://b/{0..1}", "s3://b/2"]
    assert expand_urls(names) == ("s3://b/2", "/data/x", "s3://b/0", "s3://b/1", "s3://b/2")


@pytest.mark.parametrize("pattern", ["{3..1}", "{0..1000}", "{0..99}{0..99}", "{x,{0..99}{0..99}}"])
def test_bad_and_boundless_ranges_are_refused(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "MOST_SHARDS", 1000)
    monkeypatch.setattr(expanding, "MOST_SHARDS", 1000)
    with pytest.raises(ValueError, match=r"at most|more than"):
        expand_urls(f"s3://b/{pattern}")


def test_no_shard_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        expand_urls([])


@pytest.mark.parametrize("wrong", [3, [3], [b"x"], b"x", [None]])
def test_what_is_no_name_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        expand_urls(wrong)


@pytest.mark.parametrize(
    "name",
    [
        *("http:/h/x", "https:h/x", "S3 ://b/x", " gs://b/x", "file:x", "http:://h/x"),
        *("S3//b/x", "s3;//b/x", "https.//h/x", "gcs//b/x"),
    ],
)
def test_a_mistyped_url_is_not_taken_for_a_file(name: str) -> None:
    with pytest.raises(ValueError, match=r"should begin with .*://") as caught:
        expand_urls(name + "?sig=SENTINEL")
    assert "SENTINEL" not in str(caught.value)


def test_a_path_may_be_like_a_mistyped_url_behind_a_dot() -> None:
    assert expand_urls("./s3//b/x") == ("./s3//b/x",)
    assert expand_urls(["s3/b/x", "https/x", "files//x"]) == ("s3/b/x", "https/x", "files//x")


def test_what_is_no_name_is_refused_without_its_secrets() -> None:
    for wrong in ([b"http://h/x?sig=SENTINEL"], "file://me:SENTINEL@h/x"):
        with pytest.raises((TypeError, ValueError)) as caught:
            expand_urls(wrong)
        assert "SENTINEL" not in str(caught.value)


def test_an_unknown_scheme_is_refused_without_its_secrets() -> None:
    with pytest.raises(ValueError, match="unknown scheme ftp://") as caught:
        expand_urls("ftp://me:SENTINEL@h/x?sig=SENTINEL")
    assert "SENTINEL" not in str(caught.value)


def is_tar(name: str) -> bool:
    return name.endswith(".tar")


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("gcs://b/x.tar", "write gs://bucket/key$"),
        ("s3a://b/x.tar", "write s3://bucket/key$"),
        ("r2://b/x.tar", "write s3://bucket/key, with .*r2.cloudflarestorage.com"),
        (
            "ABFS://SENTINEL@account.dfs.core.windows.net/x.tar",
            "write az://container/key, with .*account_name",
        ),
    ],
)
def test_the_scheme_of_another_library_is_answered_with_what_to_write(url: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"unknown scheme .*{meant}") as caught:
        expand_urls(url)
    assert "SENTINEL" not in str(caught.value)


@pytest.mark.parametrize("text", ["{000-015}", "{000...015}", "{0 .. 15}", "{:03d}", "%03d", "{0..3}-%d"])
@pytest.mark.parametrize("root", ["/data/", "https://h/"])
def test_a_range_of_another_tool_is_ordinary_text(text: str, root: str) -> None:
    name = f"{root}x-{text}.tar"
    assert expand_urls(name) == tuple(Braces(name))


def test_globs_are_sorted(tmp_path: Path) -> None:
    for name in ("b-10.tar", "b-2.tar", "a.tar", "other.txt"):
        (tmp_path / name).touch()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "c.tar").touch()
    found = [str(tmp_path / name) for name in ("a.tar", "b-10.tar", "b-2.tar")]
    assert list(expand_urls(f"{tmp_path}/*.tar")) == found
    assert list(expand_urls(tmp_path / "?.tar")) == found[:1]
    assert list(expand_urls(f"file://{tmp_path}/?.tar")) == found[:1]
    assert list(expand_urls(f"{tmp_path}/{{b-*,[a]}}.tar")) == [*found[1:], found[0]]
    assert str(tmp_path / "deep" / "er" / "c.tar") in expand_urls(f"{tmp_path}/**/*.tar")


def test_a_local_folder_means_the_shards_below_it(tmp_path: Path) -> None:
    for name in ("b.tar", "deep/a.tar", "notes.md", "asyncloader-index.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    shards = (str(tmp_path / "b.tar"), str(tmp_path / "deep/a.tar"))
    assert expand_urls(f"{tmp_path}/", is_tar) == shards
    assert expand_urls(f"file://{tmp_path}/", is_tar) == shards
    assert len(expand_urls(f"{tmp_path}/", lambda path: True)) == 3, "an index is no shard"
    with pytest.raises(ValueError, match="none of the 4 files"):
        expand_urls(f"{tmp_path}/", lambda path: False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"expected shards below '.*/empty/', but the folder is empty"):
        expand_urls(f"{tmp_path}/empty/", is_tar)


def test_a_range_is_not_looked_through_and_what_differs_is() -> None:
    patterns = ["s3://b/{0..999999}.tar", "s3://b/x", "y", "/d/{0..999999}.tar", "{s3,gs}://b/{0..1}"]
    expanded = expanding.expand_urls(patterns)
    assert list(map(len, expanded.parts)) == [1_000_000, 2, 1_000_000, 4]  # type: ignore[arg-type]
    assert list(map(type, expanded.parts)) == [Braces, tuple, Braces, tuple]
    assert {scheme.name for scheme in expanded.schemes} == {"s3", "gs", "file"}


def test_prefixes_of_servers_stay_patterns_in_their_places() -> None:
    parts = expanding.expand_urls(["a", "s3://b/{x,y}/", "b", "gs://b/*.tar"]).parts
    patterns = map(RemotePattern, ("s3://b/x/", "s3://b/y/", "gs://b/*.tar"))
    assert parts == (("a",), next(patterns), next(patterns), ("b",), next(patterns))


def test_a_tilde_is_the_home_that_a_shell_takes_it_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.tar").touch()
    (tmp_path / "b.tar").touch()
    both = (f"{tmp_path}/a.tar", f"{tmp_path}/b.tar")
    for name in ("~/{a,b}.tar", "{~/a,~/b}.tar", "~/[ab].tar", "~/", ["~/a.tar", Path("~/b.tar")]):
        assert expand_urls(name, is_tar) == both
    root = os.path.expanduser("~root")
    assert expand_urls("~root/x.tar") == (f"{root}/x.tar",)
    literal = ("./~/x.tar", "/d/~/x.tar", "s3://b/~/x.tar", "~nobody-of-this-name/x.tar")
    assert expand_urls(literal) == literal


def test_a_glob_without_a_match_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"^no file matches '{tmp_path}/\*\.tar'; check the pattern$"):
        expand_urls(f"{tmp_path}/*.tar")
    with pytest.raises(ValueError, match=rf"^no file matches '\*\.tar' \(looked from {tmp_path}\); check"):
        expand_urls("*.tar")
    with pytest.raises(ValueError, match=rf"there is no folder 'x/yy' \(looked from {tmp_path}\); check"):
        expand_urls("x/yy/a*/b-*.tar")


def test_an_existing_file_is_no_glob(tmp_path: Path) -> None:
    odd = tmp_path / "x[1]*.tar"
    odd.touch()
    assert expand_urls(odd) == (str(odd),)


def test_globs_of_servers_are_left_alone() -> None:
    assert expand_urls("https://h/a*?x=[1]") == ("https://h/a*?x=[1]",)


@pytest.mark.parametrize("host", ["h:port", "h:99999", "h:0", "[::1", "", ":80", "user:SECRET@"])
@pytest.mark.parametrize("scheme", ["http", "HTTPS"])
def test_a_web_url_that_names_no_server_is_refused_before_any_reading(scheme: str, host: str) -> None:
    with pytest.raises(ValueError, match=r"should be http\(s\)://host\[:port\]/path") as caught:
        expand_urls(["http://good/x", f"{scheme}://{host}/x?sig=SECRET"])
    assert "SECRET" not in str(caught.value)
