"""A replay that is given its state at every step answers for its updates: the state is computed live too."""

from __future__ import annotations

import asyncio
import json
import random

import numpy as np
import pytest

import rolltape
from rolltape.verify.measure.update import judge_update
from tests.cli_tapes import run


class Trainer:
    """Adam's little sister: a step of momentum on four weights, with the settings that people get wrong."""

    def __init__(self, tape, *, lr=0.1, decay=0.0, clip=None, beta=0.9, seed=0, restore=True, off=None):
        self.tape, self.restore, self.off = tape, restore, off
        self.lr, self.decay, self.clip, self.beta = lr, decay, clip, beta
        self.weights = np.random.default_rng(seed).normal(size=4).astype(np.float32)
        self.moment = np.zeros(4, np.float32)
        self.live: list[int] = []
        self.state = tape.stage("state")(self._state)
        self.rollout = tape.stage("rollout")(lambda step: {"uid": list("ab"), "x": _numbers(step)})
        self.loss = tape.stage("loss", replay=False)(self._loss)

    def _state(self):
        self.live.append(self.step)
        return {"model": {"w": self.weights.copy()}, "optimizer": {"m": self.moment.copy()}}

    def _loss(self, batch):
        value = (batch["x"] * self.weights).astype(np.float32)
        if self.off == self.step:
            value = value * np.float32(1.5)
        return {"uid": batch["uid"], "per_weight": value}

    def run(self, steps):
        for self.step in steps:
            with self.tape.step(self.step):
                state = self.state()
                if self.restore:
                    self.weights, self.moment = state["model"]["w"].copy(), state["optimizer"]["m"].copy()
                gradient = self.loss(self.rollout(self.step))["per_weight"].sum(axis=0)
                norm = float(np.abs(gradient).sum())
                if self.clip is not None:
                    gradient = gradient.clip(-self.clip, self.clip)
                self.moment = (self.beta * self.moment + gradient).astype(np.float32)
                self.weights = ((1 - self.lr * self.decay) * self.weights - self.lr * self.moment).astype(
                    np.float32
                )
                self.tape.log({"norm": norm})
        return self


def _numbers(step):
    return np.random.default_rng(100 + step).normal(size=(2, 4)).astype(np.float32)


@pytest.fixture
def base(tmp_path):
    with rolltape.Tape(tmp_path / "base", mode="record") as tape:
        Trainer(tape).run(range(4))
    return tmp_path / "base"


def replay(base, name, steps=range(4), options=None, **changes):
    with rolltape.Tape(base, mode="replay", out=base.parent / name, **(options or {})) as tape:
        Trainer(tape, **changes).run(steps)
    return base.parent / name


@pytest.mark.parametrize("change", [{"decay": 0.01}, {"lr": 0.11}, {"beta": 0.8}, {"clip": 0.5}], ids=str)
def test_a_wrong_update_is_found_in_the_state_it_leads_to(base, change):
    new = replay(base, "new", **change)
    document = json.loads(run("diff", base, new, "--json").stdout)
    first = document["first"]
    assert (first["stage"], first["name"]) == ("state", "w")
    # The moment is zero before step 0, so a wrong beta tells no sooner than in the update of step 1.
    made = 1 if "beta" in change else 0
    assert first["step"] == made + 1
    assert f"which the update of step {made} made" in document["sentence"]
    origins = {one["step"]: (one["origin"], one["first"]) for one in document["steps"]}
    assert origins[made] == ("made here, in its update", "state/w")
    assert {e["verdict"] for e in document["entries"] if e["stage"] != "state"} == {"bitwise"}


def test_an_update_that_is_right_is_clean_and_nothing_of_it_is_returned(base):
    with rolltape.Tape(base, mode="replay", out=base.parent / "new") as tape:
        trainer = Trainer(tape).run(range(4))
    assert trainer.live == [0, 1, 2, 3]
    done = run("diff", base, base.parent / "new")
    assert done.exit_code == 0, done.output
    assert "state/w, state/m" in done.stdout
    recorded = rolltape.open(base).recording(rolltape.open(base).files("state").at(3)[0]).value()
    with rolltape.Tape(base, mode="replay", out=base.parent / "third") as tape:
        wrong = Trainer(tape, lr=7.0)
        wrong.run(range(3))
        wrong.step = 3
        with tape.step(3):
            given = wrong.state()
    assert given["model"]["w"].tobytes() == recorded["model"]["w"].tobytes()


def test_without_a_second_tape_it_is_not_called(base):
    with rolltape.Tape(base, mode="replay") as tape:
        assert Trainer(tape).run(range(4)).live == []


def test_a_replay_that_begins_in_the_middle_owes_nothing_for_the_first_step(base):
    new = replay(base, "new", steps=range(2, 4), seed=7)
    done = run("diff", base, new, "--steps", "2-")
    assert done.exit_code == 0, done.output
    assert [r.key.step for r in rolltape.open(new).recordings("state")] == [3]


def test_steps_that_are_passed_over_are_not_held_against_an_update(base):
    new = replay(base, "new", steps=(0, 2, 3))
    assert run("diff", base, new, "--steps", "0,2,3").exit_code == 0
    assert [r.key.step for r in rolltape.open(new).recordings("state")] == [0, 3]


def test_other_weights_to_begin_with_are_no_finding_where_the_recorded_ones_are_put_in(base):
    done = run("diff", base, replay(base, "new", seed=5))
    assert done.exit_code == 0, done.output
    assert "initial weights: the candidate began with others" in done.stdout


