"""Places, rights, pages and clocks that a store may have, and that no test of ours has otherwise."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import from_url

import rolltape
from rolltape.errors import ConfigError, RecordError, StorageError, TapeReadOnlyError
from rolltape.index import index_writer
from rolltape.storage import ObjectStorage
from rolltape.storage.store_url import parse_url
from tests.cli_tapes import run
from tests.compacting import folded
from tests.object_servers import fault_proxy
from tests.object_servers.fault_proxy import FaultProxy, Request
from tests.object_servers.s3 import OPEN_BUCKET, READER, S3Server
from tests.store.runs import assert_whole, train

DAY = 86_400


@pytest.mark.parametrize(
    "odd", ["with space", "é日本", "v1.0..2", "100%25off", "a+b&c=d", "it's", "[a]*{b}/T20:00/"]
)
def test_odd_names_in_a_url(s3_url: str, odd: str) -> None:
    url = f"{s3_url}//{odd}"
    train(url, "record", range(2))
    assert train(f"{url}/", "replay", range(2)).replayed == 2
    assert_whole(url, range(2))
    assert run("check", url).exit_code == 0
    assert len(rolltape.open(s3_url + "/" + odd).steps("rollout")) == 2


def test_a_path_that_leaves_no_room_for_names_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="too long: 1,004 bytes, of at most 896"):
        parse_url("s3://bucket/" + "/".join(["d" * 200] * 5))
    assert len(parse_url("s3://bucket/" + "é" * 448).prefix) == 448
    with pytest.raises(ConfigError, match="too long"):
        rolltape.Tape("s3://bucket/" + "é" * 449, mode="record")


def test_a_name_that_no_store_takes_is_an_error_when_it_is_recorded(s3_url: str) -> None:
    """And does not wait in the spool for a day on which it may be uploaded."""
    spool, long = Path(os.environ["ROLLTAPE_SPOOL"]), "s" * 100
    url = f"{s3_url}/{'/'.join(['d' * 200] * 4)}/{'e' * 60}"
    too_long = "too long for a store"
    tape = rolltape.Tape(url, mode="record")
    with pytest.raises((StorageError, RecordError), match=too_long), tape, tape.step(0, split=long):
        tape.stage(long)(lambda: {"x": [1]})()
    assert not list(spool.rglob("*.entry"))
    tape = rolltape.Tape(url, mode="record")
    with pytest.raises((StorageError, RecordError), match=too_long), tape, tape.step(0, split=long):
        tape.log({"loss": 1.0})
    assert not list(spool.rglob("*.entry"))
    with rolltape.Tape(url, mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"x": [1]})()
        tape.log({"loss": 1.0})
    assert rolltape.open(url).metrics() == {0: {"loss": 1.0}}


def test_who_may_only_read_replays_and_is_told_so_before_a_run_begins(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(s3_url, "record", range(2))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER)
    assert train(s3_url, "replay", range(2)).replayed == 2
    assert run("check", s3_url).exit_code == 0
    with pytest.raises(TapeReadOnlyError, match=r"could not delete it: .* \(AccessDenied\)"):
        ObjectStorage(s3_url).delete("train/rollout/step_000000.parquet")
    for mode in ("record", "auto"):
        with pytest.raises(TapeReadOnlyError, match="does not allow it"):
            rolltape.Tape(s3_url, mode=mode)
    for words in (
        ["prune", s3_url, "--steps", "0", "--yes"], ["compact", s3_url], ["push", s3_url, f"{s3_url}-copy"],
        ["index", "build", s3_url],
    ):  # fmt: skip
        done = run(*words)
        assert done.exit_code == 2
        assert "the store does not allow it (status 403" in done.stderr
    assert_whole(s3_url, range(2))


def test_a_store_that_lists_two_names_at_a_time(
    s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a store may. What is listed is asked for in small pages by the proxy, so it is not signed."""
    obstore.put(from_url(f"s3://{OPEN_BUCKET}", client_options={"allow_http": True}), "made", b"")
    parsed = fault_proxy._parsed

    def in_small_pages(head: bytes) -> Request:
        request = parsed(head)
        if request.kind != "LIST":
            return request
        old, new = request.target.encode(), f"{request.target}&max-keys=2".encode()
        return replace(request, head=head.replace(old, new, 1))

    monkeypatch.setattr(fault_proxy, "_parsed", in_small_pages)
    with FaultProxy(s3_server.port) as proxy:
        for name, value in s3_server.env(proxy.port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        url = f"s3://{OPEN_BUCKET}/{s3_url.rpartition('/')[2]}"
        train(url, "record", range(9))
        proxy.forget()
        assert_whole(url, range(9))
        assert proxy.requests["LIST"] > 9, "the pages are small"
        folded(url)
        assert train(url, "replay", range(9)).replayed == 9
        assert run("check", url).exit_code == 0
        storage = ObjectStorage(f"{url}-lines")
        for number in range(20):
            storage.append("train/metrics.jsonl", b"%d" % number)
        storage.fold("train/metrics.jsonl")
        storage.append("train/metrics.jsonl", b"20")
        read = bytes(ObjectStorage(f"{url}-lines").read("train/metrics.jsonl"))
        assert read.split() == [b"%d" % number for number in range(21)]


def test_clocks_that_are_off_by_a_day(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three machines record to one tape in turn: lines keep their order, and everything is found."""
    now, now_ns = time.time, time.time_ns
    for at, ahead in enumerate((DAY, 0, -DAY)):
        with monkeypatch.context() as other:
            other.setattr(time, "time", lambda ahead=ahead: now() + ahead)
            other.setattr(time, "time_ns", lambda ahead=ahead: now_ns() + ahead * 10**9)
            train(s3_url, "auto", range(3 * at, 3 * at + 3))
            assert run("check", s3_url).exit_code == 0
    assert_whole(s3_url, range(9))
    assert run("compact", s3_url, "--keep", 0).exit_code == 0
    assert_whole(s3_url, range(9))


def by_prompt(url: str, mode: str, steps: Any, **options: Any) -> Any:
    """Ask for samples by their prompts; flushes after every step, so that a part of the index is stored."""
    found = []
    with rolltape.Tape(url, mode=mode, **options) as tape:

        def generate(prompts: list[str], n: int = 2) -> dict[str, Any]:
            assert mode != "replay"
            return {"response": [f"{prompt} {at}" for prompt in prompts for at in range(n)]}

        stage = tape.stage("rollout", by="prompt", prompts="prompts", n="n", version="any")(generate)
        for step in steps:
            with tape.step(step):
                found.append(list(stage([f"p{step}", f"q{step}"])["response"]))
            tape.flush()
    return found


def test_a_store_that_is_away_does_not_hold_up_who_indexes(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Parts are merged when they are there; until then a flush waits for nobody."""
    monkeypatch.setattr(index_writer, "MOST_PARTS", 2)
    monkeypatch.setenv("ROLLTAPE_STORE_DEADLINE", "60")
    caplog.set_level(logging.WARNING)

    def steps() -> Any:
        for step in range(12):
            s3_proxy.away = 4 <= step < 8
            yield step

    recorded = by_prompt(s3_url, "record", steps())
    assert "is not up to date" not in caplog.text
    assert "answers again" in caplog.text
    assert by_prompt(s3_url, "replay", reversed(range(12))) == recorded[::-1]
    assert run("index", "check", s3_url).exit_code == 0
    assert run("check", s3_url).exit_code == 0
