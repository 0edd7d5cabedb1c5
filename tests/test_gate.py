"""Gates: what opens them, what shuts them, and what the pipeline is told."""

from __future__ import annotations

import json
from xml.etree import ElementTree as xml

import numpy as np
import pytest

import rolltape
from rolltape.reader.acceptances import acceptances
from rolltape.storage import LocalStorage
from rolltape.verify.rules.gate import parse
from tests.cli_tapes import in_process, run


def write(path, factor=1.0, norm=2.0, seconds=3.0, steps=2, metrics=True):
    with rolltape.Tape(path, mode="record", background=False) as tape:
        loss = tape.stage("loss")(lambda value: value)
        rollout = tape.stage("rollout")(lambda value: value)
        for step in range(steps):
            with tape.step(step):
                rollout({"uid": ["a", "b"], "response_ids": np.arange(6).reshape(2, 3)})
                values = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3) * np.float32(factor)
                loss({"uid": ["a", "b"], "log_probs": values})
                tape.log({"grad_norm": norm, "time/step": seconds} if metrics else {"time/step": seconds})
    return path


@pytest.fixture
def base(tmp_path):
    return write(tmp_path / "base")


def gated(base, gate, *more, **candidate):
    new = write(base.parent / f"new{len(list(base.parent.iterdir()))}", **candidate)
    file = base.parent / "gate.json"
    file.write_text(json.dumps(gate))
    return run("diff", base, new, "--gate", file, *more)


