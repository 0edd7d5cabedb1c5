"""Groups of equal prompts at temperature 1: who gets which of the recorded answers, however they arrive."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import defaultdict

import pytest

import rolltape
from tests.serve.engine import Engine, ask, chat, client, post, rows

GROUPS, SIZE = 64, 16
SEEDS = range(20)


def question(group: int) -> dict:
    return chat(f"question {group}")


async def ask_all(url: str, order: list[tuple[int, int]], named: bool) -> dict[tuple[int, int], bytes]:
    """Every member of every group asks, in this order, many at once."""
    found = {}
    async with client() as session:

        async def one(group: int, member: int) -> None:
            headers = {"X_Session_ID": f"{group}-{member}"} if named else {}
            answer = await post(session, url, question(group), **headers)
            assert answer.status == 200, answer.body
            found[group, member] = answer.body

        await asyncio.gather(*(one(*who) for who in order))
    return found


def everybody(seed: int) -> list[tuple[int, int]]:
    order = [(group, member) for group in range(GROUPS) for member in range(SIZE)]
    random.Random(seed).shuffle(order)
    return order


@pytest.fixture(scope="module", params=[True, False], ids=["with ids", "without ids"])
def recorded(request, tmp_path_factory):
    """A tape of all of them, what each was answered, and whether they said who they are."""
    tape = tmp_path_factory.mktemp("slots") / "tape"
    with Engine() as engine, rolltape.serve(tape, engine.url, mode="record") as server:
        answers = asyncio.run(ask_all(server.url, everybody(-1), request.param))
    assert len(set(answers.values())) == GROUPS * SIZE  # no two calls were answered alike
    return tape, answers, request.param


@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_of_arrival_gets_the_recorded_answers(recorded, seed):
    tape, answers, named = recorded
    with rolltape.serve(tape, mode="replay", order="none") as server:
        replayed = asyncio.run(ask_all(server.url, everybody(seed), named))
    summary = server.summary()
    assert summary["upstream"]["calls"] == summary["calls"]["missed"] == summary["unplayed"] == 0
    if named:
        assert replayed == answers
        assert summary["levels"]["identity"] == GROUPS * SIZE
    else:
        assert groups(replayed) == groups(answers)
        assert summary["levels"]["content"] == GROUPS * SIZE


def groups(answers: dict[tuple[int, int], bytes]) -> dict[int, list[bytes]]:
    found = defaultdict(list)
    for (group, _), body in answers.items():
        found[group].append(body)
    return {group: sorted(bodies) for group, bodies in found.items()}


def test_thousands_of_calls_are_few_files(recorded):
    files = list(rolltape.open(recorded[0]).recordings("calls"))
    assert len(rows(recorded[0])) == GROUPS * SIZE
    assert len(files) <= GROUPS * SIZE // 64


@pytest.mark.parametrize("seed", range(3))
def test_sessions_that_are_named_at_random_in_each_run_are_the_conversations_they_continue(tmp_path, seed):
    async def talk(url: str, seed: int) -> list[tuple[str, ...]]:
        """Eight conversations of three turns, all begun alike, named by nobody but chance."""
        draw = random.Random(seed)
        async with client() as session:

            async def one() -> tuple[str, ...]:
                said, history, name = [], [], str(uuid.uuid4())
                for turn in range(3):
                    await asyncio.sleep(draw.random() / 50)
                    body = chat(f"turn {turn}", before=history)
                    answer = await post(session, url, body, X_Session_ID=name)
                    assert answer.status == 200, answer.body
                    said.append(answer.text)
                    history = [*body["messages"], {"role": "assistant", "content": answer.text}]
                return tuple(said)

            return await asyncio.gather(*(one() for _ in range(8)))

    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        recorded = asyncio.run(talk(server.url, seed))
    with rolltape.serve(tmp_path / "tape", mode="replay", order="none") as server:
        replayed = asyncio.run(talk(server.url, seed + 100))
    assert sorted(replayed) == sorted(recorded)
    assert server.summary()["levels"] == {"identity": 0, "conversation": 16, "content": 8, "control": 0}


def test_request_ids_name_the_slot(tmp_path):
    async def run(url: str, order: list[int]) -> dict[int, str]:
        async with client() as session:
            asks = [post(session, url, chat("same"), X_Request_ID=f"q{number}") for number in order]
            return dict(zip(order, [one.text for one in await asyncio.gather(*asks)], strict=True))

    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        recorded = asyncio.run(run(server.url, list(range(16))))
    with rolltape.serve(tmp_path / "tape", mode="replay", order="none") as server:
        assert asyncio.run(run(server.url, list(range(15, -1, -1)))) == recorded
    assert server.summary()["levels"]["identity"] == 16


def test_a_path_names_the_slot_too(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        paths = [f"/r/iter/3/traj-{n}{'/v1/chat/completions'}" for n in range(4)]
        recorded = {path: ask(server.url, chat("same"), path=path).body for path in paths}
        assert {seen.path for seen in engine.seen} == {"/v1/chat/completions"}
    with rolltape.serve(tmp_path / "tape", mode="replay", order="none") as server:
        for path in reversed(paths):
            assert ask(server.url, chat("same"), path=path).body == recorded[path]
    assert {row["session"] for row in rows(tmp_path / "tape")} == {f"iter/3/traj-{n}" for n in range(4)}
