"""The `anthropic` SDK, on the messages API that llama.cpp's server speaks too."""

import anthropic
import pytest
from anthropic import Anthropic

from tests.clients.serving import recording, replaying

ASKED = {"model": "smollm2", "max_tokens": 8, "system": "Be short.", "extra_body": {"temperature": 1.0}}
TURN = {"role": "user", "content": "Why is the sky blue?"}


def client(server) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="secret", max_retries=0)


def talk(server) -> list[str]:
    """Two turns of a conversation, then a stream."""
    sdk = client(server)
    first = sdk.messages.create(messages=[TURN], **ASKED)
    said = [TURN, {"role": "assistant", "content": first.content[0].text}]
    second = sdk.messages.create(messages=[*said, {"role": "user", "content": "And red?"}], **ASKED)
    with sdk.messages.stream(messages=[TURN], **ASKED) as stream:
        events = [event.to_json() for event in stream]
    return [first.to_json(), second.to_json(), *events]


def test_a_conversation_and_a_stream(tape, engine):
    with recording(tape, engine) as server:
        live = talk(server)
    with replaying(tape, engine) as server:
        assert talk(server) == live
    assert server.summary["calls"]["replayed"] == 3


def test_a_miss_has_the_form_of_this_api(tape, engine):
    with recording(tape, engine) as server:
        client(server).messages.create(messages=[TURN], **ASKED)
    with replaying(tape, engine, missed=1) as server:
        sdk = client(server).with_options(max_retries=5)
        with pytest.raises(anthropic.UnprocessableEntityError) as caught:
            sdk.messages.create(messages=[{"role": "user", "content": "Why is the sky red?"}], **ASKED)
    body = caught.value.response.json()
    assert body["type"] == "error"
    assert "sky" in body["error"]["message"]
    assert body["rolltape"]["nearest"]
