"""`rolltape serve` in front of vLLM's real server: tokens, log-probs, streams, control, disconnection."""

import json
import re
import time

import httpx
import numpy as np
import pytest

from rolltape import reader
from rolltape.engines import OpenAIEngine, SamplingParams
from tests.clients.serving import recording, replaying
from tests.engines.servers import vllm_server

CHAT = [{"role": "user", "content": "Two and two?"}]
SAMPLED = {"temperature": 1.0, "max_tokens": 6, "logprobs": 1, "return_token_ids": True}


@pytest.fixture
def engine():
    return vllm_server()


@pytest.fixture
def tape(tmp_path):
    return tmp_path / "tape"


def post(server, path: str, body: dict, **headers: str) -> bytes:
    got = httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=120)
    assert got.status_code == 200, got.text
    return got.content


def stream(server, path: str, body: dict) -> bytes:
    with httpx.stream("POST", f"{server.url}{path}", json=body | {"stream": True}, timeout=120) as got:
        assert got.status_code == 200
        assert got.headers["content-type"].startswith("text/event-stream")
        return b"".join(got.iter_raw())


def everything(server, model: str) -> list[bytes]:
    """One call of each kind that trainers use."""
    named = {"model": model}
    tokens = {**named, "token_ids": [40, 41, 42], "sampling_params": {"max_tokens": 6, "logprobs": 1}}
    return [
        post(server, "/v1/completions", {**named, **SAMPLED, "prompt": [40, 41, 42]}),
        post(server, "/v1/completions", {**named, **SAMPLED, "prompt": [[40, 41], [42]], "n": 2}),
        post(server, "/v1/completions", {**named, **SAMPLED, "prompt": ["The quick", "One and"]}),
        post(
            server,
            "/v1/chat/completions",
            {**named, **SAMPLED, "logprobs": True, "top_logprobs": 2, "messages": CHAT, "n": 2},
        ),
        post(server, "/v1/messages", {**named, "max_tokens": 4, "temperature": 1.0, "messages": CHAT}),
        post(server, "/inference/v1/generate", tokens),
        post(server, "/tokenize", {**named, "prompt": "The quick brown"}),
        post(server, "/detokenize", {**named, "tokens": [40, 41, 42]}),
        stream(server, "/v1/completions", {**named, **SAMPLED, "prompt": [40, 41, 42]}),
        stream(
            server, "/v1/chat/completions", {**named, "temperature": 1.0, "max_tokens": 6, "messages": CHAT}
        ),
        stream(server, "/inference/v1/generate", tokens),
        httpx.get(f"{server.url}/v1/models", timeout=60).content,
        httpx.get(f"{server.url}/version", timeout=60).content,
    ]


def test_every_endpoint_is_equal_byte_by_byte(tape, engine, tiny_path):
    with recording(tape, engine) as server:
        live = everything(server, tiny_path)
    with replaying(tape, engine) as server:
        again = everything(server, tiny_path)
    assert again == live
    assert server.summary["unplayed"] == 0


def test_a_seed_that_is_drawn_anew_in_every_run(tape, engine, tiny_path):
    """As TRL's asynchronous trainer does: refused like all other sampling, unless told not to count."""
    body = {"model": tiny_path, **SAMPLED, "prompt": [40, 41, 42]}
    with recording(tape, engine) as server:
        live = post(server, "/v1/completions", body | {"seed": 1})
    with replaying(tape, engine, missed=1) as server:
        refused = httpx.post(f"{server.url}/v1/completions", json=body | {"seed": 2}, timeout=60)
    assert refused.status_code == 422
    assert refused.json()["rolltape"]["differs"] == {"seed": {"recorded": 1, "asked": 2}}
    with replaying(tape, engine, "--volatile", "seed") as server:
        assert post(server, "/v1/completions", body | {"seed": 2}) == live
    assert server.summary["differs"] == {"seed": 1}


def test_the_columns_are_what_the_bytes_say(tape, engine, tiny_path):
    body = {"model": tiny_path, **SAMPLED, "prompt": [40, 41, 42]}
    tokens = {"model": tiny_path, "token_ids": [50, 51], "sampling_params": {"max_tokens": 5, "logprobs": 1}}
    with recording(tape, engine) as server:
        [completed] = json.loads(post(server, "/v1/completions", body))["choices"]
        [generated] = json.loads(post(server, "/inference/v1/generate", tokens))["choices"]
    found = {row["endpoint"]: row for row in calls(tape)}
    row = found["openai.completions"]
    assert list(row["prompt_ids"]) == [40, 41, 42]
    assert list(row["response_ids"]) == completed["token_ids"]
    assert list(row["response_logprobs"]) == completed["logprobs"]["token_logprobs"]
    assert row["response"] == completed["text"]
    assert row["finish_reason"] == completed["finish_reason"]
    row = found["vllm.generate"]
    assert list(row["prompt_ids"]) == [50, 51]
    assert list(row["response_ids"]) == generated["token_ids"]
    assert list(row["response_logprobs"]) == [one["logprob"] for one in generated["logprobs"]["content"]]


def calls(tape) -> list[dict]:
    """The samples of the stage `calls`."""
    run = reader.open(tape)
    return [dict(row) for step in run.steps("calls") for row in run.samples(step, "calls")]


def test_a_client_that_goes_away_ends_the_generation(tape, engine, tiny_path):
    body = {
        "model": tiny_path,
        "prompt": [40],
        "n": 192,
        "max_tokens": 480,
        "ignore_eos": True,
        "stream": True,
    }
    before = counted(engine, "generation_tokens_total")
    with recording(tape, engine) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as got:
            next(got.iter_raw())
        assert 0 < settled(engine, "generation_tokens_total") - before < 192 * 480
    assert server.summary["calls"]["aborted"] == 1
    [row] = calls(tape)
    assert row["aborted"]
    assert b"[DONE]" not in bytes(row["response_body"])


def settled(engine, name: str) -> float:
    """A count of vLLM's, once a second passes in which it stays."""
    seen = None
    while seen != (seen := counted(engine, name)):
        time.sleep(1)
    return seen


def counted(engine, name: str) -> float:
    """What vLLM itself has counted."""
    said = httpx.get(f"{engine.url}/metrics", timeout=60).text
    return sum(map(float, re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", said, re.MULTILINE)))


def test_an_engine_with_new_weights_needs_no_server_in_a_replay(tape, engine, tiny, tmp_path):
    """Weights go by disk and HTTP: pausing, loading and resuming come from the tape like the tokens."""

    def train(server) -> list:
        weights = {name: value.clone() for name, value in tiny.model.state_dict().items()}
        found = []
        with OpenAIEngine(server.url, weights_dir=tmp_path / "weights") as made:
            for version in (0, 1):
                made.update_weights(weights, version=version)
                rollout = made.generate(["The quick", "One and"], SamplingParams(n=2, max_tokens=6))
                found += [rollout.response_ids, rollout.logprobs, rollout.weights_versions]
        return found

    with recording(tape, engine) as server:
        live = train(server)
    with replaying(tape, engine) as server:
        again = train(server)
    for mine, theirs in zip(again, live, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
