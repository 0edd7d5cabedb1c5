"""Rolltape's own OpenAIEngine, with the server between it and llama.cpp's."""

import numpy as np
import pytest

from rolltape.engines import OpenAIEngine, SamplingParams
from rolltape.errors import RolltapeError
from tests.clients.serving import recording, replaying

CHAT = [{"role": "user", "content": "What is 2+2?"}]


def generate(server, **params):
    with OpenAIEngine(server.url) as made:
        return made.generate([CHAT, "The sky is"], SamplingParams(n=2, max_tokens=6, **params))


def test_a_rollout_with_a_seed_is_equal_in_every_column(tape, engine):
    """Each completion is asked for with a seed of its own, which tells them apart."""
    with recording(tape, engine) as server:
        live = generate(server, seed=7)
    with replaying(tape, engine) as server:
        again = generate(server, seed=7)
    assert again.texts == live.texts
    assert again.finish_reasons == live.finish_reasons
    assert again.engine_version == live.engine_version
    for name in ("prompt_ids", "response_ids", "logprobs"):
        for mine, theirs in zip(getattr(again, name), getattr(live, name), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_rollout_without_a_seed_is_equal_group_by_group(tape, engine):
    """Equal requests at the same time: nothing says which of them got which answer."""

    def groups(rollout) -> list[list]:
        rows = list(zip(rollout.texts, map(np.ndarray.tolist, rollout.logprobs), strict=True))
        return [sorted(rows[:2]), sorted(rows[2:])]

    with recording(tape, engine) as server:
        live = groups(generate(server))
    with replaying(tape, engine) as server:
        assert groups(generate(server)) == live
    assert server.summary["levels"]["identity"] == 0


def test_another_temperature_is_an_error_that_says_so(tape, engine):
    with recording(tape, engine) as server, OpenAIEngine(server.url) as made:
        made.generate(["The sky is"], SamplingParams(max_tokens=4, seed=3))
    with (
        replaying(tape, engine, missed=1) as server,
        OpenAIEngine(server.url) as made,
        pytest.raises(RolltapeError, match="temperature"),
    ):
        made.generate(["The sky is"], SamplingParams(max_tokens=4, seed=3, temperature=0.5))
