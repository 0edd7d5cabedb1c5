"""`rolltape serve` on an object store: no call waits for the store, and none that was answered is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rolltape
from rolltape.storage import Spool, segmented
from tests.cli_tapes import run
from tests.compacting import folded
from tests.object_servers.fault_proxy import FaultProxy
from tests.serve.engine import Engine, Plan, ask, chat, rows, until

PATIENCE = 3.0
"""Seconds that a call may take longer while the store is away: far less than that is asked for."""


def waiting() -> int:
    return sum(one.files for one in Spool(os.environ["ROLLTAPE_SPOOL"], 0).waiting().values())


def questions(tape: str) -> dict[str, bytes]:
    """What is on the tape: who asked what, and was told what."""
    found = rows(tape)
    by_question = {
        json.loads(row["request_body"])["messages"][0]["content"]: bytes(row["response_body"])
        for row in found
    }
    assert len(by_question) == len(found), "every call is there once"
    return by_question


def start(tape: str, upstream: str, mode: str) -> tuple[subprocess.Popen[str], str]:
    """A server of its own process, as the command line starts it; its address."""
    environ = {**os.environ, "PYTHONPATH": str(Path(rolltape.__file__).parents[1])}
    words = [sys.executable, "-m", "rolltape", "serve", tape, "--mode", mode, "--upstream", upstream]
    server = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, server.stdout.readline().strip()


def test_calls_are_recorded_to_a_store_and_replayed_with_the_url_alone(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Engine() as engine:
        with rolltape.serve(s3_url, engine.url, mode="record") as server:
            told = {f"q{n}": ask(server.url, chat(f"q{n}", stream=n % 2 == 0)).body for n in range(6)}
            server.step(1)
            told["q6"] = ask(server.url, chat("q6")).body
        assert server.summary()["waiting"] == {"files": 0, "bytes": 0, "where": ""}
        assert questions(s3_url) == told
    monkeypatch.setenv("ROLLTAPE_SPOOL", str(tmp_path / "another-machine"))
    with rolltape.serve(s3_url, mode="replay") as server:
        server.step(0)
        assert {q: ask(server.url, chat(q, stream=int(q[1:]) % 2 == 0)).body for q in list(told)[:6]} == {
            q: told[q] for q in list(told)[:6]
        }
    assert server.summary()["calls"]["missed"] == 0
    assert run("check", s3_url).exit_code == 0


def test_two_servers_on_one_step_of_one_tape_lose_nothing(s3_url: str, s3_proxy: FaultProxy) -> None:
    with (
        Engine() as engine,
        rolltape.serve(s3_url, engine.url, mode="auto") as one,
        rolltape.serve(s3_url, engine.url, mode="auto") as other,
    ):
        s3_proxy.away = True  # neither can be told what the other has
        told = {f"a{n}": ask(one.url, chat(f"a{n}")).body for n in range(3)}
        told |= {f"b{n}": ask(other.url, chat(f"b{n}")).body for n in range(3)}
        s3_proxy.away = False
    assert questions(s3_url) == told


def test_a_store_that_is_away_makes_no_call_wait(s3_url: str, s3_proxy: FaultProxy) -> None:
    told: dict[str, bytes] = {}
    longest = {False: 0.0, True: 0.0}
    with Engine() as engine, rolltape.serve(s3_url, engine.url, mode="record") as server:
        for number in range(90):
            s3_proxy.away = 30 <= number < 60
            server.step(number // 10)
            started = time.monotonic()
            told[f"q{number}"] = ask(server.url, chat(f"q{number}")).body
            longest[s3_proxy.away] = max(longest[s3_proxy.away], time.monotonic() - started)
            if number == 59:
                assert until(lambda: server.summary()["waiting"]["files"])
                assert waiting()
    assert longest[True] < PATIENCE + longest[False]  # on a busy machine any call may take long
    assert (server.summary()["failure"], server.summary()["waiting"]["files"], waiting()) == (None, 0, 0)
    assert questions(s3_url) == told


def test_what_waits_does_not_grow_with_time_but_with_calls(s3_url: str, s3_proxy: FaultProxy) -> None:
    with Engine() as engine, rolltape.serve(s3_url, engine.url, mode="record") as server:
        ask(server.url, chat("first"))
        s3_proxy.away = True
        for number in range(12):  # the file that calls go into is written again and again
            ask(server.url, chat(f"q{number}"))
            until(lambda number=number: server.summary()["on_tape"] == number + 2)  # type: ignore[misc]
        assert waiting() <= 2  # what was on its way when the store went away, and the last
        s3_proxy.away = False
    assert len(questions(s3_url)) == 13


def test_what_is_not_up_at_the_end_is_told_and_drained(s3_url: str, s3_proxy: FaultProxy) -> None:
    os.environ["ROLLTAPE_STORE_DEADLINE"] = "2"
    try:
        with Engine() as engine:
            server, url = start(s3_url, engine.url, "record")
            told = {"q0": ask(url, chat("q0")).body}
            s3_proxy.away = True
            told |= {f"q{n}": ask(url, chat(f"q{n}")).body for n in range(1, 5)}
            server.send_signal(signal.SIGTERM)
            out, _ = server.communicate(timeout=60)
    finally:
        del os.environ["ROLLTAPE_STORE_DEADLINE"]
    assert server.returncode == 1, out
    assert "NOT UP YET: 1 file" in out
    assert "rolltape drain" in out
    s3_proxy.away = False
    assert run("drain", s3_url).exit_code == 0
    assert questions(s3_url) == told


@pytest.mark.parametrize("away", [False, True])
def test_after_kill_9_what_was_answered_is_on_the_tape_or_asked_again(
    s3_url: str, s3_proxy: FaultProxy, away: bool
) -> None:
    with Engine(lambda seen: Plan(seconds=0.005)) as engine:
        server, url = start(s3_url, engine.url, "record")
        try:
            told = {"q0": ask(url, chat("q0")).body}
            s3_proxy.away = away
            told |= {f"q{n}": ask(url, chat(f"q{n}")).body for n in range(1, 20)}
            until(lambda: ask(url, path="/rolltape/status", method="GET").json["on_tape"] == 20)
            told |= {f"q{n}": ask(url, chat(f"q{n}")).body for n in range(20, 40)}
        finally:
            os.kill(server.pid, signal.SIGKILL)
            server.communicate()
        s3_proxy.away = False
        before = len(engine.calls())
        with rolltape.serve(s3_url, engine.url, mode="auto") as again:
            later = {question: ask(again.url, chat(question)).body for question in told}
        asked_again = len(engine.calls()) - before
        assert asked_again == sum(later[question] != told[question] for question in told)
        safe = [f"q{n}" for n in range(20)]
        assert [later[question] for question in safe] == [told[question] for question in safe]
        assert waiting() == 0
        assert questions(s3_url) == later
    assert run("check", s3_url).exit_code == 0


def test_calls_of_a_folded_tape_are_answered_as_before(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine() as engine, rolltape.serve(s3_url, engine.url, mode="record") as server:
        told = {}
        for step in range(3):
            server.step(step)
            told |= {f"{step} {n}": ask(server.url, chat(f"{step} {n}")).body for n in range(3)}
    monkeypatch.setattr(segmented, "FRESH", 0.05)
    monkeypatch.setattr(segmented, "GRACE", 0.15)
    assert folded(s3_url).recordings == 3
    assert questions(s3_url) == told
    with rolltape.serve(s3_url, mode="replay") as server:
        for step in range(3):
            server.step(step)
            for n in range(3):
                assert ask(server.url, chat(f"{step} {n}")).body == told[f"{step} {n}"]
    assert server.summary()["calls"]["missed"] == 0


def test_a_store_that_refuses_what_was_answered_is_told_to_every_client(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine() as engine, rolltape.serve(s3_url, engine.url, mode="record") as server:
        ask(server.url, chat("first"))
        server.flush()
        from rolltape.storage.objects import ObjectStorage

        def refused(*_: object, **__: object) -> int:
            raise rolltape.errors.StorageError("the store says no")

        with monkeypatch.context() as broken:
            broken.setattr(ObjectStorage, "publish", refused)
            until(lambda: ask(server.url, chat("more")).status == 500)
    assert "the store says no" in server.summary()["failure"]
    assert server.summary()["waiting"]["files"] == 0  # it was kept, and taken there when the store said yes
