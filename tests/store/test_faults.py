"""A store that refuses, resets, cuts answers short and loses them: nothing is lost, nothing is wrong."""

from __future__ import annotations

import threading

import pytest

from rolltape.errors import StepExistsError, StorageError, StoreUnreachableError
from rolltape.storage import ObjectStorage
from tests.object_servers.azure import AzureServer
from tests.object_servers.fault_proxy import FaultProxy, Faults
from tests.store.runs import assert_whole, train

NAME = "train/rollout/step_000000.parquet"
TEN_PERCENT = Faults(error=0.02, slow_down=0.03, reset=0.02, lost=0.02, truncated=0.01)


def test_an_answer_that_was_lost_is_no_conflict(s3_url: str, s3_proxy: FaultProxy) -> None:
    storage = ObjectStorage(s3_url)
    s3_proxy.once("lost", "PUT")
    storage.publish(NAME, [b"mine"], replace=False)
    assert storage.read(NAME) == b"mine"
    with pytest.raises(StepExistsError):
        storage.publish(NAME, [b"mine"], replace=False)


def test_a_lost_race_is_one_though_its_answer_was_lost_too(s3_url: str, s3_proxy: FaultProxy) -> None:
    ObjectStorage(s3_url).publish(NAME, [b"theirs"], replace=False)
    s3_proxy.once("lost", "PUT")
    with pytest.raises(StepExistsError):
        ObjectStorage(s3_url).publish(NAME, [b"mine"], replace=False)
    assert ObjectStorage(s3_url).read(NAME) == b"theirs"


def test_of_racing_writers_one_wins_whatever_answers_are_lost(s3_url: str, s3_proxy: FaultProxy) -> None:
    s3_proxy.faults = Faults(lost=0.4, kinds=("PUT",))
    for number in range(8):
        name = f"train/rollout/step_{number:06d}.parquet"
        won: list[int] = []

        def publish(me: int, name: str = name, won: list[int] = won) -> None:
            try:
                ObjectStorage(s3_url).publish(name, [bytes([me])], replace=False)
                won.append(me)
            except StepExistsError:
                pass

        threads = [threading.Thread(target=publish, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert ObjectStorage(s3_url).read(name) == bytes(won)


def test_a_store_that_is_busy_with_an_object_has_not_given_it_away(s3_url: str, s3_proxy: FaultProxy) -> None:
    """Amazon answers 409 while another request for the object is under way: that is no lost race yet."""
    storage = ObjectStorage(s3_url)
    s3_proxy.once("conflict", "PUT")
    storage.publish(NAME, [b"mine"], replace=False)
    s3_proxy.once("conflict", "PUT")
    with pytest.raises(StepExistsError):
        storage.publish(NAME, [b"again"], replace=False)
    assert storage.read(NAME) == b"mine"
    s3_proxy.once("conflict", "PUT")
    storage.publish(NAME, [b"new"], replace=True)
    assert storage.read(NAME) == b"new"
    s3_proxy.once("conflict", "POST")
    storage.delete(NAME)
    assert not storage.exists(NAME)
    assert s3_proxy.injected["conflict"] == 4


def test_a_recording_that_met_a_busy_store_is_not_dropped_from_the_spool(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    s3_proxy.faults = Faults(conflict=0.3, kinds=("PUT", "POST"))
    summary = train(s3_url, "record", range(8))
    assert (summary.recorded, summary.lost, summary.waiting) == (8, (), ())
    assert s3_proxy.injected["conflict"] > 2
    s3_proxy.faults = Faults()
    assert_whole(s3_url, range(8))


def test_an_object_that_somebody_holds_is_an_error_in_plain_words(
    az_url: str, az_server: AzureServer
) -> None:
    """A lease is no condition of ours: it is not taken for a race."""
    storage = ObjectStorage(az_url)
    storage.publish(NAME, [b"held"], replace=False)
    az_server.lease(f"{az_url.rpartition('/')[2]}/{NAME}")
    for attempt in (lambda: storage.delete(NAME), lambda: storage.publish(NAME, [b"new"], replace=True)):
        with pytest.raises(StorageError, match=r"could not .*: status 412"):
            attempt()
    assert storage.read(NAME) == b"held"


@pytest.mark.parametrize("fault", ["truncated", "reset", "error", "slow_down", "lost"])
def test_what_is_read_is_whole_or_read_again(s3_url: str, s3_proxy: FaultProxy, fault: str) -> None:
    storage = ObjectStorage(s3_url)
    data = bytes(range(256)) * 4000
    storage.publish(NAME, [data], replace=False)
    for _ in range(2):
        s3_proxy.once(fault, "GET")
        assert storage.read(NAME) == data
        s3_proxy.once(fault, "GET")
        assert storage.read(NAME, 1000, 5000) == data[1000:6000]
        s3_proxy.once(fault, "GET")
        assert storage.read_end(NAME, 3000)[1] == data[-3000:]
        s3_proxy.once(fault, "GET")
        assert storage.read_ranges(NAME, [(0, 10), (900_000, 7)]) == [data[:10], data[900_000:900_007]]


def test_a_store_that_stays_away_is_told_after_the_deadline(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLTAPE_STORE_DEADLINE", "1")
    s3_proxy.away = True
    storage = ObjectStorage(s3_url)
    for attempt in (
        lambda: storage.read(NAME),
        lambda: storage.exists(NAME),
        lambda: storage.publish(NAME, [b"x"], replace=False),
        lambda: storage.append("train/metrics.jsonl", b"x"),
        lambda: list(storage.names("train/")),
        lambda: storage.delete(NAME),
    ):
        with pytest.raises(StoreUnreachableError, match="ROLLTAPE_STORE_DEADLINE"):
            attempt()


def test_faults_at_a_tenth_of_all_requests_change_nothing(s3_url: str, s3_proxy: FaultProxy) -> None:
    s3_proxy.faults = TEN_PERCENT
    summary = train(s3_url, "record", range(200))
    assert (summary.recorded, summary.logged, summary.lost, summary.waiting) == (200, 200, (), ())
    assert train(s3_url, "replay", range(200)).replayed == 200
    assert sum(s3_proxy.injected.values()) > 40
    s3_proxy.faults = Faults()
    assert_whole(s3_url, range(200))
