"""The control plane is passed on and recorded, and answered from the tape where there is no engine."""

from __future__ import annotations

import json

import rolltape
from tests.serve.engine import Engine, Plan, ask, chat, rows


def train(url: str, steps: int, updates: int = 3) -> list[str]:
    """A trainer: a call, then the weights parameter by parameter, step by step."""
    said = []
    for step in range(steps):
        said.append(ask(url, chat("same question")).text)
        ask(url, {}, path="/pause")
        for parameter in range(updates):
            path = "/update_weights_from_disk"
            assert ask(url, {"path": f"/weights/{step}/{parameter}"}, path=path).status == 200
        ask(url, {}, path="/resume")
    return said


def test_weight_updates_begin_steps(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        said = train(server.url, 3)
        assert server.summary()["step"] == 3
    assert [row["step"] for row in rows(tmp_path / "tape")] == [0, 1, 2]
    assert len(rows(tmp_path / "tape", "control")) == 3 * 5
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        assert train(server.url, 3) == said
    summary = server.summary()
    assert summary["calls"]["missed"] == summary["unplayed"] == summary["upstream"]["calls"] == 0
    assert summary["levels"]["control"] == 15


def test_an_update_before_the_first_call_begins_nothing(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        ask(server.url, {}, path="/update_weights")
        ask(server.url, chat("x"))
        assert server.summary()["step"] == 0


def test_an_update_that_failed_changes_nothing(tmp_path):
    with (
        Engine(lambda seen: Plan(status=500 if "update" in seen.path else 200)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        ask(server.url, chat("x"))
        assert ask(server.url, {}, path="/update_weights").status == 500
        assert server.summary()["step"] == 0


def test_a_version_that_an_update_names_is_the_version_of_the_calls_after_it(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record", step=0) as server:
        for version in ("v1", "v2"):
            ask(server.url, {"weight_version": version}, path="/update_weights_from_disk")
            ask(server.url, chat("same"))
    assert [row["weights"] for row in rows(tmp_path / "tape")] == ["v1", "v2"]
    with rolltape.serve(tmp_path / "tape", mode="replay", step=0) as server:
        ask(server.url, {"weight_version": "v3"}, path="/update_weights_from_disk")
        assert ask(server.url, chat("same")).json["rolltape"]["kind"] == "weights"


def test_steps_are_said_by_a_request_a_header_and_a_path(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        assert ask(server.url, {"step": 3}, path="/rolltape/step").json == {"step": 3}
        ask(server.url, chat("x"))
        ask(server.url, chat("x"), X_Rolltape_Step="5")
        ask(server.url, chat("x"), path="/r/step/7/s/v1/chat/completions")
        server.step(9)
        ask(server.url, chat("x"))
    assert [row["step"] for row in rows(tmp_path / "tape")] == [3, 5, 7, 9]


def test_models_and_health_are_answered_as_recorded_or_of_what_is_known(tmp_path):
    models = json.dumps({"data": [{"id": "real"}]}).encode()
    with Engine(lambda seen: Plan(body=models) if "models" in seen.path else Plan()) as engine:
        with rolltape.serve(tmp_path / "asked", engine.url, mode="record") as server:
            for _ in range(5):
                assert ask(server.url, path="/v1/models", method="GET").body == models
            ask(server.url, chat("x", model="called"))
        with rolltape.serve(tmp_path / "not asked", engine.url, mode="record") as server:
            ask(server.url, chat("x", model="called"))
    assert len(rows(tmp_path / "asked", "control")) == 1  # asked for all the time, and written down once
    with rolltape.serve(tmp_path / "asked", mode="replay") as server:
        for _ in range(9):
            assert ask(server.url, path="/v1/models", method="GET").body == models
    with rolltape.serve(tmp_path / "not asked", mode="replay") as server:
        found = ask(server.url, path="/v1/models", method="GET").json
        assert [model["id"] for model in found["data"]] == ["called"]
        assert ask(server.url, path="/health", method="GET").status == 200
        assert ask(server.url, path="/flush_cache").status == 422


def test_engines_that_are_alive_are_spoken_to(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        said = train(server.url, 2)
    with Engine() as engine:
        with rolltape.serve(tmp_path / "tape", engine.url, mode="replay", engines="alive") as server:
            assert train(server.url, 2) == said
        assert engine.calls() == []
        assert len(engine.calls("/update_weights_from_disk")) == 6


def test_everything_else_is_passed_through(tmp_path):
    with Engine() as engine, rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server:
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            answer = ask(server.url, b"\x00\xff", path="/any/thing?a=%20b&c", method=method)
            assert answer.status == 200
            assert answer.json["path"] == "/any/thing"
        assert {seen.method for seen in engine.seen} == {"GET", "POST", "PUT", "DELETE", "PATCH"}
        assert all(seen.body == b"\x00\xff" for seen in engine.seen)