STEP = float(np.float32(1 + 2**-22))
"""Two steps above one."""
CASES = {
    "bitwise and the same": ({"rules": [{"match": "*", "bitwise": True}]}, {}, 0),
    "bitwise and a step off": ({"rules": [{"match": "loss/*", "bitwise": True}]}, {"factor": STEP}, 1),
    "usual limits": ({}, {"factor": STEP}, 0),
    "few steps": ({"rules": [{"match": "loss/log_probs", "ulp": 4}]}, {"factor": STEP}, 0),
    "too few steps": ({"rules": [{"match": "loss/log_probs", "ulp": 0}]}, {"factor": STEP}, 1),
    "tolerance": ({"rules": [{"match": "loss/*", "rtol": 0.1}]}, {"factor": 1.05}, 0),
    "tolerance as a text": ({"rules": [{"match": "loss/*", "rtol": "1e-1"}]}, {"factor": 1.05}, 0),
    "absolute tolerance": ({"rules": [{"match": "metrics/grad_norm", "atol": 0.5}]}, {"norm": 2.4}, 0),
    "beyond tolerance": ({"rules": [{"match": "loss/*", "rtol": 0.01}]}, {"factor": 1.05}, 1),
    "the first rule decides": (
        {"rules": [{"match": "loss/*", "rtol": 0.1}, {"match": "*", "bitwise": True}]}, {"factor": 1.05}, 0,
    ),
    "allowed": ({"rules": [{"match": "metrics/time/*", "allow": True}]}, {"seconds": 9.0}, 0),
    "times are not judged": ({}, {"seconds": 9.0}, 0),
    "times that a rule names are": ({"rules": [{"match": "metrics/time/*", "rtol": 1}]}, {"seconds": 9.0}, 1),
    "a rule for nothing": ({"rules": [{"match": "loss/log_prob", "ulp": 4}]}, {}, 1),
    "a rule for nothing that allows": ({"rules": [{"match": "metric/*", "allow": True}]}, {}, 1),
    "allowed to be missing": (
        {"rules": [{"match": "metrics/grad_norm", "allow": True}]}, {"metrics": False}, 0,
    ),
    "missing": ({}, {"metrics": False}, 1),
    "required and there": ({"require": ["metrics/grad_norm", "loss/*"]}, {}, 0),
    "required and nowhere": ({"require": ["metrics/entropy"]}, {}, 1),
    "required and missing in the candidate": (
        {"require": ["metrics/grad_norm"], "rules": [{"match": "metrics/*", "allow": True}]},
        {"metrics": False}, 1,
    ),
    "a step missing": ({"rules": [{"match": "loss/*", "rtol": 1}]}, {"steps": 1}, 1),
    "inputs the same": ({"inputs": ["rollout", "environment"]}, {}, 0),
    "inputs unknown": ({"inputs": ["configuration"]}, {}, 1),
    "inputs nobody knows": ({"inputs": ["weather"]}, {}, 1),
    "not finite": ({"rules": [{"match": "*", "rtol": 1e9, "atol": 1e9}]}, {"norm": float("nan")}, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_gate_opens_or_stays_shut(base, name):
    gate, candidate, code = CASES[name]
    done = gated(base, gate, **candidate)
    assert done.exit_code == code, done.output
    assert ("The gate stays shut" in done.stdout) == bool(code)


def test_a_minus_zero_is_not_bitwise(tmp_path):
    a, b = write(tmp_path / "a", norm=0.0), write(tmp_path / "b", norm=-0.0)
    file = tmp_path / "gate.json"
    file.write_text(json.dumps({"rules": [{"match": "*", "bitwise": True}]}))
    assert run("diff", a, b, "--gate", file).exit_code == 1


REFUSED = {
    "a gate has no limits": {"limits": []},
    "rule 1 has no match": {"rules": [{"ulp": 3}]},
    "rule 1 \\(x\\) has no limit": {"rules": [{"match": "x"}]},
    "rule 1 has no limit upl": {"rules": [{"match": "x", "upl": 3}]},
    "ulp is a whole number": {"rules": [{"match": "x", "ulp": 1.5}]},
    "a limit is a number from 0": {"rules": [{"match": "x", "rtol": -1}]},
    "could not convert": {"rules": [{"match": "x", "rtol": "much"}]},
    "bitwise leaves no room": {"rules": [{"match": "x", "bitwise": True, "ulp": 1}]},
    "bitwise is true, or left out": {"rules": [{"match": "x", "bitwise": False}]},
    "require is a list": {"require": "loss"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_gate_that_says_nothing_sensible_is_refused(message):
    with pytest.raises(rolltape.ConfigError, match=message):
        parse(REFUSED[message])


def test_a_floor_that_was_not_measured_is_an_error(base):
    done = gated(base, {"rules": [{"match": "metrics/*", "floor": 3}]})
    assert done.exit_code == 2
    assert "rolltape noise" in done.stderr


def test_shadow_reports_and_lets_pass(base):
    done = gated(base, {}, "--shadow", norm=9.0)
    assert done.exit_code == 0
    assert "First divergence" in done.stdout
    assert "exit code 0 instead of 1" in done.stderr


def test_junit_has_a_case_for_each_thing(base):
    file = base.parent / "out.xml"
    gated(base, {"require": ["metrics/entropy"]}, "--junit", file, norm=9.0)
    suite = xml.parse(file).getroot()
    cases = {case.get("name"): case.find("failure") for case in suite}
    assert (suite.get("tests"), suite.get("failures")) == (str(len(cases)), "2")
    failed = {name for name, failure in cases.items() if failure is not None}
    assert failed == {"metrics/grad_norm", "metrics/entropy"}
    assert "9 instead of 2" in cases["metrics/grad_norm"].get("message")
    assert cases["loss/log_probs"] is None


def test_github_gets_annotations_and_a_summary(base, monkeypatch):
    summary = base.parent / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    done = gated(base, {}, "--github", norm=9.0)
    errors = [line for line in done.stdout.splitlines() if line.startswith("::error title=rolltape::")]
    assert errors[0].startswith("::error title=rolltape::First divergence: step 0, metric `grad_norm`")
    assert "| metrics | grad_norm | diverged | 0 | 7 |" in summary.read_text()
    done = gated(base, {}, "--github", "--shadow", norm=9.0)
    assert "::warning title=rolltape::" in done.stdout
    assert "::notice title=rolltape::No divergence" in gated(base, {}, "--github").stdout


def test_what_a_tape_says_cannot_become_a_workflow_command(tmp_path, monkeypatch):
    evil = "x\n::set-output name=a::b<img src=x>|"
    for name, value in (("a", 1.0), ("b", 2.0)):
        with rolltape.Tape(tmp_path / name, mode="record") as tape, tape.step(0):
            tape.log({evil: value})
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    done = run("diff", tmp_path / "a", tmp_path / "b", "--github", "--junit", tmp_path / "out.xml")
    assert not [line for line in done.stdout.splitlines() if line.startswith("::set-output")]
    assert "<img" not in (tmp_path / "summary.md").read_text()
    assert xml.parse(tmp_path / "out.xml").getroot()[0].get("name")


def test_accepting_makes_the_candidate_the_baseline(tmp_path):
    base = tmp_path / "base"
    write(base)

    def replay(out, factor):
        with rolltape.Tape(base, mode="replay", out=out) as tape:
            rollout = tape.stage("rollout", inputs=False)(lambda value: value)
            scaled = lambda batch: {"uid": ["a", "b"], "log_probs": batch["response_ids"] * factor}  # noqa: E731
            loss = tape.stage("loss", replay=False)(scaled)
            for step in range(2):
                with tape.step(step):
                    loss(rollout(None))
                    tape.log({"grad_norm": factor, "time/step": 3.0})
        return out

    new = replay(tmp_path / "new", 5.0)
    before = json.loads((base / "tape.json").read_text())
    assert run("diff", base, new).exit_code == 1
    assert run("accept", new, "--as", base, "--reason", " ", "--author", "ada").exit_code == 2
    done = run("accept", new, "--as", base, "--reason", "a new head", "--author", "ada")
    assert done.exit_code == 0, done.output
    [line] = acceptances(LocalStorage(str(base)))
    assert (line.author, line.reason, line.before) == ("ada", "a new head", before["id"])
    assert line.verdict.startswith("First divergence: step 0, stage `loss`")
    assert json.loads((base / "tape.json").read_text())["id"] != before["id"]
    assert run("diff", base, replay(tmp_path / "again", 5.0)).exit_code == 0
    assert run("diff", base, replay(tmp_path / "third", 6.0)).exit_code == 1
    assert run("accept", new, "--as", base, "--reason", "old news", "--author", "ada").exit_code == 2


def test_the_command_by_itself(base):
    new = write(base.parent / "new", norm=9.0)
    done = in_process("diff", base, new)
    assert (done.returncode, done.stdout.splitlines()[0][:16]) == (1, "First divergence")