def test_and_are_one_where_they_are_not(base):
    new = replay(base, "new", seed=5, restore=False)
    document = json.loads(run("diff", base, new, "--json").stdout)
    assert (document["first"]["step"], document["first"]["stage"]) == (0, "state")
    assert document["steps"][0]["origin"] == "made here or carried"


def test_what_the_live_call_draws_is_given_back(base):
    def drawn(**options):
        random.seed(1)
        with rolltape.Tape(base, mode="replay", random_state=False, **options) as tape:
            trainer = Trainer(tape)
            state = tape.stage("state")

            def draws():
                random.random()
                return trainer._state()

            del tape._stages["state"]
            trainer.state = state(draws)
            trainer.run(range(2))
        return random.random()

    assert drawn() == drawn(out=base.parent / "new")


def test_a_live_state_that_fails_is_a_failure_to_record(base):
    def broken(on_error):
        with rolltape.Tape(base, mode="replay", out=base.parent / on_error, on_error=on_error) as tape:
            state = tape.stage("state")(lambda: 1 / 0)
            with tape.step(0):
                return state()

    with pytest.raises(rolltape.RecordError, match=r"train/state/step_000000.parquet failed: ZeroDivision"):
        broken("raise")
    assert broken("warn")["model"]["w"].shape == (4,)


def test_asynchronous_states_too(base):
    async def train():
        with rolltape.Tape(base, mode="replay", out=base.parent / "new") as tape:
            trainer = Trainer(tape)

            async def state():
                return trainer._state()

            del tape._stages["state"]
            given = tape.stage("state")(state)
            for trainer.step in range(2):
                with tape.step(trainer.step):
                    await given()
        return trainer.live

    assert asyncio.run(train()) == [0, 1]


def test_a_fault_in_a_step_is_named_before_the_update_it_spoils(base):
    document = json.loads(run("diff", base, replay(base, "new", off=1), "--json").stdout)
    assert (document["first"]["step"], document["first"]["stage"]) == (1, "loss")
    assert [one["origin"] for one in document["steps"]] == ["", "made here", "", ""]


def test_an_accepted_update_is_what_the_next_replay_is_held_to(base):
    new = replay(base, "new", decay=0.01)
    assert run("diff", base, new).exit_code == 1
    done = run("accept", new, "--as", base, "--reason", "decay", "--author", "ada")
    assert done.exit_code == 0, done.output
    assert run("diff", base, new).exit_code == 0, run("diff", base, new).output
    assert run("diff", base, replay(base, "again", decay=0.01)).exit_code == 0
    assert run("diff", base, replay(base, "old")).exit_code == 1
    assert run("check", base).exit_code == 0


# -- how large an error of an update is ---------------------------------------------------------------------


def adam(weights, gradient, lr=1e-3, decay=0.0, eps=1e-8):
    """The first step of AdamW in single precision."""
    step = np.float32(lr) * gradient / (np.abs(gradient) + np.float32(eps))
    return (weights * np.float32(1 - lr * decay) - step).astype(np.float32)


@pytest.mark.parametrize("lr", [1e-2, 1e-3, 1e-5, 1e-6])
@pytest.mark.parametrize("size", [64, 5000])
def test_rounding_that_an_optimizer_makes_much_of_passes_and_wrong_settings_do_not(lr, size):
    draw = np.random.default_rng(size)
    weights = draw.normal(0, 0.02, size).astype(np.float32)
    gradient = (draw.normal(0, 1, size) * 10.0 ** draw.uniform(-9, -3, size)).astype(np.float32)
    rounded = (gradient + 1e-7 * np.abs(gradient).mean() * draw.normal(size=size)).astype(np.float32)

    def verdict(other):
        sides = (weights, adam(weights, gradient, lr), other)
        return str(judge_update(*(side.astype(np.float64) for side in sides), 2.0**-23))

    assert verdict(adam(weights, rounded, lr)) == "tolerance"
    assert verdict(adam(weights, gradient, lr * 1.01)) == "diverged"
    assert verdict(adam(weights, -gradient, lr)) == "diverged"
    spoiled = adam(weights, gradient, lr)
    spoiled[7] += np.float32(lr)
    assert verdict(spoiled) == "diverged"
    assert verdict(weights) == "diverged"  # no update at all
    if lr >= 1e-3:  # of smaller ones, a decay is below what single precision holds
        assert verdict(adam(weights, gradient, lr, decay=0.01)) == "biased"
    assert verdict(np.full(size, np.nan, np.float32)) == "diverged"


def test_settings_that_the_recorded_state_replaces_are_found_where_they_still_show(base):
    """As with torch, whose optimizers take over the settings of a state that they load."""

    def train(name, decay):
        mode = {"mode": "record"} if name == "torchlike" else {"mode": "replay", "out": base.parent / name}
        with rolltape.Tape(base.parent / "torchlike", **mode) as tape:
            now = {"decay": decay, "w": np.ones(60, np.float32)}
            state = tape.stage("state")(lambda: {"groups": {"decay": now["decay"]}, "w": now["w"].copy()})
            loss = tape.stage("loss", replay=False)(lambda w: {"x": w * 2})
            for step in range(3):
                with tape.step(step):
                    given = state()
                    now["decay"], now["w"] = given["groups"]["decay"], given["w"].copy()
                    loss(now["w"])
                    now["w"] = (now["w"] * np.float32(1 - now["decay"]) - np.float32(0.1)).astype(np.float32)
        return base.parent / name

    tape = train("torchlike", 0.0)
    assert rolltape.compare(tape, train("same", 0.0)).clean
    found = rolltape.compare(tape, train("other", 0.01))
    assert (found.first.step, found.first.path) == (0, "state/groups/decay")
