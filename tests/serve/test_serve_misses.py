"""What was not recorded is refused, with the nearest recording and the first place where it differs."""

from __future__ import annotations

import anthropic
import openai
import pytest

import rolltape
from tests.serve.engine import Engine, ask, chat, until


@pytest.fixture
def tape(tmp_path):
    """Some calls of several APIs, in two steps."""
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
        ask(server.url, chat("What is two and two?", max_tokens=8), X_Session_ID="a")
        ask(server.url, chat("What is the capital of France?", max_tokens=8), X_Session_ID="b")
        ask(server.url, {"model": "m", "prompt": [1, 2, 3, 4, 5]}, path="/v1/completions")
        ask(server.url, {"model": "m", "prompt": "Once upon a time"}, path="/v1/completions")
        ask(server.url, {"model": "m", "prompt": ["one", "two"]}, path="/v1/completions")
        ask(server.url, {"model": "m", "max_tokens": 3, "messages": []}, path="/v1/messages")
        ask(server.url, {"input_ids": [1, 2], "sampling_params": {"n": 1}}, path="/generate")
        server.step(1)
        ask(server.url, chat("only in step 1"))
    return tmp_path / "tape"


def missed(tape, body, *, path="/v1/chat/completions", **options):
    headers = options.pop("headers", {})
    with rolltape.serve(tape, mode="replay", step=0, order="none", **options) as server:
        answer = ask(server.url, body, path=path, **headers)
    assert answer.status == 422, answer.body
    assert answer.headers["x-should-retry"] == "false"
    told = answer.json["rolltape"]
    summary = server.summary()
    assert summary["calls"]["missed"] == 1
    assert summary["refused"] == {told["kind"]: 1}
    assert summary["misses"][0]["reason"] == told["reason"]
    return told


def test_the_first_message_and_letter_that_differ(tape):
    told = missed(tape, chat("What is the capital of Spain?", max_tokens=8))
    assert told["kind"] == "prompt"
    assert told["nearest"]["step"] == 0
    assert told["nearest"]["session"] == "b"
    assert told["differs"]["message"] == 0
    assert told["differs"]["letter"] == len("What is the capital of ")
    assert "France" in told["differs"]["recorded"]
    assert "Spain" in told["differs"]["asked"]


def test_the_session_that_asks_is_the_nearest(tape):
    told = missed(tape, chat("What is the capital of Spain?", max_tokens=8), headers={"X_Session_ID": "a"})
    assert told["nearest"]["session"] == "a"
    assert told["differs"]["letter"] == len("What is t")


def test_a_message_too_many(tape):
    body = chat("and now?", before=chat("What is two and two?")["messages"], max_tokens=8)
    told = missed(tape, body)
    assert told["nearest"]["session"] == "a"
    assert told["differs"]["message"] == 1


def test_the_first_token_that_differs(tape):
    told = missed(tape, {"model": "m", "prompt": [1, 2, 3, 9, 5]}, path="/v1/completions")
    assert told["differs"]["token"] == 3
    assert (told["differs"]["recorded"], told["differs"]["asked"]) == (4, 9)
    told = missed(tape, {"model": "m", "prompt": [1, 2, 3, 4, 5, 6]}, path="/v1/completions")
    assert told["differs"]["token"] == 5
    assert told["differs"]["recorded"] is None


def test_the_first_letter_of_a_prompt_that_differs(tape):
    told = missed(tape, {"model": "m", "prompt": "Once upon a Time"}, path="/v1/completions")
    assert told["differs"]["letter"] == 12
    told = missed(tape, {"model": "m", "prompt": ["one", "twu"]}, path="/v1/completions")
    assert (told["differs"]["prompt"], told["differs"]["letter"]) == (1, 2)


@pytest.mark.parametrize("field", [{"temperature": 0.5}, {"model": "other"}, {"top_p": 0.9}, {"tools": []}])
def test_settings_that_differ(tape, field):
    told = missed(tape, {**chat("What is two and two?", max_tokens=8), **field})
    assert told["kind"] == "settings"
    assert list(told["differs"]) == list(field)
    assert told["differs"][next(iter(field))]["asked"] == next(iter(field.values()))


def test_other_weights(tape):
    body = chat("What is two and two?", max_tokens=8)
    told = missed(tape, body, headers={"X_Rolltape_Weights": "7"})
    assert told["kind"] == "weights"
    assert told["differs"]["weights"] == {"recorded": ["0"], "asked": "7"}


def test_another_step(tape):
    told = missed(tape, chat("only in step 1"))
    assert told["kind"] == "step"
    assert told["differs"]["step"] == {"recorded": [1], "asked": 0}


def test_more_often_than_recorded(tape):
    with rolltape.serve(tape, mode="replay", order="none", step=0) as server:
        body = chat("What is two and two?", max_tokens=8)
        assert ask(server.url, body).status == 200
        answer = ask(server.url, body)
    assert answer.status == 422
    assert answer.json["rolltape"]["kind"] == "exhausted"
    assert answer.json["rolltape"]["nearest"]["session"] == "a"


def test_nothing_like_it(tape):
    assert missed(tape, {"input": "x"}, path="/v1/embeddings")["kind"] == "unknown"
    assert missed(tape, {"x": 1}, path="/v1/never/heard/of")["kind"] == "unknown"


def test_each_api_has_its_form_of_an_error(tape):
    def error(path, body):
        with rolltape.serve(tape, mode="replay", order="none") as server:
            answer = ask(server.url, body, path=path)
        assert answer.status == 422
        assert answer.json["rolltape"]["reason"]
        return answer.json

    assert error("/v1/chat/completions", chat("other"))["error"]["type"] == "invalid_request_error"
    assert error("/v1/messages", {"messages": [1]})["type"] == "error"
    assert error("/v1/messages", {"messages": [1]})["error"]["message"]
    assert error("/inference/v1/generate", {"token_ids": [1]})["error"]["code"] == 422
    assert "recording" in error("/generate/", {"prompts": ["x"]})["detail"]
    assert error("/generate", {"text": "x"})["error"]["message"]


def test_the_usual_clients_do_not_try_again(tape):
    with rolltape.serve(tape, mode="replay", order="none") as server:
        theirs = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=5)
        with pytest.raises(openai.UnprocessableEntityError, match="no recording answers this"):
            theirs.chat.completions.create(model="m", messages=[{"role": "user", "content": "other"}])
        assert server.summary()["calls"]["asked"] == 1
        claude = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=5)
        with pytest.raises(anthropic.UnprocessableEntityError, match="no recording answers this"):
            claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "other"}])
        assert server.summary()["calls"]["asked"] == 2


def test_in_auto_a_miss_goes_upstream_and_is_recorded(tape):
    with Engine() as engine:
        with rolltape.serve(tape, engine.url, mode="auto", step=0) as server:
            said = ask(server.url, chat("something new")).text
            assert ask(server.url, chat("What is two and two?", max_tokens=8)).status == 200
        assert len(engine.seen) == 1
    with rolltape.serve(tape, mode="replay", step=0, order="none") as server:
        assert ask(server.url, chat("something new")).text == said
    until(lambda: server.summary()["levels"]["content"] == 1)
