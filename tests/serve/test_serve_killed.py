"""kill -9 of the server under load: what was answered more than a second before is on the tape, whole.

A round of `make test` has twenty kills, one of `make soak` too: ten rounds are two hundred.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

import rolltape
from tests.cli_tapes import run
from tests.serve.engine import Engine, Plan, chat, client, post, rows
from tests.slow.soak import draw, each_round
from tests.slow.starving import Starving

KILLS = 20
CLIENTS = 12
LATE = 1.0
"""Seconds within which an answer may be lost; those in which the server could not run do not count."""


def start(tape: Path, upstream: str, mode: str) -> tuple[subprocess.Popen, str]:
    """A server of its own process, as the command line starts it; its address."""
    environ = {**os.environ, "PYTHONPATH": str(Path(rolltape.__file__).parents[1])}
    words = [sys.executable, "-m", "rolltape", "serve", str(tape), "--mode", mode, "--upstream", upstream]
    server = subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return server, server.stdout.readline().strip()


async def load(url: str, answered: dict[str, tuple[float, bytes]], begin: str, most: int) -> None:
    """Clients that ask one thing after the other until nobody answers; when each answer was whole."""
    async with client() as session:

        async def one(name: int) -> None:
            for number in range(most):
                question = f"{begin} {name} {number}"
                body = chat(question, stream=number % 3 == 0)
                answer = await post(session, url, body, X_Session_ID=f"{name}")
                assert answer.status == 200, answer.body
                answered[question] = time.monotonic(), answer.body

        async def until_it_dies(name: int) -> None:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                await one(name)

        await asyncio.gather(*(until_it_dies(name) for name in range(CLIENTS)))


async def kill_under_load(
    server: subprocess.Popen, url: str, delay: float, begin: str
) -> tuple[float, dict, Starving]:
    starving = Starving(server.pid)
    answered: dict[str, tuple[float, bytes]] = {}
    asking = asyncio.create_task(load(url, answered, begin, 100_000))
    while not answered:
        await asyncio.sleep(0.01)
    end = time.monotonic() + delay
    while time.monotonic() < end:
        starving.sample()
        await asyncio.sleep(0.02)
    starving.sample()
    killed = time.monotonic()
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.to_thread(server.wait)
    await asking
    return killed, answered, starving


def question_of(row: dict) -> str:
    return json.loads(row["request_body"])["messages"][0]["content"]


@each_round
@pytest.mark.parametrize("kill", range(KILLS))
def test_nothing_answered_a_second_ago_is_lost(tmp_path, soak_round, kill):
    delay = draw("serve", soak_round, kill).uniform(0.0, 2.5)
    with Engine(lambda seen: Plan(seconds=0.01)) as engine:
        server, url = start(tmp_path / "tape", engine.url, "record")
        try:
            killed, answered, starving = asyncio.run(kill_under_load(server, url, delay, "question"))
        finally:
            server.kill()
            server.communicate()
        found = {question_of(row): row for row in rows(tmp_path / "tape")} if answered else {}
        safe = {name for name, (when, _) in answered.items() if when + LATE + starving.since(when) < killed}
        assert safe <= found.keys()
        for name, row in found.items():  # nothing is there by half: what a client has of it is what it says
            assert not row["aborted"]
            if name in answered:
                assert bytes(row["response_body"]) == answered[name][1]
        assert run("check", tmp_path / "tape").exit_code == 0
        _go_on(tmp_path / "tape", engine, set(answered), found)
        assert run("check", tmp_path / "tape").exit_code == 0


def _go_on(tape: Path, engine: Engine, answered: set[str], found: dict[str, dict]) -> None:
    """In ``auto``, what is on the tape comes from it, and the rest is asked again."""
    lost, before = sorted(answered - found.keys()), len(engine.seen)
    kept = sorted(answered & found.keys())[:20]

    async def again(url: str) -> None:
        async with client() as session:
            for name in [*kept, *lost]:
                _, who, number = name.split()
                body = chat(name, stream=int(number) % 3 == 0)
                answer = await post(session, url, body, X_Session_ID=who)
                assert answer.status == 200
                if name in found:
                    assert answer.body == bytes(found[name]["response_body"])

    with rolltape.serve(tape, engine.url, mode="auto") as server:
        asyncio.run(again(server.url))
    assert len(engine.seen) - before == len(lost)
    assert server.summary()["calls"]["live"] == len(lost)
    assert {question_of(row) for row in rows(tape)} == found.keys() | set(lost)
