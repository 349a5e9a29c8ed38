"""The log of a store whose files lie in an object store, beside the same store on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.store.errors import Invalid, NotAStore, StoreDamaged
from quarry_mq.store.index.tiered.object_store.cloud import CloudObjects
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStoreError
from quarry_mq.store.layout.paths import StorePaths
from tests.conftest import GoldenStore
from tests.golden.quarry_stores import unpack
from tests.object_store.server import S3Server, options
from tests.pipeline.tables import plain, reader, rows_of, table

COLUMNS = "topic,queueId,phyOffset,storeTimestamp,properties,body"


class Uploaded:
    """A store in a bucket."""

    def __init__(self, server: S3Server, root: Path) -> None:
        self.url = f"s3://{server.new_bucket()}/backups/store"
        self.storage = {f"storage.{name}": value for name, value in options(server.port).items()}
        self.objects = CloudObjects.at(self.url, options(server.port))
        self.root = root
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.objects.put(str(path.relative_to(root)), memoryview(path.read_bytes()))

    def rows(self, *conditions: object, **more: object) -> list[dict[str, object]]:
        # a Path would make one slash of two
        made = reader(self.url, **self.storage, **more)  # type: ignore[arg-type]
        assert not list(made.pushFilters(list(conditions)))  # type: ignore[arg-type]
        return [plain(row) for row in rows_of(made)]


@pytest.fixture
def uploaded(s3_server: S3Server, golden_store: GoldenStore) -> Uploaded:
    return Uploaded(s3_server, golden_store("rocks-clean") / "store")


def test_messages_are_those_of_the_store_on_this_machine(uploaded: Uploaded) -> None:
    expected = [plain(row) for row in table(uploaded.root, columns=COLUMNS)]
    assert uploaded.rows(columns=COLUMNS) == expected
    assert len(expected) > 4_000


def test_a_filter_brings_only_segments_that_may_hold_what_is_asked_for(uploaded: Uploaded) -> None:
    begin = 2 << 20
    some = uploaded.rows(GreaterThanOrEqual(("phyOffset",), begin), EqualTo(("queueId",), 0), columns=COLUMNS)
    expected = table(uploaded.root, columns=COLUMNS)
    assert some == [plain(row) for row in expected if row["phyOffset"] >= begin and row["queueId"] == 0]
    made = reader(uploaded.url, **uploaded.storage)  # type: ignore[arg-type]
    whole = len(made.partitions())
    list(made.pushFilters([GreaterThanOrEqual(("phyOffset",), begin)]))
    assert len(made.partitions()) < whole


@pytest.mark.parametrize("kind", ["rocks-clean", pytest.param("file-clean", marks=pytest.mark.slow), "quarry"])
def test_other_tables_are_those_of_the_store_on_this_machine(
    s3_server: S3Server, golden_store: GoldenStore, tmp_path: Path, kind: str
) -> None:
    if kind == "quarry":
        unpack("quarry-7-checksums", tmp_path)
    root = tmp_path / "store" if kind == "quarry" else golden_store(kind) / "store"
    uploaded = Uploaded(s3_server, root)
    for wanted in ("units", "queues", "positions", "index"):
        expected = table(root, table=wanted)
        assert expected, wanted
        assert uploaded.rows(table=wanted) == expected


def test_a_filter_of_another_table_is_applied(uploaded: Uploaded) -> None:
    expected = table(uploaded.root, EqualTo(("queueId",), 0), table="queues")
    assert 0 < len(expected) < len(table(uploaded.root, table="queues"))
    assert uploaded.rows(EqualTo(("queueId",), 0), table="queues") == expected


def test_an_error_of_another_table_names_the_object(s3_server: S3Server, golden_copy: GoldenStore) -> None:
    root = golden_copy("file-clean") / "store"
    shutil.rmtree(StorePaths(root).consume_queue)
    with pytest.raises(NotAStore, match=r"/backups/store/.*: "):
        Uploaded(s3_server, root).rows(table="units", source="rocksdb")


@pytest.mark.slow
def test_spark_reads_it(spark: SparkSession, uploaded: Uploaded) -> None:
    frame = spark.read.format("quarry").options(columns="topic,phyOffset", **uploaded.storage).load(uploaded.url)
    assert frame.count() == len(table(uploaded.root, columns="phyOffset"))


@pytest.mark.slow
def test_damage_is_told_with_the_name_of_the_object(s3_server: S3Server, golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    with (StorePaths(root).commit_log / f"{0:020}").open("r+b") as file:
        file.seek(95)
        file.write(b"\xff\xfe")
    with pytest.raises(StoreDamaged, match=f"/backups/store/commitlog/{0:020}: offset 0: "):
        Uploaded(s3_server, root).rows()


@pytest.mark.slow
def test_a_segment_of_another_size_than_listed_is_no_empty_one(
    uploaded: Uploaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CloudObjects.chunks
    monkeypatch.setattr(CloudObjects, "chunks", lambda self, name: list(whole(self, name))[:-1])
    with pytest.raises(ObjectStoreError, match="has not the size that the list tells"):
        uploaded.rows()


def test_nothing_stays_on_this_machine(uploaded: Uploaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    uploaded.rows(columns="phyOffset")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"storage.region": "nowhere", "path": "/here"}, "option 'storage.region': '/here' is no object store"),
    ],
)
def test_what_cannot_be_meant_is_refused(more: dict[str, str], words: str) -> None:
    given = {"path": "s3://bucket/store", **more}
    with pytest.raises(InvalidOption, match=words):
        reader(given.pop("path"), **given)  # type: ignore[arg-type]


def test_a_store_is_expected_there(s3_server: S3Server) -> None:
    empty = f"s3://{s3_server.new_bucket()}/nothing"
    storage = {f"storage.{name}": value for name, value in options(s3_server.port).items()}
    with pytest.raises(Invalid, match=f"{empty}: there is no store"):
        rows_of(reader(empty, **storage))  # type: ignore[arg-type]
