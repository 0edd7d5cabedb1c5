"""Questions to the control plane are answered as the engine was then, however often they are asked."""

import json
import threading

import httpx

import rolltape
from tests.serve.engine import Engine, Plan, ask, chat, until


def train(url: str, questions: int) -> list[str]:
    """Two updates of the weights; what the server says of them after each, and before the first."""
    told = []
    for version in (None, "0", "1"):
        if version is not None:
            httpx.post(f"{url}/update_weight_version", json={"new_version": version}).raise_for_status()
        for _ in range(questions):
            told.append(httpx.get(f"{url}/weight_info").json()["weight_version"])
    return told


def test_the_version_of_the_weights_is_that_of_the_moment(tmp_path):
    state = {"weight_version": "none"}

    def answer(seen):
        if seen.method == "POST":
            state["weight_version"] = seen.json["new_version"]
        return Plan(body=json.dumps(state).encode())

    with Engine(answer) as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        assert train(server.url, 3) == ["none"] * 3 + ["0"] * 3 + ["1"] * 3
    for questions in (1, 5):
        with rolltape.serve(tmp_path / "tape", mode="replay") as server:
            told = train(server.url, questions)
        assert told == ["none"] * questions + ["0"] * questions + ["1"] * questions


def poll(url: str, until: bool) -> int:
    """Ask until it is so; how often that took, at most a hundred times."""
    for asked in range(1, 101):
        if httpx.get(f"{url}/is_paused").json()["is_paused"] is until:
            return asked
    raise AssertionError(f"never {until}")


def test_who_waits_for_a_state_gets_there_in_a_replay_too(tmp_path):
    """An engine takes its time to pause: what it says changes although nothing more is asked of it."""
    asked = []

    def answer(seen):
        asked.append(seen.path)
        return Plan(body=json.dumps({"is_paused": len(asked) > 4}).encode())

    with Engine(answer) as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        httpx.post(f"{server.url}/pause").raise_for_status()
        assert poll(server.url, True) == 4
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        httpx.post(f"{server.url}/pause").raise_for_status()
        assert poll(server.url, True) <= 4
    found = list(rolltape.open(tmp_path / "tape").samples(0, "control"))
    assert len(found) == 3, "a pause, and two answers that differ"


def test_the_status_has_the_calls_in_flight(tmp_path):
    go_on = threading.Event()

    def answer(seen):
        assert go_on.wait(60)
        return Plan()

    with Engine(answer) as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        status = lambda: httpx.get(f"{server.url}/rolltape/status").json()["in_flight"]  # noqa: E731
        assert status() == {"calls": 0, "oldest": []}
        caller = threading.Thread(
            target=ask, args=(server.url, chat("slow")), kwargs={"x-rolltape-step": "7", "x-session-id": "s"}
        )
        caller.start()
        until(lambda: engine.seen)
        found = status()
        assert found["calls"] == 1
        assert found["oldest"][0].pop("seconds") >= 0
        assert found["oldest"] == [{"path": "/v1/chat/completions", "session": "s", "step": 7}]
        go_on.set()
        caller.join()
        until(lambda: status()["calls"] == 0)
