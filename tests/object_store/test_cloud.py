"""CloudObjects copes with an S3 server that is slow, silent, refuses, or answers with too little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from time import monotonic
from typing import Final, Literal

import pytest

from quarry_mq.store.errors import Invalid
from quarry_mq.store.index.tiered.object_store import cloud
from quarry_mq.store.index.tiered.object_store.cloud import CloudObjects
from quarry_mq.store.index.tiered.object_store.protocol import (
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    RemoteReader,
    upload,
)
from tests.object_store.faulty_proxy import FaultyProxy, Trouble, proxy_before
from tests.object_store.server import REGION, S3Server, options

CONTENT: Final = bytes(range(256))
SILENT: Final = Trouble(delay_s=60)
SECOND: Final = timedelta(seconds=1)

ASKED: Final[dict[str, Callable[[ObjectStore], object]]] = {
    "read": lambda objects: objects.read("a", 3, 8),
    "chunks": lambda objects: list(objects.chunks("a")),
    "put": lambda objects: objects.put("a", memoryview(CONTENT)),
    "remove": lambda objects: objects.remove("a"),
}


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    with proxy_before(s3_server.port) as proxy:
        yield proxy


@pytest.fixture
def address(s3_server: S3Server) -> str:
    return f"s3://{s3_server.new_bucket()}/index"


@pytest.fixture
def objects(proxy: FaultyProxy, address: str) -> CloudObjects:
    objects = CloudObjects.at(address, options(proxy.port))
    objects.put("a", memoryview(CONTENT))
    proxy.requests.clear()
    return objects


def refused(objects: ObjectStore, ask: Callable[[ObjectStore], object]) -> str:
    """The words of the error."""
    with pytest.raises(ObjectStoreError) as failed:
        ask(objects)
    assert not isinstance(failed.value, ObjectMissing)
    assert str(failed.value).startswith(f"{objects.address}/a: ")
    return str(failed.value)


@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("status", [403, 503])
def test_an_error_says_the_same_whenever_it_is_met(
    objects: CloudObjects, proxy: FaultyProxy, what: str, status: int
) -> None:
    """Who tries again complains once of one trouble: times and numbers in the words would make it another one."""
    proxy.trouble = Trouble(status=status)
    words = refused(objects, ASKED[what])
    assert f" {status} " in words
    assert words.endswith("(Trouble)")
    assert refused(objects, ASKED[what]) == words


def test_a_refusal_of_a_big_object_says_the_same_too(objects: CloudObjects, proxy: FaultyProxy) -> None:
    """The number of an upload stands in the address of its parts."""

    def put(objects: ObjectStore) -> None:
        objects.put("a", memoryview(CONTENT * 4096 * 6))

    proxy.trouble = Trouble(status=500, only="partNumber=")
    assert refused(objects, put) == refused(objects, put)
    assert len({each for each in proxy.requests if "partNumber=" in each}) >= 4, "each has its number"
    proxy.trouble = Trouble()
    assert b"".join(objects.chunks("a")) == CONTENT, "an upload that was not finished replaces nothing"


def test_a_big_object_goes_in_parts(objects: CloudObjects, proxy: FaultyProxy) -> None:
    objects.put("a", memoryview(CONTENT * 4096 * 12))
    parts = {each.partition("partNumber=")[2][0] for each in proxy.requests if "partNumber=" in each}
    assert parts == {"1", "2", "3"}


@pytest.mark.parametrize("what", ["read", "chunks", "remove"])
def test_a_body_that_ends_too_early_is_an_error(objects: CloudObjects, proxy: FaultyProxy, what: str) -> None:
    proxy.trouble = Trouble(body="cut")
    assert refused(objects, ASKED[what]) == refused(objects, ASKED[what])


@pytest.mark.parametrize("body", ["cut", "other"])
def test_an_upload_is_done_when_it_was_read_back(
    objects: CloudObjects, proxy: FaultyProxy, body: Literal["cut", "other"]
) -> None:
    proxy.trouble = Trouble(body=body)
    words = refused(objects, lambda objects: upload(objects, "a", memoryview(CONTENT)))
    assert any(each.startswith("PUT ") for each in proxy.requests)
    assert body == "cut" or "differs from what was sent" in words
    proxy.trouble = Trouble()
    upload(objects, "a", memoryview(CONTENT))


def test_fewer_bytes_than_were_asked_for(objects: CloudObjects) -> None:
    assert "6 bytes at 250 instead of 8" in refused(objects, lambda objects: RemoteReader(objects, "a").read(250, 8))


def test_nobody_listens(objects: CloudObjects, proxy: FaultyProxy) -> None:
    proxy.down()
    for ask in ASKED.values():
        assert refused(objects, ask) == refused(objects, ask)
    assert proxy.requests == []
    proxy.up()
    assert objects.read("a", 0, 8) == CONTENT[:8]


@pytest.mark.parametrize("what", ASKED)
def test_silence_is_borne_once(proxy: FaultyProxy, address: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that waits is one of many in a search: with retries it would wait for minutes."""
    assert min(cloud.SEARCH_PATIENCE, cloud.UPLOAD_PATIENCE) > cloud.RETRY_TIME
    monkeypatch.setattr(cloud, "SEARCH_PATIENCE", SECOND)
    monkeypatch.setattr(cloud, "UPLOAD_PATIENCE", SECOND)
    monkeypatch.setattr(cloud, "RETRY_TIME", SECOND * 0.4)
    objects = CloudObjects.at(address, options(proxy.port))
    proxy.trouble = SILENT
    begun_s = monotonic()
    refused(objects, ASKED[what])
    assert monotonic() - begun_s > 0.8
    assert len(proxy.requests) == 1


