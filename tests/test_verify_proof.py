"""What a replay was given is proven by what it noted then, also on tapes that were cut out or accepted."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rolltape
from rolltape.tape.replayed import read_replayed
from rolltape.verify.report.report import Report
from tests.cli_tapes import run


def train(tape, steps=6, off=None, shift=0):
    """Six samples in two groups; ``shift`` changes the rollouts, ``off`` is a step whose loss is wrong."""
    with tape:
        rollout = tape.stage("rollout")(lambda step: made(step, shift))
        loss = tape.stage("loss", replay=False)(
            lambda batch, step: {
                "uid": batch["uid"],
                "x": [np.sin(row) * np.float32(2 if step == off else 1) for row in batch["logprobs"]],
                "total": float(sum(row.sum() for row in batch["logprobs"])),
            }
        )
        for step in range(steps):
            with tape.step(step):
                found = loss(rollout(step), step)
                tape.log({"loss": found["total"]})


def made(step, shift=0):
    draw = np.random.default_rng(step + 100 * shift)
    return {
        "uid": [f"{step}.{at // 3}" for at in range(6)],
        "response_ids": [draw.integers(0, 99, n) for n in (3, 5, 2, 4, 3, 1)],
        "logprobs": [draw.normal(size=n).astype(np.float32) for n in (3, 5, 2, 4, 3, 1)],
    }


def replay(base, name, **options):
    train(rolltape.Tape(base, mode="replay", out=base.parent / name), **options)
    return base.parent / name


@pytest.fixture
def base(tmp_path):
    train(rolltape.Tape(tmp_path / "base", mode="record"))
    return tmp_path / "base"


def proof(report: Report, what="rollout"):
    return next(one for one in report.proofs if one.what == what)


def test_what_was_replayed_is_proven_by_its_digests(base):
    new = replay(base, "new")
    assert len(read_replayed(rolltape.open(new).storage)) == 6
    found = rolltape.compare(base, new)
    assert found.clean
    assert proof(found).same is True
    assert run("check", new).exit_code == 0


@pytest.mark.parametrize("step", [0, 4])
def test_a_baseline_that_was_rewritten_since_is_a_finding(base, step):
    new = replay(base, "new")
    with rolltape.Tape(base, mode="rewrite") as tape, tape.step(step):
        tape.stage("rollout")(lambda: made(step, shift=1))()
    found = rolltape.compare(base, new)
    assert not found.clean
    assert (found.first.step, found.first.stage) == (step, "rollout")
    assert "the baseline was rewritten since the candidate replayed it" in found.sentence
    assert proof(found).same is False
    assert run("diff", base, new).exit_code == 1
    assert run("diff", base, new, "--steps", "1-3").exit_code == 0


def test_the_same_recorded_once_more_is_the_same(base):
    new = replay(base, "new")
    with rolltape.Tape(base, mode="rewrite") as tape, tape.step(2):
        tape.stage("rollout")(lambda: made(2))()
    assert rolltape.compare(base, new).clean


def test_a_replay_that_kept_no_digests_proves_nothing(base):
    new = replay(base, "new")
    (new / "replayed.jsonl").unlink()
    found = rolltape.compare(base, new)
    assert proof(found).same is None
    assert found.clean


def test_a_line_that_was_cut_short_is_left_out_and_another_is_an_error(base):
    new = replay(base, "new")
    file = new / "replayed.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]) + lines[-1][:20])
    assert rolltape.compare(base, new).clean
    file.write_text(lines[0][:20] + "\n" + "".join(lines[1:]))
    with pytest.raises(rolltape.CorruptFileError, match="line 1"):
        rolltape.compare(base, new)


CUTS = {
    "steps": ["--steps", "2-4"],
    "samples": ["--steps", "2-3", "--samples", "1-4"],
    "one": ["--steps", "3", "--samples", "5"],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("which", ["both", "candidate", "baseline"])
def test_a_cut_of_a_clean_replay_is_clean(base, cut, which):
    tapes = {"baseline": base, "candidate": replay(base, "new")}
    for name in tapes:
        if which in ("both", name):
            out = base.parent / f"small-{name}"
            assert run("cut", tapes[name], *CUTS[cut], "--out", out).exit_code == 0
            tapes[name] = out
    found = rolltape.compare(tapes["baseline"], tapes["candidate"])
    assert found.clean, found.sentence
    assert proof(found).same is True
    assert found.comparison.within


@pytest.mark.parametrize("which", ["both", "candidate", "baseline"])
def test_and_of_a_wrong_one_it_is_not(base, which):
    tapes = {"baseline": base, "candidate": replay(base, "new", off=3)}
    for name in tapes:
        if which in ("both", name):
            out = base.parent / f"small-{name}"
            assert run("cut", tapes[name], *CUTS["samples"], "--out", out).exit_code == 0
            tapes[name] = out
    found = rolltape.compare(tapes["baseline"], tapes["candidate"])
    assert not found.clean
    assert (found.first.step, found.first.name, found.first.first.sample) == (3, "x", ("3.0", 1))


def test_a_cut_of_a_rewritten_baseline_is_a_finding(base):
    new = replay(base, "new")
    with rolltape.Tape(base, mode="rewrite") as tape, tape.step(2):
        tape.stage("rollout")(lambda: made(2, shift=1))()
    assert run("cut", base, *CUTS["samples"], "--out", base.parent / "small").exit_code == 0
    found = rolltape.compare(base.parent / "small", new)
    assert "rewritten since" in found.sentence


def test_a_cut_of_a_cut_is_still_a_replay(base):
    new = replay(base, "new")
    for name, tape in (("base", base), ("new", new)):
        assert run("cut", tape, "--steps", "1-4", "--out", base.parent / f"{name}1").exit_code == 0
        assert run("cut", base.parent / f"{name}1", "--steps", "2-9", "--samples", "0-2", "--out",
                   base.parent / f"{name}2").exit_code == 0  # fmt: skip
    assert rolltape.compare(base.parent / "base2", base.parent / "new2").clean
    assert rolltape.compare(base.parent / "base2", base.parent / "new1").clean
    assert rolltape.compare(base, base.parent / "new2").clean
    assert json.loads((base.parent / "new2/tape.json").read_text())["cut"]["steps"] == "2-4"


def test_an_accepted_candidate_is_clean_whatever_it_computes(base):
    """It no longer logs a metric, no longer calls a stage, and does fewer steps."""
    with rolltape.Tape(base.parent / "old", mode="record") as tape:
        rollout = tape.stage("rollout")(made)
        stages = [tape.stage(name, replay=False)(lambda: {"x": [1.0]}) for name in ("loss", "extra")]
        for step in range(4):
            with tape.step(step):
                rollout(step)
                [stage() for stage in stages]
                tape.log({"a": 1.0, "b": 2.0})
                tape.probe("inner", np.ones(3))
        tape.log({"reward": 1.0}, step=0, split="val")
    old, new = base.parent / "old", base.parent / "new"
    with rolltape.Tape(old, mode="replay", out=new) as tape:
        rollout, loss = tape.stage("rollout")(made), tape.stage("loss", replay=False)(lambda: {"x": [3.0]})
        for step in range(3):
            with tape.step(step):
                rollout(step)
                loss()
                tape.log({"a": 1.0})
    assert run("diff", old, new).exit_code == 1
    assert run("accept", new, "--as", old, "--reason", "simpler", "--author", "ada").exit_code == 0
    found = rolltape.compare(old, new)
    assert found.clean, found.sentence
    assert proof(found).same is True
    assert rolltape.open(old).steps("rollout") == [0, 1, 2, 3]
    assert rolltape.open(new).baseline() is not None
    assert run("check", old).exit_code == 0


def test_an_accepted_recording_is_clean_too(base):
    whole = base.parent / "whole"
    train(rolltape.Tape(whole, mode="record"), steps=3, shift=1)
    assert run("accept", whole, "--as", base, "--reason", "new data", "--author", "ada").exit_code == 0
    assert rolltape.compare(base, whole).clean
    assert rolltape.open(base).steps() == [0, 1, 2]


def test_an_accepted_cut_stays_a_cut(base):
    small = base.parent / "small"
    assert run("cut", base, "--steps", "1-2", "--out", small).exit_code == 0
    with rolltape.Tape(small, mode="replay", out=base.parent / "new") as tape:
        rollout, loss = tape.stage("rollout")(made), tape.stage("loss", replay=False)(lambda: {"x": [3.0]})
        for step in (1, 2):
            with tape.step(step):
                rollout(step)
                loss()
    assert run("accept", base.parent / "new", "--as", small, "--reason", "r", "--author", "a").exit_code == 0
    assert rolltape.compare(small, base.parent / "new").clean
    assert rolltape.open(small).manifest.cut["steps"] == "1-2"


def test_arguments_the_wrong_way_round_are_an_error(base):
    new = replay(base, "new")
    done = run("diff", new, base)
    assert done.exit_code == 2
    assert "the baseline comes first" in done.stderr
    assert f"rolltape diff {base} {new}" in done.stderr


def test_weights_that_begin_at_random_are_told_where_runs_are_said_to_begin_alike(tmp_path, monkeypatch):
    monkeypatch.setattr("rolltape.determinism._unseeded", {"the critic's value head"})
    for name in ("a", "b"):
        with rolltape.Tape(tmp_path / name, mode="record") as tape, tape.step(0):
            tape.stage("loss")(lambda: {"x": [1.0, 2.0]})()
    told = {proof.what: proof for proof in rolltape.compare(tmp_path / "a", tmp_path / "b").proofs}
    assert told["initial weights"].same is None
    assert told["initial weights"].how == "the critic's value head begins at random in every run"
