"""An engine on a tape goes on where a killed run was: what had finished is not sampled again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rolltape
from rolltape.engines import Prompt, SamplingParams, TransformersEngine
from rolltape.engines.api.finishing import listening
from rolltape.errors import EngineError, GenerationError, MismatchError
from rolltape.storage import storage_at
from rolltape.tape.open_samples import open_calls
from rolltape.tape.open_step import OpenStep
from tests.engines.test_rollout import same

PROMPTS = ["A", "The quick brown", Prompt(text="One and one", uid="mine"), [40, 41, 42]]
PARAMS = SamplingParams(n=3, max_tokens=12, seed=1, top_logprobs=2)

KILLED = """
import os, signal, sys, time
import rolltape
from rolltape.engines import TransformersEngine
from rolltape.tape.open_step import OpenStep
from tests.engines.test_resuming import PARAMS, PROMPTS

kept, keep = [], OpenStep.keep

def counted(self, *args, **options):
    keep(self, *args, **options)
    kept.append(args[0])
    if len(kept) == 5:
        time.sleep(2)  # what has finished a second ago is on the tape
        os.kill(os.getpid(), signal.SIGKILL)

OpenStep.keep = counted
with rolltape.Tape(sys.argv[1], mode="auto") as tape, tape.step(7):
    tape.engine(TransformersEngine(sys.argv[2])).generate(PROMPTS, PARAMS)
"""


class Interrupted(BaseException):
    pass


@pytest.fixture
def stopping(monkeypatch):
    """Ends what runs after so many samples were kept."""
    keep, kept = OpenStep.keep, []

    def stop(after):
        def counted(self, *args, **options):
            keep(self, *args, **options)
            kept.append(args[0])
            if len(kept) == after:
                raise Interrupted

        monkeypatch.setattr(OpenStep, "keep", counted)

    return stop


class Counting:
    """What an engine is asked for."""

    def __init__(self, engine, monkeypatch):
        self.asked, complete = [], engine._complete

        def counted(prompts, params):
            self.asked += [(prompt.uid, prompt.first + at) for prompt in prompts for at in range(params.n)]
            return complete(prompts, params)

        monkeypatch.setattr(engine, "_complete", counted)


def near(found, wanted, exact):
    """The same tokens everywhere; where a sample was not made again, the same bits too."""
    assert [ids.tolist() for ids in found.response_ids] == [ids.tolist() for ids in wanted.response_ids]
    for name in ("prompts", "texts", "finish_reasons", "sampling", "engine", "engine_version", "uid"):
        assert getattr(found, name) == getattr(wanted, name)
    assert found.index.tolist() == wanted.index.tolist()
    for row in range(len(wanted)):
        if row in exact:
            assert found.logprobs[row].tobytes() == wanted.logprobs[row].tobytes()
            assert found.top_logprobs[row].tobytes() == wanted.top_logprobs[row].tobytes()
        np.testing.assert_allclose(found.logprobs[row], wanted.logprobs[row], atol=1e-5)


def told_is_made(engine, prompts, params):
    """A rollout, after checking that each of its completions was told by itself."""
    told = []

    def hear(position, first, rows):
        told.extend((position, first + at, row.response_ids.tolist()) for at, row in enumerate(rows))

    with listening(hear):
        rollout = engine.generate(prompts, params)
    made = zip(rollout.group.tolist(), rollout.index.tolist(), rollout.response_ids, strict=True)
    assert sorted(told) == sorted((group, index, ids.tolist()) for group, index, ids in made)


def test_killed_for_real(tmp_path, tiny, tiny_path, monkeypatch):
    path = os.pathsep.join([str(Path(rolltape.__file__).parents[1]), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "tape", tiny_path], env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == -signal.SIGKILL
    (call,) = open_calls(storage_at(tmp_path / "tape"))
    assert (call.step, call.samples) == (7, 5)
    wanted = tiny.generate(PROMPTS, PARAMS)
    counting = Counting(tiny, monkeypatch)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        taped = tape.engine(tiny)
        with tape.step(7):
            found = taped.generate(PROMPTS, PARAMS)
    assert len(counting.asked) == len(set(counting.asked)) == 12 - 5
    assert tape.summary().resumed == ((7, 5, 12),)
    rows = [*zip(wanted.uid, wanted.index.tolist(), strict=True)]
    near(found, wanted, [at for at, row in enumerate(rows) if row not in counting.asked])
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape, tape.step(7):
        same(tape.engine(lambda: pytest.fail("started")).generate(PROMPTS, PARAMS), found)
    assert open_calls(storage_at(tmp_path / "tape")) == []


def interrupted(path, engine, stopping, after, **options):
    stopping(after)
    with rolltape.Tape(path, mode="auto") as tape:
        taped = tape.engine(engine, **options)
        with pytest.raises(Interrupted), tape.step(0):
            taped.generate(PROMPTS, PARAMS)
    stopping(None)


@pytest.mark.parametrize("options", [{}, {"by": "prompt"}])
def test_all_had_finished(tmp_path, tiny, stopping, monkeypatch, options):
    wanted = tiny.generate(PROMPTS, PARAMS)
    interrupted(tmp_path / "tape", tiny, stopping, 12, **options)
    counting = Counting(tiny, monkeypatch)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        taped = tape.engine(tiny, **options)
        with tape.step(0):
            same(taped.generate(PROMPTS, PARAMS), wanted)
    assert counting.asked == []


def test_other_weights_or_sampling_are_refused(tmp_path, tiny, tiny_path, stopping):
    interrupted(tmp_path / "tape", tiny, stopping, 4)
    other = TransformersEngine(tiny_path, weights_version=1)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        taped = tape.engine(other)
        with tape.step(0), pytest.raises(MismatchError, match="weights version 0, now 1"):
            taped.generate(PROMPTS, PARAMS)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        taped = tape.engine(tiny)
        with tape.step(0), pytest.raises(MismatchError, match=r"seed.* = 1, now 2"):
            taped.generate(PROMPTS, SamplingParams(n=3, max_tokens=12, seed=2, top_logprobs=2))


def test_a_prompt_that_fails_keeps_the_others(tmp_path, tiny, monkeypatch):
    """The error has all that is there, of both runs; the next run asks for the rest."""
    complete, failing = tiny._complete, [True]

    def fails(prompts, params):
        answers = list(complete(prompts, params))
        return [EngineError("broken"), *answers[1:]] if failing[0] else answers

    monkeypatch.setattr(tiny, "_complete", fails)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        taped = tape.engine(tiny)
        with tape.step(0), pytest.raises(GenerationError) as error:
            taped.generate(PROMPTS, PARAMS)
        assert len(error.value.rollout) == 9
        failing[0] = False
        wanted = tiny.generate(PROMPTS, PARAMS)
        with tape.step(0):
            near(taped.generate(PROMPTS, PARAMS), wanted, [])
    assert tape.summary().resumed == ((0, 12, 12),), "its rows had ended, and the answer was lost later"


def test_every_completion_is_told_once(tiny):
    told_is_made(tiny, PROMPTS, PARAMS)
