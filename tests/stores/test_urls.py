from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.stores.urls import local_path, redact, scheme_of, suffix_path


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_file_urls_mean_the_path_they_escape(name: str) -> None:
    assert local_path("file:///" + quote(name)) == "/" + name
    assert local_path("file://localhost/" + quote(name)) == "/" + name
    assert local_path("/" + name) == "/" + name


def test_a_file_url_with_a_host_is_refused() -> None:
    with pytest.raises(ValueError, match="no host"):
        local_path("file://server/share")


@pytest.mark.parametrize("host", ["~", "~me"])
def test_a_home_in_a_file_url_is_answered_with_what_to_write(host: str) -> None:
    with pytest.raises(ValueError, match=rf"begins with file://{host}; leave out file://, and write {host}/"):
        local_path(f"file://{host}/x.tar")


@pytest.mark.parametrize(
    ("url", "scheme"),
    [("S3://b/k", "s3"), ("https://h", "https"), ("/x", "file"), ("a:b", "file"), ("file:///x", "file")],
)
def test_schemes(url: str, scheme: str) -> None:
    assert scheme_of(url).name == scheme


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("https://h/a.tar?x=.zip#.gz", "/a.tar"),
        ("s3://b/a#1.tar", "a#1.tar"),
        ("/x/a?.tar", "/x/a?.tar"),
        ("file:///x/a.tar", "x/a.tar"),
    ],
)
def test_suffixes_are_those_of_the_file_name(url: str, path: str) -> None:
    assert suffix_path(url) == path


_WORDS = st.text(
    alphabet=st.characters(exclude_characters="/?#@\\", exclude_categories=["Cs", "Cc"]), max_size=8
)


@given(st.sampled_from(["http", "https", "s3", "gs", "az", "HTTP"]), _WORDS, _WORDS, _WORDS, _WORDS)
def test_redacted_urls_show_neither_query_nor_user(
    scheme: str, user: str, host: str, path: str, query: str
) -> None:
    shown = redact(f"{scheme}://{user}SENTINEL:SENTINEL@{host}/{path}?{query}SENTINEL=SENTINEL#SENTINEL")
    assert "SENTINEL" not in shown
    assert shown.startswith(f"{scheme.lower()}://") or "not a valid URL" in shown


@given(st.text())
def test_redacting_never_fails(text: str) -> None:
    redact(text)
    redact(f"https://{text}")
