"""A request that is sent again gets the answer it had, and takes no other's."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

import rolltape
from tests.serve.engine import Engine, Plan, ask, chat, client, post, rows, until_async


def tape_of(folder, count: int, **headers):
    """A tape of so many answers to the same question; the answers."""
    with Engine() as engine, rolltape.serve(folder, engine.url, mode="record") as server:
        return [ask(server.url, chat("same"), **headers).text for _ in range(count)]


def test_a_retry_takes_no_new_slot(tmp_path):
    first, second = tape_of(tmp_path / "tape", 2)
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        assert ask(server.url, chat("same")).text == first
        assert ask(server.url, chat("same"), x_stainless_retry_count="1").text == first
        assert ask(server.url, chat("same"), x_stainless_retry_count="2").text == first
        assert ask(server.url, chat("same")).text == second
    assert server.summary()["calls"]["retried"] == 2


def test_the_same_request_id_is_a_retry(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        first = ask(server.url, chat("same"), X_Request_ID="a").text
        assert ask(server.url, chat("same"), X_Request_ID="a").text == first
        second = ask(server.url, chat("same"), X_Request_ID="b").text
        assert len(engine.calls()) == 2
    with rolltape.serve(tmp_path / "tape", mode="replay", order="none") as server:
        for name, text in [("b", second), ("b", second), ("a", first), ("a", first)]:
            assert ask(server.url, chat("same"), X_Request_ID=name).text == text


def test_a_request_id_that_comes_again_in_another_step_is_another_request(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        said = []
        for step in range(3):
            server.step(step)
            said.append(ask(server.url, chat("same"), X_Request_ID="row 7").text)
        assert len(set(said)) == len(engine.calls()) == 3
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        for step in range(3):
            server.step(step)
            assert ask(server.url, chat("same"), X_Request_ID="row 7").text == said[step]
    assert server.summary()["unplayed"] == 0


def test_the_same_request_id_while_the_first_is_on_its_way_is_asked_once(tmp_path):
    async def both(url: str) -> list[str]:
        async with client() as session:
            asks = [post(session, url, chat("same"), X_Request_ID="a") for _ in range(2)]
            return [one.text for one in await asyncio.gather(*asks)]

    with Engine(lambda seen: Plan(seconds=0.3)) as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
            first, second = asyncio.run(both(server.url))
        assert first == second
        assert len(engine.calls()) == 1
    for order in ("recorded", "arrival", "none"):
        with rolltape.serve(tmp_path / "tape", mode="replay", order=order) as server:
            assert asyncio.run(both(server.url)) == [first, first]


def test_a_recorded_failure_and_the_retry_after_it_come_again(tmp_path):
    fails = [500, 503, None]
    with (
        Engine(lambda seen: Plan(status=fails.pop(0) or 200)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        recorded = [ask(server.url, chat("same"), **retry(n)) for n in range(3)]
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        replayed = [ask(server.url, chat("same"), **retry(n)) for n in range(3)]
    assert [one.status for one in replayed] == [500, 503, 200]
    assert [one.body for one in replayed] == [one.body for one in recorded]
    assert [row["attempt"] for row in rows(tmp_path / "tape")] == [0, 1, 2]


def retry(number: int) -> dict[str, str]:
    return {"x_stainless_retry_count": str(number)} if number else {}


def test_in_auto_a_recorded_failure_is_asked_for_again(tmp_path):
    with (
        Engine(lambda seen: Plan(status=500)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        assert ask(server.url, chat("same")).status == 500
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="auto") as server:
        assert ask(server.url, chat("same")).status == 200
        assert len(engine.calls()) == 1


@pytest.mark.parametrize("named", [True, False], ids=["with ids", "without ids"])
def test_a_client_that_went_away_finds_its_answer_when_it_comes_back(tmp_path, named):
    """Sixteen ask; one is gone before its answer comes, and asks again."""

    def headers(n: int) -> dict[str, str]:
        return {"X_Session_ID": str(n)} if named else {}

    async def record(url: str) -> list[str]:
        async with client() as session:
            return [(await post(session, url, chat("same"), **headers(n))).text for n in range(16)]

    async def replay(server) -> list[str]:
        async with client() as session:
            # all but the first wait for it: their answers were completed later
            rest = [asyncio.create_task(post(session, server.url, chat("same"), **headers(n)))
                    for n in range(1, 16)] if named else []  # fmt: skip
            await until_async(lambda: server.summary()["calls"]["asked"] == len(rest))
            lost = asyncio.create_task(post(session, server.url, chat("same"), **headers(15 if named else 0)))
            if not named:
                await lost
                return [lost.result().text] + [
                    (await post(session, server.url, chat("same"))).text for _ in range(15)
                ]
            await until_async(lambda: server.summary()["calls"]["asked"] == 16)
            lost.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await lost
            first = await post(session, server.url, chat("same"), **headers(0))
            return [first.text, *[one.text for one in await asyncio.gather(*rest)]]

    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        recorded = asyncio.run(record(server.url))
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        assert asyncio.run(replay(server)) == recorded


async def _leave(session: aiohttp.ClientSession, url: str, server, body, **headers: str) -> None:
    """Ask, and be gone before there is an answer."""
    before = server.summary()["calls"]["asked"]
    task = asyncio.create_task(post(session, url, body, **headers))
    await until_async(lambda: server.summary()["calls"]["asked"] == before + 1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_a_retry_of_one_that_was_lost_does_not_take_what_others_wait_for(tmp_path):
    """Without ids: of four that ask for the same, one goes away and comes back as a retry."""
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        other = ask(server.url, chat("first of all")).text
        recorded = [ask(server.url, chat("same")).text for _ in range(4)]

    async def replay(server) -> tuple[str, list[str]]:
        async with client() as session:
            # nothing is completed before "first of all" is, so all of these are held back
            await _leave(session, server.url, server, chat("same"))
            await until_async(lambda: server.summary()["calls"]["aborted"] == 1)
            held = [asyncio.create_task(post(session, server.url, chat("same"))) for _ in range(3)]
            await until_async(lambda: server.summary()["calls"]["asked"] == 4)
            again = asyncio.create_task(post(session, server.url, chat("same"), x_stainless_retry_count="1"))
            await until_async(lambda: server.summary()["calls"]["asked"] == 5)
            first = await post(session, server.url, chat("first of all"))
            return first.text, sorted(one.text for one in await asyncio.gather(again, *held))

    with rolltape.serve(tmp_path / "tape", mode="replay", wait=600) as server:
        first, same = asyncio.run(replay(server))
    assert first == other
    assert same == sorted(recorded)
    assert server.summary()["calls"]["retried"] == 1


def test_a_client_that_comes_back_before_it_is_missed_is_answered(tmp_path):
    """The first connection breaks off while the second, with the same id, waits for the same answer."""
    plans = [Plan(hang=True, body=b"{}"), Plan()]

    async def twice(server) -> str:
        async with client() as session:
            first = asyncio.create_task(post(session, server.url, chat("same"), X_Request_ID="a"))
            await until_async(lambda: server.summary()["upstream"]["calls"] == 1)
            second = asyncio.create_task(post(session, server.url, chat("same"), X_Request_ID="a"))
            await until_async(lambda: server.summary()["calls"]["asked"] == 2)
            first.cancel()
            return (await second).text

    with (
        Engine(lambda seen: plans.pop(0)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        assert asyncio.run(twice(server)).startswith("answer")
    assert [row["aborted"] for row in rows(tmp_path / "tape")] == ["client", ""]
