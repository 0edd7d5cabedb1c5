"""What is on the tape: typed columns that say what the bytes say, and every command reads them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as parquet
import pytest

import rolltape
from rolltape.serving.dialects import find
from tests.cli_tapes import run
from tests.serve import answer_models as models
from tests.serve.engine import Engine, Plan, ask, chat, rows

ANSWER = models.Answer(
    [models.Token(5, "Hi", -0.25), models.Token(2**40, " ü", -1e-9), models.Token(7, "", -3.0)],
    "stop", [("add", '{"a": 1}')], ["hm", "m"],
)  # fmt: skip
OTHER = models.Answer([models.Token(9, "No", -2.5)], "length")
PROMPT = [1, 2, 3]


def flat(streams: list[list[dict]]) -> list[dict]:
    return [event for stream in streams for event in stream]


CALLS = {
    "chat": ("/v1/chat/completions", chat("x", n=2), models.chat_json([ANSWER, OTHER], PROMPT, True)),
    "chat stream": (
        "/v1/chat/completions", chat("x", stream=True, n=2),
        models.sse(flat(models.chat_events([ANSWER, OTHER], PROMPT, True))),
    ),
    "completions": (
        "/v1/completions", {"model": "m", "prompt": PROMPT}, models.completion_json([ANSWER, OTHER], PROMPT)
    ),
    "completions stream": (
        "/v1/completions", {"prompt": "x", "stream": True},
        models.sse(flat(models.completion_events([ANSWER], PROMPT))),
    ),
    "sglang": ("/generate", {"input_ids": PROMPT}, models.sglang_json(ANSWER, PROMPT)),
    "sglang list": ("/generate", {"text": ["a", "b"]}, [models.sglang_json(ANSWER, PROMPT)] * 2),
    "sglang stream": (
        "/generate", {"text": "a", "stream": True}, models.sse(models.sglang_events(ANSWER, PROMPT, False))
    ),
    "anthropic": ("/v1/messages", {"messages": chat("x")["messages"]}, models.anthropic_json(ANSWER)),
    "anthropic stream": (
        "/v1/messages", {"messages": [], "stream": True},
        models.sse(models.anthropic_events(ANSWER), done=False, named=True),
    ),
    "responses": ("/v1/responses", {"input": "x"}, models.responses_json(ANSWER)),
    "trl": (
        "/generate/", {"prompts": ["x"], "n": 2},
        {"prompt_ids": [PROMPT], "completion_ids": [[1], [2]], "logprobs": [[[-1.0]], [[-2.0]]]},
    ),
    "vllm tokens": (
        "/inference/v1/generate", {"token_ids": PROMPT}, models.completion_json([ANSWER], PROMPT)
    ),
    "tokenize": ("/tokenize", {"prompt": "x"}, {"tokens": PROMPT, "count": 3}),
    "detokenize": ("/detokenize", {"tokens": PROMPT}, {"prompt": "abc"}),
    "score": ("/score", {"text_1": "a", "text_2": "b"}, {"model": "m", "data": []}),
    "embeddings": ("/v1/embeddings", {"input": "x"}, {"data": [{"embedding": [0.5], "index": 0}]}),
    "an error": ("/v1/chat/completions", chat("y"), {"error": {"message": "no"}}),
    "no JSON": ("/v1/chat/completions", chat("z"), b"<html>"),
}  # fmt: skip


@pytest.fixture(scope="module")
def tape(tmp_path_factory):
    """All of these calls in one file."""
    folder = tmp_path_factory.mktemp("on") / "tape"
    answers = iter(CALLS.values())

    def plan(seen) -> Plan:
        said = next(answers)[2]
        if isinstance(said, bytes) and said.startswith(b"<"):
            return Plan(body=said)
        return Plan(chunks=[said]) if isinstance(said, bytes) else Plan(body=json.dumps(said).encode())

    with Engine(plan) as engine, rolltape.serve(folder, engine.url, mode="record") as server:
        for path, body, _ in CALLS.values():
            assert ask(server.url, body, path=path, X_Session_ID="s").status == 200
    return folder


def test_typed_columns_say_what_the_bytes_say(tape):
    """Read off the bytes again, by the dialect of the path, every value is that of its column."""
    found = rows(tape)
    assert len(found) == len(CALLS)
    for row, (name, (path, body, _)) in zip(found, CALLS.items(), strict=True):
        asked = json.loads(row["request_body"])
        assert asked == body, name
        dialect = find("POST", path).for_body(asked)
        request = dialect.request(asked)
        raw = bytes(row["response_body"])
        stream = "event-stream" in row["response_headers"]["content-type"]
        answer = dialect.streamed(raw) if stream else dialect.response(_json(raw))
        first = answer.choices[0] if answer.choices else None
        assert row["endpoint"] == dialect.name, name
        assert row["prompt"] == (
            request.messages
            if request.messages is not None
            else None
            if request.prompt_ids
            else request.prompt
        ), name
        assert row["sampling"] == request.sampling, name
        assert row["stream"] == request.stream, name
        assert row["model"] == (request.model or answer.model), name
        assert list(row["prompt_ids"]) == (request.prompt_ids or answer.prompt_ids or []), name
        assert row["response"] == (first.text if first else None), name
        assert list(row["response_ids"]) == ((first.token_ids if first else None) or []), name
        expected = np.array((first.logprobs if first else None) or [], np.float64)
        assert np.array(row["response_logprobs"], np.float64).tobytes() == expected.tobytes(), name
        assert row["finish_reason"] == (first.finish_reason if first else None), name
        assert [one["response"] for one in row["choices"]] == [one.text for one in answer.choices[1:]], name
        assert sum(row["chunk_sizes"]) == len(raw), name


def _json(raw: bytes):
    try:
        return json.loads(raw)
    except ValueError:
        return None


def test_the_values_are_those_that_the_engine_gave(tape):
    by_name = dict(zip(CALLS, rows(tape), strict=True))
    for name in ("chat", "chat stream", "completions", "sglang", "sglang stream", "vllm tokens"):
        row = by_name[name]
        assert row["response"] == ANSWER.text, name
        assert list(row["response_ids"]) == ANSWER.ids, name
        assert list(row["response_logprobs"]) == ANSWER.logprobs, name
        assert row["finish_reason"] == "stop", name
    (message,) = by_name["chat stream"]["response_message"]
    assert message["tool_calls"][0]["function"]["name"] == "add"
    assert by_name["sglang"]["weight_version"] == "7"
    assert list(by_name["tokenize"]["prompt_ids"]) == PROMPT
    assert [row["turn"] for row in rows(tape)] == list(range(len(CALLS)))


def test_every_command_reads_it(tape, tmp_path):
    assert "calls" in run("ls", tape).stdout
    assert run("check", tape).exit_code == 0
    shown = run("show", tape, "0", "--stage", "calls")
    assert shown.exit_code == 0, shown.output
    exported = run("export", tape, "--stage", "calls", "--format", "jsonl", "--to", tmp_path / "out.jsonl")
    assert exported.exit_code == 0, exported.output
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(lines) == len(CALLS)


def test_other_tools_read_it(tape):
    (file,) = tape.rglob("train/calls/*.parquet")
    table = parquet.read_table(file)
    assert table.num_rows == len(CALLS)
    assert table.column("response")[0].as_py() == ANSWER.text
    assert table.column("response_ids")[0].as_py() == ANSWER.ids
    assert table.column("session").to_pylist() == ["s"] * len(CALLS)
    assert json.loads(table.column("request_body")[0].as_py()) == chat("x", n=2)


def recorded(folder, change: str | None = None):
    """A tape of a deterministic engine; at this question it says something else."""

    def plan(seen) -> Plan:
        asked = seen.json["messages"][0]["content"]
        if asked != change:
            return Plan()
        message = {"role": "assistant", "content": "something else"}
        return Plan(body=json.dumps({"model": "m", "choices": [{"index": 0, "message": message}]}).encode())

    with (
        Engine(plan, deterministic=True) as engine,
        rolltape.serve(folder, engine.url, mode="record") as server,
    ):
        for number in range(5):
            ask(server.url, chat(f"question {number}"), X_Session_ID=f"s{number}")
    return folder


def test_two_runs_of_the_same_engine_are_the_same(tmp_path):
    same = run("diff", recorded(tmp_path / "a"), recorded(tmp_path / "b"))
    assert same.exit_code == 0, same.output


def test_the_call_that_differs_is_named(tmp_path):
    other = run("diff", recorded(tmp_path / "a"), recorded(tmp_path / "b", change="question 3"))
    assert other.exit_code == 1, other.output
    assert "s3" in other.output
    assert "calls" in other.output
