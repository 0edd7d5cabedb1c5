"""Rolltape's own OpenAIEngine, with the server between it and llama.cpp's."""

import numpy as np
import pytest

from rolltape.engines import OpenAIEngine, SamplingParams
from rolltape.errors import RolltapeError
from tests.serve.serving import recording, replaying

CHAT = [{"role": "user", "content": "What is 2+2?"}]


def generate(server):
    with OpenAIEngine(server.url) as made:
        return made.generate([CHAT, "The sky is"], SamplingParams(n=2, max_tokens=6))


def test_a_rollout_is_equal_in_every_column(tape, engine):
    with recording(tape, engine) as server:
        live = generate(server)
    with replaying(tape, engine) as server:
        again = generate(server)
    assert again.texts == live.texts
    assert again.finish_reasons == live.finish_reasons
    assert again.engine_version == live.engine_version
    for name in ("prompt_ids", "response_ids", "logprobs"):
        for mine, theirs in zip(getattr(again, name), getattr(live, name), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_another_temperature_is_an_error_that_says_so(tape, engine):
    with recording(tape, engine) as server, OpenAIEngine(server.url) as made:
        made.generate(["The sky is"], SamplingParams(max_tokens=4, seed=3))
    with (
        replaying(tape, engine, missed=1) as server,
        OpenAIEngine(server.url) as made,
        pytest.raises(RolltapeError, match="temperature"),
    ):
        made.generate(["The sky is"], SamplingParams(max_tokens=4, seed=3, temperature=0.5))
