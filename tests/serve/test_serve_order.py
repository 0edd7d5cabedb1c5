"""Answers are completed in the order in which they were, however the clients are delayed."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

import rolltape
from rolltape.serving import order_gate as gate
from tests.serve.engine import Engine, Plan, ask, chat, client, post, rows, until_async

CALLS = 24


async def ask_all(url: str, seed: int, spread: float = 0.2, skip: tuple[int, ...] = ()) -> list[int]:
    """Everybody asks after a random while; the order in which they were answered."""
    draw, finished = random.Random(seed), []
    async with client() as session:

        async def one(number: int, delay: float) -> None:
            await asyncio.sleep(delay)
            body = chat(f"question {number}", stream=number % 3 == 0)
            answer = await post(session, url, body, X_Session_ID=str(number))
            assert answer.status == 200, answer.body
            finished.append(number)

        await asyncio.gather(
            *(one(n, draw.random() * spread) for n in range(CALLS) if n not in skip), return_exceptions=False
        )
    return finished


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A tape of calls that took random times, and the sessions in the order in which they were completed."""
    tape, draw = tmp_path_factory.mktemp("order") / "tape", random.Random(0)
    with (
        Engine(lambda seen: Plan(seconds=draw.random() / 4)) as engine,
        rolltape.serve(tape, engine.url, mode="record") as server,
    ):
        asyncio.run(ask_all(server.url, -1))
    calls = sorted(rows(tape), key=lambda row: row["completion"])
    return tape, [int(row["session"]) for row in calls]


@pytest.fixture
def patient(monkeypatch):
    """The gate gives a client on a busy machine the time to take one answer before the next."""
    monkeypatch.setattr(gate, "HAND_OVER", 0.05)


@pytest.mark.parametrize("seed", range(5))
def test_the_recorded_order_comes_again(recorded, patient, seed):
    tape, order = recorded
    with rolltape.serve(tape, mode="replay", wait=600) as server:
        assert asyncio.run(ask_all(server.url, seed)) == order
    assert server.summary()["gate"]["let_go"] == 0


def test_without_an_order_nobody_waits(recorded):
    tape, order = recorded

    async def backwards(url: str) -> None:
        async with client() as session:
            for number in reversed(order):
                body = chat(f"question {number}", stream=number % 3 == 0)
                assert (await post(session, url, body, X_Session_ID=str(number))).status == 200

    with rolltape.serve(tape, mode="replay", order="none", wait=600) as server:
        asyncio.run(backwards(server.url))
    assert server.summary()["gate"] == {"order": "none", "waiting": 0, "let_go": 0, "waits_for": []}


def test_in_the_order_of_arrival_the_first_to_ask_is_the_first_to_be_answered(recorded):
    tape, order = recorded

    async def backwards(server) -> list[int]:
        finished = []
        async with client() as session:

            async def one(number: int) -> None:
                body = chat(f"question {number}", stream=number % 3 == 0)
                await post(session, server.url, body, X_Session_ID=str(number))
                finished.append(number)

            tasks = []
            for number in reversed(order):
                tasks.append(asyncio.create_task(one(number)))
                await until_async(lambda: server.summary()["calls"]["asked"] == len(tasks))
            await asyncio.gather(*tasks)
        return finished

    with rolltape.serve(tape, mode="replay", order="arrival") as server:
        assert asyncio.run(backwards(server)) == order[::-1]


def test_the_gate_says_what_it_waits_for_and_lets_go(recorded, patient):
    tape, order = recorded
    first = order[0]

    async def without_the_first(server) -> list[int]:
        asking = asyncio.create_task(ask_all(server.url, 0, skip=(first,)))
        await until_async(lambda: server.summary()["gate"]["waiting"])
        waits_for = server.summary()["gate"]["waits_for"]
        assert str(first) in [one["session"] for one in waits_for]
        assert {"step", "turn", "arrival"} < waits_for[0].keys()
        return await asking

    with rolltape.serve(tape, mode="replay", wait=2) as server:
        assert asyncio.run(without_the_first(server)) == order[1:]
    summary = server.summary()
    assert summary["gate"]["let_go"] == summary["unplayed"] == 1


