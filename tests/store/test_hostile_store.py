"""A bucket in which anybody may have put anything."""

from __future__ import annotations

import obstore
import pytest
from obstore.store import S3Store

from rolltape.errors import CorruptFileError, MemoryLimitError
from rolltape.storage import ObjectStorage
from rolltape.storage.store_client import StoreClient
from tests.object_servers.fixtures import objects
from tests.object_servers.s3 import BUCKET
from tests.store.runs import train

LINES = "train/.metrics.jsonl"


@pytest.fixture
def bare(s3_url: str) -> S3Store:
    return S3Store(BUCKET, prefix=s3_url.removeprefix(f"s3://{BUCKET}/"), client_options={"allow_http": True})


def test_names_that_no_tape_has_are_none_of_its_business(s3_url: str, bare: S3Store) -> None:
    train(s3_url, "record", range(2))
    storage = ObjectStorage(s3_url)
    before = sorted(storage.names("train/rollout/")), sorted(storage.folders(""))
    for name in (
        "train/rollout/.hidden", ".git/config", "train/rollout/back\\slash",
        f"train/rollout/{'x' * 200}",
        f"{LINES}/line-zz", f"{LINES}/fold-1", f"{LINES}/deeper/line-0", "train/.other.jsonl.d/x",
    ):  # fmt: skip
        obstore.put(bare, name, b"?")
    names, folders = sorted(storage.names("train/rollout/")), sorted(storage.folders(""))
    assert [name for name in names if "xxx" not in name] == before[0]
    assert folders == before[1]
    assert not [stat.name for stat in storage.everything() if "/." in f"/{stat.name}" or "\\" in stat.name]
    assert train(s3_url, "replay", range(2)).replayed == 2


def test_an_object_that_is_a_folder_as_well(s3_url: str, bare: S3Store) -> None:
    storage = ObjectStorage(s3_url)
    storage.publish("train/rollout/a", [b"1"], replace=False)
    assert not storage.exists("train/rollout")
    assert list(storage.names("train/")) == []
    assert list(storage.names("train/rollout/")) == ["train/rollout/a"]


def test_a_fold_that_is_not_one_is_an_error(s3_url: str, bare: S3Store) -> None:
    storage = ObjectStorage(s3_url)
    storage.append("train/metrics.jsonl", b"one")
    obstore.put(bare, f"{LINES}/fold-{7:012d}", b'{"writers": []}\nabc')
    for attempt in (
        lambda: ObjectStorage(s3_url).read("train/metrics.jsonl"),
        lambda: ObjectStorage(s3_url).stat("train/metrics.jsonl"),
        lambda: ObjectStorage(s3_url).append("train/metrics.jsonl", b"x"),
    ):
        with pytest.raises(CorruptFileError):
            attempt()


def test_the_limit_of_memory_holds(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ObjectStorage(s3_url)
    storage.publish("train/rollout/a", [bytes(3_000_000)], replace=False)
    for _ in range(30):
        storage.append("train/metrics.jsonl", bytes(100_000).replace(b"\0", b"x"))
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "1MB")
    for attempt in (
        lambda: storage.read("train/rollout/a"),
        lambda: storage.read("train/rollout/a", 0, 2_000_000),
        lambda: storage.read("train/rollout/a", 5),
        lambda: storage.read_ranges("train/rollout/a", [(0, 600_000), (700_000, 600_000)]),
        lambda: storage.read("train/metrics.jsonl"),
    ):
        with pytest.raises(MemoryLimitError):
            attempt()


def test_listings_of_many_pages_are_whole(s3_url: str) -> None:
    storage = ObjectStorage(s3_url)
    names = {f"train/rollout/step_{n:06d}.parquet" for n in range(1100)}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.publish(name, [b"x"], replace=False), sorted(names)))
    assert set(storage.names("train/rollout/")) == names
    assert {stat.name for stat in storage.everything()} == names


def test_what_a_kill_left_of_a_look_whether_a_place_can_be_written_goes_with_the_next(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many that die there leave one small object, which no reader sees."""
    with monkeypatch.context() as killed:
        killed.setattr(StoreClient, "delete", lambda self, keys: None)
        for _ in range(3):
            ObjectStorage(s3_url).check_writable()
    assert len(objects(s3_url)) == 1
    assert list(ObjectStorage(s3_url).everything()) == []
    ObjectStorage(s3_url).check_writable()
    assert objects(s3_url) == {}
