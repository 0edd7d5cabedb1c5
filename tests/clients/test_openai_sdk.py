"""The `openai` SDK: what it got while recording it gets again from the tape, with no engine."""

import asyncio
from collections import Counter

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.serving import recording, replaying, serving
from tests.engines.proxy import Proxy

SKY = [{"role": "user", "content": "Why is the sky blue?"}]
SHORT = {"model": "smollm2", "max_tokens": 8, "temperature": 1.0}


def client(server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


def both(tape, engine, ask, *options):
    """What a client got live and from the tape, and what the second server said of it."""
    with recording(tape, engine, *options) as server:
        live = ask(server)
    with replaying(tape, engine, *options) as server:
        again = ask(server)
    return live, again, server.summary


def chat(server) -> str:
    return client(server).chat.completions.create(messages=SKY, **SHORT).to_json()


def chat_with_log_probs(server) -> str:
    asked = SHORT | {"logprobs": True, "top_logprobs": 2, "seed": 4}
    return client(server).chat.completions.create(messages=SKY, **asked).to_json()


def several_choices(server) -> str:
    got = client(server).chat.completions.create(messages=SKY, n=3, **SHORT)
    assert len(got.choices) == 3
    return got.to_json()


def completion(server) -> str:
    return client(server).completions.create(prompt="The sky is", logprobs=1, **SHORT).to_json()


def completion_of_tokens(server) -> str:
    return client(server).completions.create(prompt=[504, 6376, 314], **SHORT).to_json()


def response(server) -> str:
    asked = {"model": "smollm2", "max_output_tokens": 8, "temperature": 1.0}
    return client(server).responses.create(input="Why is the sky blue?", **asked).to_json()


def streamed_chat(server) -> list[str]:
    stream = client(server).chat.completions.create(messages=SKY, stream=True, **SHORT)
    return [chunk.to_json() for chunk in stream]


def streamed_completion(server) -> list[str]:
    stream = client(server).completions.create(prompt="The sky is", stream=True, **SHORT)
    return [chunk.to_json() for chunk in stream]


def streamed_response(server) -> list[str]:
    asked = {"model": "smollm2", "max_output_tokens": 8, "temperature": 1.0}
    stream = client(server).responses.create(input="Why is the sky blue?", stream=True, **asked)
    return [event.to_json() for event in stream]


def models(server) -> str:
    return client(server).models.list().to_json()


CALLS = [
    chat, chat_with_log_probs, several_choices, completion, completion_of_tokens, response, streamed_chat,
    streamed_completion, streamed_response,
]  # fmt: skip


def test_every_kind_of_call(tape, engine):
    """Sampled at temperature 1: a second live run would say something else."""
    live, again, summary = both(tape, engine, lambda server: [ask(server) for ask in CALLS])
    assert again == live
    assert summary["calls"]["replayed"] == len(CALLS)
    assert summary["levels"] == {"identity": 0, "conversation": 0, "content": len(CALLS)}
    assert summary["unplayed"] == 0


def test_the_models_of_a_server_that_is_gone(tape, engine):
    live, again, _ = both(tape, engine, models)
    assert again == live


def test_a_stream_is_equal_byte_by_byte(tape, engine):
    body = {"messages": SKY, "stream": True, "stream_options": {"include_usage": True}, **SHORT}

    def raw(server) -> bytes:
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=120) as got:
            assert got.headers["content-type"].startswith("text/event-stream")
            return b"".join(got.iter_raw())

    live, again, _ = both(tape, engine, raw)
    assert live.endswith(b"data: [DONE]\n\n")
    assert again == live


def asked_at_once(server, sessions: bool) -> list[list[str]]:
    """Eight prompts, four times each, all at the same time."""

    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as sdk:

            async def one(number: int, of: int) -> str:
                named = {"extra_headers": {"X-Session-ID": f"{number}_{of}"}} if sessions else {}
                said = [{"role": "user", "content": f"Tell me about the number {number}."}]
                asked = SHORT | {"max_tokens": 4}
                got = await sdk.chat.completions.create(messages=said, timeout=300, **asked, **named)
                return got.to_json()

            return await asyncio.gather(*(one(number, of) for number in range(8) for of in range(4)))

    answers = asyncio.run(ask())
    return [answers[at : at + 4] for at in range(0, 32, 4)]