def test_who_searches_waits_less_than_who_uploads(
    proxy: FaultyProxy, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "SEARCH_PATIENCE", SECOND * 0.2)
    objects = CloudObjects.at(address, options(proxy.port))
    objects.put("a", memoryview(CONTENT))
    proxy.trouble = Trouble(delay_s=1)
    refused(objects, ASKED["read"])
    upload(objects, "a", memoryview(CONTENT))
    proxy.trouble = Trouble()
    assert objects.read("a", 3, 8) == CONTENT[3:11]


def test_what_comes_slowly_is_waited_for(proxy: FaultyProxy, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit for the whole of a big file would have it uploaded again and again over a slow line."""
    monkeypatch.setattr(cloud, "SEARCH_PATIENCE", SECOND * 1.5)
    monkeypatch.setattr(cloud, "UPLOAD_PATIENCE", SECOND * 1.5)
    objects = CloudObjects.at(address, options(proxy.port))
    objects.put("a", memoryview(CONTENT))
    proxy.requests.clear()
    proxy.trouble = Trouble(pause_s=0.3)  # eight of them
    begun_s = monotonic()
    assert b"".join(objects.chunks("a")) == CONTENT
    assert monotonic() - begun_s > 2
    assert len(proxy.requests) == 1


def test_prefixes_are_apart(objects: CloudObjects, proxy: FaultyProxy) -> None:
    other = CloudObjects.at(f"{objects.address}-of-another", options(proxy.port))
    with pytest.raises(ObjectMissing):
        other.read("a", 0, 1)
    other.remove("a")
    assert objects.read("a", 0, 1) == CONTENT[:1]


def test_a_bucket_that_is_gone_is_no_object_that_is_removed(proxy: FaultyProxy) -> None:
    objects = CloudObjects.at("s3://no-such-bucket/index", options(proxy.port))
    assert "NoSuchBucket" in refused(objects, ASKED["remove"])


@pytest.mark.parametrize("name", ["endpoint", "endpoint_url", "aws_endpoint"])
@pytest.mark.parametrize("client", [{}, {"allow_http": "true"}, {"user_agent": "quarry", "timeout": "20 seconds"}])
def test_options_as_obstore_names_them(s3_server: S3Server, address: str, name: str, client: dict[str, str]) -> None:
    where = options(s3_server.port)
    where[name] = where.pop("endpoint")
    objects = CloudObjects.at(address, {**where, **client})
    objects.put("a", memoryview(CONTENT))
    assert objects.read("a", 0, 4) == CONTENT[:4]


def test_http_may_be_forbidden(proxy: FaultyProxy, address: str) -> None:
    objects = CloudObjects.at(address, {**options(proxy.port), "allow_http": "false"})
    refused(objects, ASKED["read"])
    assert proxy.requests == []


def test_an_option_given_twice_is_refused(address: str) -> None:
    with pytest.raises(Invalid, match="region"):
        CloudObjects.at(address, {"region": REGION, "aws_region": REGION})
