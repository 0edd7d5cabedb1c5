"""rLLM's model gateway, which its agents go through: before the server, as a trainer has it, and behind."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI
from rllm_model_gateway.client import GatewayClient

from tests.clients.serving import recording, replaying
from tests.engines.servers import Process, free_port

TASKS = ["sky:0", "sky:1", "sea:0", "sea:1"]


@pytest.fixture
def gateway():
    """Starts a gateway in front of an address."""
    started = []

    def start(worker: str) -> Process:
        port = free_port()
        command = [sys.executable, "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(port)]
        started.append(Process([*command, "--worker", f"{worker}/v1", "--store", "memory"], port))
        return started[-1].start().wait()

    yield start
    for one in started:
        one.kill()


def converse(base_url: str, task: str) -> list[str]:
    """Two turns of a rollout; those of one task begin alike."""
    sdk = OpenAI(base_url=base_url, api_key="x", max_retries=0)
    asked = {"model": "smollm2", "temperature": 1.0, "max_tokens": 8}
    said = [{"role": "user", "content": f"Why is the {task.partition(':')[0]} blue?"}]
    answers = []
    for doubt in ("Are you sure?", ""):
        answers.append(sdk.chat.completions.create(messages=said, **asked).choices[0].message.content)
        said += [{"role": "assistant", "content": answers[-1]}, {"role": "user", "content": doubt}]
    return answers


def through_the_gateway(url: str) -> list:
    """All rollouts, one after the other, with what the gateway keeps of each for the trainer."""
    found = []
    with GatewayClient(url) as trainer:
        for task in TASKS:
            trainer.create_session(session_id=task)
            answers = converse(trainer.get_session_url(task), task)
            traces = trainer.get_session_traces(task)
            kept = [(one.messages, one.response_message, one.logprobs, one.finish_reason) for one in traces]
            assert len(kept) == 2
            found.append((answers, kept))
    return found


def test_a_trainer_with_its_gateway_before_the_server(tape, engine, gateway):
    """The gateway tells its workers nothing of sessions; rollouts are known by what was said in them."""
    with recording(tape, engine) as server:
        live = through_the_gateway(gateway(server.url).url)
    with replaying(tape, engine) as server:
        assert through_the_gateway(gateway(server.url).url) == live
    assert server.summary["levels"] == {"identity": 0, "conversation": 4, "content": 4}


def test_the_gateway_behind_the_server(tape, engine, gateway):
    """The path that agents of rLLM use says which rollout it is, so that all of them at once are exact."""

    def all_at_once(server) -> list[list[str]]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda task: converse(f"{server.url}/sessions/{task}/v1", task), TASKS))

    behind = gateway(engine.url)
    with recording(tape, behind) as server:
        live = all_at_once(server)
    with replaying(tape, behind) as server:
        assert all_at_once(server) == live
    assert server.summary["levels"] == {"identity": 8, "conversation": 0, "content": 0}
