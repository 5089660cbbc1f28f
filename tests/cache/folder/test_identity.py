"""Names of shards on disk: distinct objects never share one, a URL signed anew keeps its own."""

from __future__ import annotations

from itertools import combinations

import pytest

from asyncloader.cache.folder import identity_of

S3 = "s3://bucket/train/000.tar"


def name(url: str, options: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> str:
    return identity_of(url, options or {}, environ or {}).name


def test_objects_that_may_differ_have_names_that_differ() -> None:
    names = [
        name("http://host/a/000.tar"),
        name("http://host/b/000.tar"),
        name("https://host/a/000.tar"),
        name("http://host:8080/a/000.tar"),
        name("http://other/a/000.tar"),
        name("http://alice@host/a/000.tar"),
        name("http://host/a/000.tar?versionId=1"),
        name("http://host/a/000.tar?versionId=2"),
        name("http://host/get?file=a/000.tar"),
        name("s3://a/000.tar"),
        name("s3://b/000.tar"),
        name("gs://a/000.tar"),
        name("az://a/000.tar"),
        name("az://a/000.tar", {"account_name": "one"}),
        name("az://a/000.tar", {"azure_storage_account_name": "two"}),
        name("s3://a/000.tar", {"endpoint": "http://minio:9000"}),
        name("s3://a/000.tar", {"endpoint": "http://minio:9001"}),
        name("s3://a/000.tar", {"profile": "one"}),
        name("s3://a/000.tar", {}, {"AWS_PROFILE": "two"}),
        name("az://a/000.tar", {"account_name": "one", "use_emulator": True}),
        name("hf://datasets/a/b/000.tar"),
        name("hf://datasets/a/b/000.tar", {"endpoint": "https://hub.one"}),
        name("hf://datasets/a/b/000.tar", {}, {"HF_ENDPOINT": "https://hub.two"}),
        name("s3://a/000.tar?x"),
        name("s3://a/b/000.tar"),
        name("s3://a/b%2F000.tar"),
    ]
    for one, other in combinations(names, 2):
        assert one != other


def test_the_same_endpoint_given_in_another_way_is_the_same_object() -> None:
    given = name(S3, {"aws_endpoint_url": "http://minio:9000/"})
    assert given == name(S3, {"endpoint": "http://minio:9000"})
    assert given == name(S3, {}, {"AWS_ENDPOINT_URL_S3": "http://minio:9000"})
    assert given == name(S3, {"endpoint": "http://minio:9000"}, {"AWS_ENDPOINT_URL": "http://else"})
    assert given == name(S3, {"endpoint": "http://minio:9000", "profile": "any"})
    assert name("http://HOST:80/x") == name("http://host/x")
    assert name("http://alice:old@host/x") == name("http://alice:new@host/x")


@pytest.mark.parametrize(
    "signature",
    [
        "X-Amz-Algorithm=AWS4&X-Amz-Credential=a&X-Amz-Date={0}&X-Amz-Expires=60&X-Amz-Signature={0}",
        "X-Goog-Algorithm=G&X-Goog-Date={0}&X-Goog-Signature={0}",
        "AWSAccessKeyId=a&Signature={0}&Expires={0}",
        "GoogleAccessId=a&Signature={0}&Expires={0}",
        "Expires={0}&Signature={0}&Key-Pair-Id=k",
        "sv=2024-01-01&se={0}&sr=b&sp=r&sig={0}",
    ],
)
def test_a_url_signed_anew_keeps_its_name(signature: str) -> None:
    url = "https://bucket.host/a/000.tar"
    assert name(f"{url}?{signature.format('one')}") == name(f"{url}?{signature.format('two')}") == name(url)
    assert name(f"{url}?versionId=7&{signature.format('one')}") == name(f"{url}?versionId=7")


def test_what_only_looks_like_a_part_of_a_signature_selects_an_object() -> None:
    assert name("http://host/x?sp=1") != name("http://host/x?sp=2")
    assert name("http://host/x?Expires=1") != name("http://host/x?Expires=2")


def test_versions_differ_by_etag_and_size_and_parts_do_not_run_together() -> None:
    identity = identity_of(S3, {}, {})
    versions = {identity.version_name(*v) for v in [('"a"', 1), ('"a"', 11), ('"a"1', 1), ('"b"', 1)]}
    assert len(versions) == 4
    assert len(identity.name) == 64