def test_it_lets_go_early_where_nobody_else_can_come(tmp_path):
    """One call at a time was recorded: whoever waits is the only one who can ask."""
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        said = [ask(server.url, chat(f"question {n}")).text for n in range(3)]
    with rolltape.serve(tmp_path / "tape", mode="replay", wait=10_000) as server:
        assert ask(server.url, chat("question 1")).text == said[1]
        assert ask(server.url, chat("question 2")).text == said[2]
    assert server.summary()["gate"]["let_go"] == 1


def test_a_step_to_begin_with_waits_for_none_before_it(tmp_path):
    async def pairs(server, steps: list[int]) -> None:
        async with client() as session:
            for step in steps:
                server.step(step)
                asks = [post(session, server.url, chat(f"{step} {n}"), X_Session_ID=f"{n}") for n in range(4)]
                assert [one.status for one in await asyncio.gather(*asks)] == [200] * 4

    with (
        Engine(lambda seen: Plan(seconds=0.05)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        asyncio.run(pairs(server, [0, 1, 2]))
    with rolltape.serve(tmp_path / "tape", mode="replay", step=2, wait=10_000) as server:
        asyncio.run(pairs(server, [2]))
    assert server.summary()["gate"]["let_go"] == 0


def test_steps_that_overlap_keep_their_order(tmp_path):
    """A call of step 1 is answered before the last one of step 0 is: nobody waits for a step to end."""

    async def overlapping(server) -> list[str]:
        finished = []
        async with client() as session:

            async def one(step: int, seconds: float) -> None:
                body, name = chat(f"{seconds}"), f"{step}"
                await post(session, server.url, body, X_Session_ID=name, X_Rolltape_Step=name)
                finished.append(name)

            slow = asyncio.create_task(one(0, 0.5))
            await until_async(lambda: server.summary()["calls"]["asked"] == 1)
            await one(1, 0.0)
            await slow
        return finished

    def plan(seen):
        return Plan(seconds=float(seen.json["messages"][0]["content"]))

    with Engine(plan) as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        assert asyncio.run(overlapping(server)) == ["1", "0"]
    with rolltape.serve(tmp_path / "tape", mode="replay", wait=10_000) as server:
        assert asyncio.run(overlapping(server)) == ["1", "0"]
    assert server.summary()["gate"]["let_go"] == 0


def test_a_client_that_goes_away_holds_nobody_up(recorded):
    tape, order = recorded

    async def leave_and_stay(server) -> None:
        async with client() as session:

            def asked(number: int):
                body = chat(f"question {number}", stream=number % 3 == 0)
                return asyncio.create_task(post(session, server.url, body, X_Session_ID=str(number)))

            gone, stays = asked(order[1]), asked(order[2])
            await until_async(lambda: server.summary()["gate"]["waiting"] == 2)
            gone.cancel()
            await until_async(lambda: server.summary()["calls"]["aborted"] == 1)
            assert (await asked(order[0])).status == 200
            assert (await stays).status == 200

    with rolltape.serve(tape, mode="replay", wait=10_000) as server:
        asyncio.run(leave_and_stay(server))


def test_recorded_times_are_kept_where_asked_for(tmp_path):
    with (
        Engine(lambda seen: Plan(seconds=0.4)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        ask(server.url, chat("slow"))
        ask(server.url, chat("slow", stream=True))
    recorded = [row["latency_seconds"] for row in rows(tmp_path / "tape")]
    assert recorded[0] >= 0.4
    assert recorded[1] >= 3 * 0.4
    for pace, share in [("real", 1.0), ("2x", 0.5)]:
        with rolltape.serve(tmp_path / "tape", mode="replay", pace=pace) as server:
            for stream, seconds in zip([{}, {"stream": True}], recorded, strict=True):
                started = time.monotonic()
                assert ask(server.url, chat("slow", **stream)).status == 200
                assert time.monotonic() - started >= 0.95 * share * seconds