def test_32_at_once_with_sessions_are_exact(tape, engine):
    live, again, summary = both(tape, engine, lambda server: asked_at_once(server, sessions=True))
    assert again == live
    assert summary["levels"] == {"identity": 32, "conversation": 0, "content": 0}


def test_32_at_once_without_sessions_are_equal_as_groups(tape, engine):
    """Nothing tells the four of a group apart; the report says so."""
    live, again, summary = both(tape, engine, lambda server: asked_at_once(server, sessions=False))
    assert [Counter(group) for group in again] == [Counter(group) for group in live]
    assert summary["levels"] == {"identity": 0, "conversation": 0, "content": 32}


def test_a_failure_and_the_retry_after_it_are_both_repeated(tape, engine):
    proxy = Proxy(engine.url)
    busy = (
        503,
        {"content-type": "application/json", "retry-after-ms": "1"},
        '{"error": {"message": "busy"}}',
    )
    proxy.fault = lambda number, path, body: busy if number == 0 else None
    try:
        with serving(tape, "record", upstream=proxy.url) as server:
            live = client(server).with_options(max_retries=2).chat.completions.create(messages=SKY, **SHORT)
    finally:
        proxy.close()
    assert server.summary["calls"]["recorded"] == 2
    with replaying(tape, engine) as server:
        sdk = client(server).with_options(max_retries=2)
        again = sdk.chat.completions.create(messages=SKY, **SHORT)
    assert again == live
    assert server.summary["calls"]["replayed"] == 2


def test_a_retry_takes_no_second_answer(tape, engine):
    """An equal body is the next of its group, unless the SDK says that it asks again."""

    def ask(server, retry: int) -> bytes:
        headers = {"x-stainless-retry-count": str(retry)}
        body = {"messages": SKY, **SHORT, "temperature": 2.0}
        got = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
        assert got.status_code == 200, got.text
        return got.content

    with recording(tape, engine) as server:
        first, second = (ask(server, 0) for _ in range(2))
    assert first != second
    with replaying(tape, engine) as server:
        assert [ask(server, retry) for retry in (0, 1, 2, 0, 1)] == [first, first, first, second, second]
    assert server.summary["calls"]["retried"] == 3
    assert server.summary["calls"]["replayed"] == 2


def test_a_miss_is_an_error_that_the_sdk_does_not_repeat(tape, engine):
    with recording(tape, engine) as server:
        chat(server)
    asked = [{"role": "user", "content": "Why is the sky red?"}]
    with replaying(tape, engine, missed=1) as server:
        with pytest.raises(openai.UnprocessableEntityError, match="sky") as caught:
            client(server).with_options(max_retries=5).chat.completions.create(messages=asked, **SHORT)
        assert server.status()["calls"]["asked"] == 1
    assert caught.value.response.json()["rolltape"]["nearest"]


def test_another_temperature_is_refused(tape, engine):
    with recording(tape, engine) as server:
        chat(server)
    with replaying(tape, engine, missed=1) as server:
        with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
            client(server).chat.completions.create(messages=SKY, **SHORT | {"temperature": 0.5})
        assert chat(server)


def test_what_was_interrupted_goes_on(tape, engine):
    """`auto`: what is on the tape comes from there, the rest from the engine, and all is on the tape then."""
    with recording(tape, engine) as server:
        first = chat(server)
    with serving(tape, "auto", upstream=engine.url) as server:
        assert chat(server) == first
        second = completion(server)
    assert server.summary["calls"]["replayed"] == 1
    assert server.summary["calls"]["live"] == 1
    assert server.summary["upstream"]["calls"] == 1
    with replaying(tape, engine) as server:
        assert [chat(server), completion(server)] == [first, second]


def test_no_key_is_on_the_tape(tape, engine):
    with recording(tape, engine) as server:
        OpenAI(
            base_url=f"{server.url}/v1", api_key="sk-very-secret", organization="org-secret",
            default_headers={"Cookie": "id=secret-cookie", "X-Api-Key": "key-secret"},
        ).chat.completions.create(messages=SKY, **SHORT)  # fmt: skip
    written = b"".join(path.read_bytes() for path in tape.rglob("*") if path.is_file())
    for secret in (b"sk-very-secret", b"secret-cookie", b"key-secret"):
        assert secret not in written
