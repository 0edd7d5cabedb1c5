"""``--by prompt``: samples of the same prompt answer, wherever on the tape they are; others are generated."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.serving import content_answers, content_index
from tests.cli_tapes import run
from tests.serve.engine import Engine, Plan, Seen, ask, chat, client, post, rows

COMPLETIONS, GENERATE = "/v1/completions", "/inference/v1/generate"


class Sampler(Engine):
    """An engine that draws ``n`` samples of each prompt, and knows what it has drawn."""

    def __init__(self) -> None:
        super().__init__(self._drawn)
        self.drawn: Counter[str] = Counter()
        """How many samples of each prompt there are; seeds are part of what is said."""

    def _drawn(self, seen: Seen) -> Plan:
        body = seen.json
        settings = body.get("sampling_params", body)
        said = body.get("messages") or body.get("prompt") or body.get("token_ids")
        listed = isinstance(said, list) and seen.path == COMPLETIONS and not isinstance(said[0], int)
        choices = []
        for prompt in said if listed else [said]:
            name = json.dumps(prompt)
            for at in range(settings.get("n") or 1):
                seed = settings.get("seed")
                text = f"{name} {self.drawn[name] if seed is None else f'seed {seed + at}'}"
                self.drawn[name] += 1
                said_so = {"message": {"role": "assistant", "content": text}, "text": text}
                choices.append({"index": len(choices), **said_so, "finish_reason": "stop"})
        usage = {"completion_tokens": len(choices)}
        answer = {
            "id": f"c-{len(self.seen)}",
            "object": "o",
            "model": "m",
            "choices": choices,
            "usage": usage,
        }
        return Plan(body=json.dumps(answer).encode())


def prompt(text: str, n: int = 1, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": text, "n": n, "temperature": 1.0, **fields}


def texts(answer: Any) -> list[str]:
    assert answer.status == 200, answer.body
    found = answer.json["choices"]
    assert [choice["index"] for choice in found] == list(range(len(found)))
    return [choice["text"] for choice in found]


def drawn(name: Any, *numbers: int) -> list[str]:
    return [f"{json.dumps(name)} {number}" for number in numbers]


@pytest.mark.parametrize("case", range(25))
def test_random_batches_in_another_order_and_size(tmp_path: Path, case: int) -> None:
    """Requests of one prompt and of many, with other counts: what is recorded is never asked for again."""
    draw = random.Random(case)
    names = [f"p{at}" for at in range(6)]

    async def ask_all(url: str, there: Counter[str]) -> None:
        """Requests of a step, at once: every prompt gets its recorded samples first, each of them once."""
        asks = []
        for _ in range(draw.randrange(1, 4)):
            several = draw.choices(names, k=draw.randrange(1, 5))
            asks.append((several if draw.random() < 0.7 else several[0], draw.choice([1, 2, 5])))
        async with client() as session:
            found = await asyncio.gather(
                *(post(session, url, prompt(said, n), path=COMPLETIONS) for said, n in asks)
            )
        given: dict[str, list[str]] = {name: [] for name in names}
        for (said, n), answer in zip(asks, found, strict=True):
            every = texts(answer)
            listed = [said] if isinstance(said, str) else said
            assert len(every) == len(listed) * n
            for at, name in enumerate(listed):
                given[name] += every[at * n : (at + 1) * n]
        for name, every in given.items():
            assert sorted(every) == sorted(drawn(name, *range(len(every)))), "the first, each once"
            there[name] = max(there[name], len(every))

    there: Counter[str] = Counter()
    with Sampler() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
            asyncio.run(ask_all(server.url, there))
        options: dict[str, Any] = {"by": "prompt", "version": "any"}
        with rolltape.serve(tmp_path / "tape", engine.url, mode="auto", **options) as server:
            for step in (1, 2, 3):
                server.step(step)
                asyncio.run(ask_all(server.url, there))
                assert {name: engine.drawn[json.dumps(name)] for name in names} == {
                    name: there[name] for name in names
                }, "only what is missing is generated"
        status = server.summary()["by_content"]
        assert status["calls"]
        assert status["samples"]
    with rolltape.serve(tmp_path / "tape", mode="replay", **options) as server:
        for name in names:
            server.step(9)
            if there[name]:
                found = texts(ask(server.url, prompt(name, there[name]), path=COMPLETIONS))
                assert found == drawn(name, *range(there[name])), "in recorded order"


def test_more_are_added_and_fewer_are_the_first(tmp_path: Path) -> None:
    body = chat("a", n=4)
    with Sampler() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
            recorded = ask(server.url, body).body
        with rolltape.serve(tmp_path / "tape", engine.url, by="prompt", version="any") as server:
            server.step(1)
            found = ask(server.url, {**body, "n": 6})
            assert [choice["text"][-1] for choice in found.json["choices"]] == list("012345")
            assert "usage" not in found.json
            assert json.loads(engine.seen[-1].body)["n"] == 2
            server.step(2)
            assert ask(server.url, body).body == recorded, "a call as a whole has the recorded bytes"
            again = ask(server.url, {**body, "n": 2})
            assert [choice["text"][-1] for choice in again.json["choices"]] == list("45"), "not those again"
            server.step(3)
            assert texts(ask(server.url, {**body, "n": 1})) == drawn(body["messages"], 0)
        assert len(engine.seen) == 2
    summary = server.summary()
    assert summary["calls"]["replayed"] == 0, "an answer by content is no replay"
    assert summary["by_content"]["generated"] == 2
    assert [one["step"] for one in rows(tmp_path / "tape")] == [0, 1]


def test_the_recorded_slot_is_a_replay(tmp_path: Path) -> None:
    with Sampler() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=3) as server:
        recorded = [ask(server.url, chat("a")).body for _ in range(2)]
    with rolltape.serve(tmp_path / "tape", mode="replay", by="prompt", step=3) as server:
        assert [ask(server.url, chat("a")).body for _ in range(2)] == recorded
        assert ask(server.url, chat("a")).status == 422
        assert ask(server.url, chat("a", n=2)).status == 422, "both were given in this step"
        server.step(4)
        missed = ask(server.url, chat("a"))
        assert missed.status == 422
        assert "other versions of the policy (3) may not answer" in missed.json["error"]["message"]
        assert missed.json["rolltape"]["kind"] == "weights"
    summary = server.summary()
    assert (summary["calls"]["replayed"], summary["by_content"]["calls"]) == (2, 0)


@pytest.mark.parametrize(
    ("version", "steps"),
    [("same", [2]), ("any", [0, 1, 2, 3]), ("nearest", [2, 1, 3, 0]), ("<= 1 old", [1, 2])],
)
@pytest.mark.parametrize("declared", [False, True])
def test_which_policy_may_answer(tmp_path: Path, version: str, steps: list[int], declared: bool) -> None:
    def said(step: int) -> dict[str, str]:
        return {"X_Rolltape_Weights": str(step)} if declared else {"X_Rolltape_Step": str(step)}

    with Sampler() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        for step in range(4):
            ask(server.url, prompt("a"), path=COMPLETIONS, **said(step))
    with rolltape.serve(tmp_path / "tape", mode="replay", by="prompt", version=version) as server:
        found = ask(server.url, prompt("a", len(steps)), path=COMPLETIONS, **said(2))
        assert texts(found) == drawn("a", *steps)
        assert ask(server.url, prompt("a"), path=COMPLETIONS, **said(2)).status == 422


def test_a_draw_picks_samples_and_seeds_count_on(tmp_path: Path) -> None:
    with Sampler() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
            ask(server.url, prompt("a", 16), path=COMPLETIONS)
            ask(server.url, prompt("s", 4, seed=7), path=COMPLETIONS)
        picked = []
        for seed in (None, 1, 1, 2):
            options: dict[str, Any] = {"by": "prompt", "version": "any", "draw": seed, "step": 5}
            with rolltape.serve(tmp_path / "tape", mode="replay", **options) as server:
                picked.append(texts(ask(server.url, prompt("a", 4), path=COMPLETIONS)))
        assert picked[0] == drawn("a", 0, 1, 2, 3)
        assert picked[1] == picked[2] != picked[3]
        with rolltape.serve(tmp_path / "tape", engine.url, by="prompt", version="any", step=6) as server:
            found = texts(ask(server.url, prompt("s", 6, seed=7), path=COMPLETIONS))
            assert found == [f'"s" seed {seed}' for seed in range(7, 13)]
            sent = json.loads(engine.seen[-1].body)
            assert (sent["n"], sent["seed"]) == (2, 11)
            server.step(7)
            assert texts(ask(server.url, prompt("s", 2, seed=10), path=COMPLETIONS)) == found[3:5]
        assert len(engine.seen) == 3


def test_tokens_and_calls_that_only_count_as_a_whole(tmp_path: Path) -> None:
    tokens = {
        "model": "m",
        "token_ids": list(range(100_000)),
        "sampling_params": {"n": 2, "temperature": 1.0},
    }
    more = {**tokens, "sampling_params": {"n": 3, "temperature": 1.0}}
    stream, message = chat("a", stream=True), {"model": "m", "messages": [], "max_tokens": 4}
    plain = Engine()
    with plain, rolltape.serve(tmp_path / "plain", plain.url, mode="record", step=0) as server:
        streamed = ask(server.url, stream).body
        said = ask(server.url, message, path="/v1/messages").body
    with rolltape.serve(tmp_path / "plain", mode="replay", by="prompt", version="any", step=4) as server:
        assert ask(server.url, stream).body == streamed
        assert ask(server.url, message, path="/v1/messages").body == said
        assert ask(server.url, {**stream, "n": 2}).status == 422
        assert server.summary()["by_content"] == {"calls": 2, "samples": 2, "generated": 0}
    with Sampler() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
            ask(server.url, tokens, path=GENERATE)
        with rolltape.serve(tmp_path / "tape", engine.url, by="prompt", version="any", step=4) as server:
            assert [text[-1] for text in texts(ask(server.url, more, path=GENERATE))] == ["0", "1", "2"]
            assert json.loads(engine.seen[-1].body)["sampling_params"] == {"n": 1, "temperature": 1.0}
            for odd in (0, -1, "2", 1.5, True, None):
                ask(server.url, prompt("b", odd), path=COMPLETIONS)  # type: ignore[arg-type]
                assert json.loads(engine.seen[-1].body)["n"] == odd, "as it came"


def test_other_sampling_is_another_question(tmp_path: Path) -> None:
    with Sampler() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
        ask(server.url, chat("a", user="me"))
    with rolltape.serve(tmp_path / "tape", mode="replay", by="prompt", version="any", step=1) as server:
        missed = ask(server.url, chat("a", temperature=0.5))
        assert missed.status == 422
        assert "temperature" in missed.json["error"]["message"]
        assert ask(server.url, chat("a", user="you")).status == 200


def test_a_request_that_is_sent_again_gets_the_same(tmp_path: Path) -> None:
    with Sampler() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
            ask(server.url, chat("a", n=8))
        with rolltape.serve(tmp_path / "tape", engine.url, by="prompt", version="any", step=1) as server:
            first = ask(server.url, chat("a", n=3), X_Request_ID="r")
            assert ask(server.url, chat("a", n=3), X_Request_ID="r").body == first.body
            other = ask(server.url, chat("a", n=3))
            again = ask(server.url, chat("a", n=3), x_stainless_retry_count="1")
            assert again.body == other.body != first.body
    assert server.summary()["calls"]["retried"] == 2
    assert server.summary()["by_content"]["samples"] == 6


def test_answers_for_requests_that_are_sent_again_take_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_answers, "KEEP_RECENT", 2000)
    with Sampler() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
        ask(server.url, prompt("a", 12), path=COMPLETIONS)
    with rolltape.serve(tmp_path / "tape", mode="replay", by="prompt", version="any", step=1) as server:
        for number in range(12):
            found = ask(server.url, prompt("a"), path=COMPLETIONS)
            assert texts(found) == drawn("a", number)
        again = ask(server.url, prompt("a"), path=COMPLETIONS, x_stainless_retry_count="1")
        assert again.body == found.body


def test_an_engine_that_fails_takes_nothing_away(tmp_path: Path) -> None:
    with Sampler() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
            ask(server.url, prompt("a", 2), path=COMPLETIONS)
        well = engine.plan
        with rolltape.serve(tmp_path / "tape", engine.url, by="prompt", version="any", step=1) as server:
            for plan, status in (
                (Plan(status=503), 503),
                (Plan(body=b"no JSON"), 200),
                (Plan(body=b'{"choices": []}'), 200),
                (Plan(chunks=[b"{"], cut=True), 502),
            ):
                engine.plan = lambda seen, plan=plan: plan
                failed = ask(server.url, prompt("a", 3), path=COMPLETIONS)
                assert failed.status == status
                assert b"index" not in failed.body
            engine.plan = well
            assert texts(ask(server.url, prompt("a", 3), path=COMPLETIONS)) == drawn("a", 0, 1, 2)


def test_two_prompts_of_one_digest_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sampler() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
            ask(server.url, prompt("a", 2), path=COMPLETIONS)
        monkeypatch.setattr(content_index, "_digest", lambda content: b"the same")
        with rolltape.serve(tmp_path / "tape", engine.url, by="prompt", version="any", step=1) as server:
            assert texts(ask(server.url, prompt("b", 2), path=COMPLETIONS)) == drawn("b", 0, 1)


def test_answers_that_say_something_of_samples_beside_them_are_not_taken_apart(tmp_path: Path) -> None:
    def with_experts(seen: Seen) -> Plan:
        answer = json.loads(engine._drawn(seen).body or b"")
        return Plan(body=json.dumps({**answer, "sglext": {"routed_experts": [[1]]}}).encode())

    with Sampler() as engine:
        engine.plan = with_experts
        with rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
            whole = ask(server.url, chat("a", n=2)).body
        with rolltape.serve(tmp_path / "tape", engine.url, by="prompt", version="any", step=1) as server:
            assert ask(server.url, chat("a", n=2)).body == whole
            server.step(2)
            assert len(ask(server.url, chat("a", n=3)).json["choices"]) == 3
        assert json.loads(engine.seen[-1].body)["n"] == 3, "all of it is generated"


def test_a_run_that_was_killed_goes_on_with_what_it_had(tmp_path: Path) -> None:
    """A step that is asked again, in another order, has what was answered; its own calls are replays."""
    with Sampler() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="auto", by="prompt", step=5) as server:
            first = {name: ask(server.url, chat(name), X_Session_ID=name).body for name in "abc"}
        with rolltape.serve(tmp_path / "tape", engine.url, mode="auto", by="prompt", step=5) as server:
            again = {name: ask(server.url, chat(name), X_Session_ID=name).body for name in "dcba"}
        assert len(engine.seen) == 4
    assert {name: again[name] for name in "abc"} == first
    assert server.summary()["calls"]["replayed"] == 3


def test_options_of_a_tape_and_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sampler() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
        recorded = ask(server.url, chat("a")).body
    tape = rolltape.Tape(tmp_path / "tape", mode="replay", by="prompt", version="any")
    with tape, rolltape.serve(tape, step=3) as server:
        assert ask(server.url, chat("a")).body == recorded
    asking = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], sys.argv[2].encode()))"
    command = [sys.executable, "-c", asking, "{url}/r/step/4/v1/chat/completions", json.dumps(chat("a"))]
    words = ["run", "--serve", "--dir", str(tmp_path / "tape"), "--mode", "replay", "--", *command]
    assert run(*words).exit_code == 1, "the call was missed: it is of another step"
    monkeypatch.setenv("ROLLTAPE_BY", "prompt")
    monkeypatch.setenv("ROLLTAPE_VERSION", "any")
    done = run(*words)
    assert done.exit_code == 0
    assert "by content, no replay of their step: 1 call of 1 recorded sample, 0 generated" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "uid"}, "step, prompt"),
        ({"version": "any"}, "version says nothing"),
        ({"draw": 1}, "draw says nothing"),
        ({"by": "prompt", "version": "newest"}, "version 'newest' is none of"),
    ],
)
def test_options_that_contradict_themselves(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    opening = rolltape.serve(tmp_path / "tape", "http://127.0.0.1:1", mode="auto", **options)
    with pytest.raises(rolltape.ConfigError, match=message), opening:
        pass
