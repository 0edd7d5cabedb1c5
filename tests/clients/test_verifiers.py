"""A whole evaluation of verifiers: live through the server, then from the tape with no engine."""

import asyncio
import hashlib
import sys
from collections import Counter
from pathlib import Path

import pytest
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes import subprocess as runtime

from tests.clients.serving import recording, replaying


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    """Its files stay here; the program of the harness `null` runs on this Python, which has its packages."""
    monkeypatch.setattr(runtime, "CACHE_DIR", tmp_path)
    monkeypatch.setattr(runtime.SubprocessRuntime, "scripts_dir", str(tmp_path))
    program = tmp_path / f"{hashlib.sha256(CHAT_PROGRAM_SOURCE.encode()).hexdigest()}.py"
    program.write_text(CHAT_PROGRAM_SOURCE)
    monkeypatch.setattr(runtime.SubprocessRuntime, "_interpreters", {str(program): sys.executable})
    monkeypatch.syspath_prepend(str(Path(__file__).parent))  # where it finds the taskset


def evaluate(server, into: Path, harness: str) -> Counter:
    """The episodes of an evaluation, each with all that was said and how it was scored."""
    config = EvalConfig.model_validate(
        {
            "env": {
                "taskset": {"id": "sums-taskset"},
                "agent": {"harness": {"id": harness}, "runtime": {"type": "subprocess"}},
            },
            "model": "smollm2",
            "client": {"base_url": f"{server.url}/v1", "api_key_var": "NO_KEY"},
            "sampling": {"temperature": 1.0, "max_tokens": 12},
            "num_rollouts": 3,
            "push": False,
            "rich": None,
            "output_dir": into,
        }
    )
    episodes = asyncio.run(run_eval(config))
    assert len(episodes) == 6
    assert [trace.errors for episode in episodes for trace in episode.traces] == [[]] * 6
    return Counter(seen(trace) for episode in episodes for trace in episode.traces)


def seen(trace) -> tuple:
    said = tuple((message.role, message.content) for message in trace.messages)
    scores = {name: reward.value for name, reward in trace.rewards.items()} | trace.metrics
    return trace.task.data.idx, said, tuple(sorted(scores.items())), str(trace.usage)


@pytest.mark.parametrize(("harness", "turns"), [("sums-taskset", 2), ("null", 1)])
def test_an_evaluation_is_the_same_without_an_engine(tape, engine, tmp_path, harness, turns):
    """Its sessions have other ids in every run: episodes are equal as a set, each of them as a whole."""
    with recording(tape, engine) as server:
        live = evaluate(server, tmp_path / "live", harness)
    assert server.summary["calls"]["recorded"] == 6 * turns
    with replaying(tape, engine) as server:
        again = evaluate(server, tmp_path / "again", harness)
    assert again == live
    assert server.summary["calls"]["replayed"] == 6 * turns
    assert server.summary["levels"] == {"identity": 0, "conversation": 6 * (turns - 1), "content": 6}
    assert server.summary["unplayed"] == 0
