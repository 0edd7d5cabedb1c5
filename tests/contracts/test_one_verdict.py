"""Every surface says the same of the same two tapes: with and without a floor, a gate, an acceptance."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rolltape
from rolltape.pytest_plugin import assert_matches_tape
from rolltape.verify.rules.noise_floor import Floor, write_floor
from rolltape.viewer.comparisons import compare_step
from rolltape.viewer.library import Library
from tests.cli_tapes import run


def train(folder, off=0.0, steps=3, **options):
    """A rollout, which is replayed, and a loss, which is not; the loss is off by something."""
    with rolltape.Tape(folder, background=False, **options) as tape:
        rollout = tape.stage("rollout")(lambda: {"uid": list("abc"), "ids": np.arange(12).reshape(3, 4)})
        loss = tape.stage("loss", replay=False)(lambda step: {"uid": list("abc"), "x": numbers(step) + off})
        for step in range(steps):
            with tape.step(step):
                rollout()
                tape.log({"grad_norm": float(loss(step)["x"].sum())})
        if tape.out is not None:
            tape.flush()
    return folder


def numbers(step):
    return np.linspace(1 + step, 2 + step, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def pair(tmp_path):
    """A baseline, and a replay of it that is off by 0.001 everywhere."""
    base = train(tmp_path / "base", mode="record")
    train(base, np.float32(1e-3), mode="replay", out=tmp_path / "new")
    return base, tmp_path / "new"


def floor(base, error):
    write_floor(
        rolltape.open(base).storage,
        Floor(3, "2026-01-01", ("train",), {("loss", "x"): error, ("metrics", "grad_norm"): 12 * error}),
    )


GATES = {
    "none": None,
    "wide": {"rules": [{"match": "*", "atol": 0.1}]},
    "narrow": {"rules": [{"match": "*", "bitwise": True}]},
    "allowed": {"rules": [{"match": "loss/*", "allow": True}, {"match": "metrics/*", "atol": 0.1}]},
    "required": {"rules": [{"match": "*", "atol": 0.1}], "require": ["advantage/*"]},
}


def by_command(base, new, gate, tmp_path):
    options = []
    if gate is not None:
        (tmp_path / "gate.json").write_text(json.dumps(gate))
        options = ["--gate", tmp_path / "gate.json"]
    done = run("diff", base, new, "--json", *options)
    found = json.loads(done.stdout)
    return done.exit_code == 0, found["verdict"], found["sentence"], len(found["findings"])


def by_function(base, new, gate, tmp_path):
    found = rolltape.compare(base, new, gate=gate)
    return found.clean, str(found.verdict), found.sentence, len(found.findings)


def by_runs(base, new, gate, tmp_path):
    found = rolltape.compare(rolltape.open(base), rolltape.open(new), gate=gate)
    return found.clean, str(found.verdict), found.sentence, len(found.findings)


def by_junit(base, new, gate, tmp_path):
    (tmp_path / "gate.json").write_text(json.dumps(gate or {}))
    path = tmp_path / "junit.xml"
    run("diff", base, new, "--junit", path, "--gate", tmp_path / "gate.json")
    return path.read_text().count("<failure")


class Replayed:
    """What ``assert_matches_tape`` asks of a tape."""

    def __init__(self, base, new):
        self.dir, self.out = str(base), self
        self.flush = lambda: None
        self._new = str(new)

    def __getattribute__(self, name):
        if name == "out":
            return Out(object.__getattribute__(self, "_new"))
        return object.__getattribute__(self, name)


class Out:
    def __init__(self, folder):
        self.dir = folder


def by_pytest(base, new, gate):
    try:
        assert_matches_tape(Replayed(base, new), gate=gate)
    except pytest.fail.Exception as failure:
        return False, str(failure).splitlines()[0]
    return True, ""


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("noise", [None, 5e-3, 1e-6])
@pytest.mark.parametrize("accepted", [False, True])
def test_every_surface_says_the_same(pair, tmp_path, gate, noise, accepted):
    base, new = pair
    if noise is not None:
        floor(base, noise)
    if accepted:
        done = run("accept", new, "--as", base, "--reason", "wanted", "--author", "ada")
        assert done.exit_code == 0
    rules = GATES[gate]
    told = by_command(base, new, rules, tmp_path)
    assert by_function(base, new, rules, tmp_path) == told
    assert by_runs(base, new, rules, tmp_path) == told
    assert by_junit(base, new, rules, tmp_path) == told[3]
    clean, sentence = by_pytest(base, new, rules)
    assert clean == told[0]
    assert clean or sentence == told[2]
    with pytest.warns(DeprecationWarning, match=r"rolltape\.compare"):
        alias = rolltape.verify.compare_tapes(rolltape.open(base).storage, rolltape.open(new).storage)
    if rules is None:
        assert str(alias.verdict) == told[1]
        for step in range(3):  # the viewer takes no gate
            page = compare_step(Library([str(base), str(new)]), 0, 1, step)
            alone = json.loads(run("diff", base, new, "--json", "--steps", step).stdout)
            assert (str(page.verdict), page.sentence) == (alone["verdict"], alone["sentence"])
    if accepted:  # what was accepted is what the baseline now has
        assert told[1] == "bitwise"


def test_the_floor_decides_on_every_surface(pair, tmp_path):
    base, new = pair
    assert by_command(base, new, None, tmp_path)[:2] == (False, "diverged")
    floor(base, 5e-3)
    assert by_command(base, new, None, tmp_path)[:2] == (True, "noise")
    assert by_function(base, new, None, tmp_path)[:2] == (True, "noise")


def test_accepting_keeps_what_the_comparison_said(pair):
    base, new = pair
    floor(base, 5e-3)
    said = rolltape.compare(base, new).sentence
    run("accept", new, "--as", base, "--reason", "wanted", "--author", "ada")
    line = json.loads((base / "accepted.jsonl").read_text())
    assert line["verdict"] == said
