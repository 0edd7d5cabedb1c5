"""``rolltape trust`` on tapes: exact, within noise, correctable, plumbing only; like with like."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest

import rolltape
from rolltape.trusting import Meter, Verdict, to_json
from tests.cli_tapes import run as command
from tests.trust_policies import World, log_softmax, noisy, sample, top_p

STEPS = 3
WIDTH = 26


@dataclass
class Run:
    """A recorded run: an engine with some noise, and a trainer."""

    noise: float = 0.01
    drift: float = 0.0
    layout: str = "padded"
    dtype: type = np.float32
    values: dict = field(default_factory=dict)
    fingerprint: dict = field(default_factory=dict)
    edit: object = None
    """Of the trainer's rows: (step, rows) -> rows."""
    engine: object = None
    """Of the engine's distribution: logp -> logp."""
    columns: object = None
    """More columns of the rollout: (step, world) -> dict."""

    def rollout(self, step):
        world = World(step, prompts=24)
        ours = log_softmax(noisy(world.logits, self.noise, 50 + step))
        if self.engine is not None:
            ours = self.engine(ours)
            world.ids[:] = sample(np.random.default_rng(step), ours)
        rows = self._rows(world, ours[np.arange(len(world.ids)), world.ids])
        ids = self._rows(world, world.ids, 0)
        found = {
            "uid": [f"{step}.{at // world.n}" for at in range(len(world.lengths))],
            "index": np.arange(len(world.lengths)) % world.n,
            "response_ids": ids, "rollout_log_probs": rows,
            "finish_reason": ["stop" if one else "length" for one in world.finished], **self.values,
        }  # fmt: skip
        if self.layout == "padded":
            found["response_mask"] = np.arange(WIDTH) < world.lengths[:, None]
        return found | (self.columns(step, world) if self.columns else {})

    def trained(self, step, rollout):
        world = World(step, prompts=24)
        world.ids[:] = np.concatenate(
            [
                np.asarray(row)[:length]
                for row, length in zip(rollout["response_ids"], world.lengths, strict=True)
            ]
        )
        moved = world.logits + self.drift * step * np.random.default_rng(9).normal(size=48)
        rows = self._rows(world, log_softmax(moved)[np.arange(len(world.ids)), world.ids])
        return rows if self.edit is None else self.edit(step, rows)

    def _rows(self, world, flat, fill=0.0):
        ends = np.cumsum(world.lengths)
        rows = [flat[end - length : end] for end, length in zip(ends, world.lengths, strict=True)]
        dtype = self.dtype if flat.dtype.kind == "f" else np.int64
        if self.layout == "ragged":
            return [row.astype(dtype) for row in rows]
        out = np.full((len(rows), WIDTH), fill, dtype)
        for row, values in zip(out, rows, strict=True):
            row[: len(values)] = values
        return out

    def play(self, dir, **arguments):
        with rolltape.Tape(dir, fingerprint=self.fingerprint, **arguments) as tape:
            rollout = tape.stage("rollout")(self.rollout)
            trained = tape.stage("old_log_prob", replay=False)(
                lambda step, made: {
                    "uid": made["uid"],
                    "index": made["index"],
                    "old_log_probs": self.trained(step, made),
                }
            )
            meter = Meter(tape)
            for step in range(STEPS):
                with tape.step(step):
                    made = rollout(step)
                    rows = trained(step, made)["old_log_probs"]
                    mask = made.get("response_mask")
                    meter.measure(step, made["rollout_log_probs"], rows, mask=mask, groups=made["uid"])


def record(path, **options):
    Run(**options).play(path, mode="record")
    return path


def replay(base, out, **options):
    Run(**options).play(base, mode="replay", out=out)
    return out


@pytest.fixture
def base(tmp_path):
    return record(tmp_path / "base")


@pytest.mark.parametrize("layout", ["padded", "ragged"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_replay_of_the_same_run_is_exact(tmp_path, layout, dtype):
    base = record(tmp_path / "base", layout=layout, dtype=dtype)
    found = rolltape.trust(replay(base, tmp_path / "same", layout=layout, dtype=dtype))
    assert found.verdict is Verdict.EXACT
    assert found.baseline == str(base)
    assert found.strip == "==="
    assert found.drift["k2"].value == 0
    assert found.floor["k2"].low < found.floor["k2"].value < found.floor["k2"].high


def test_the_step_that_leaves_the_noise_is_where_numpy_says(tmp_path, base, caplog):
    out = replay(base, tmp_path / "moved", drift=0.2)
    found = rolltape.trust(out, base)
    drifts, floors = [], []
    for step in range(STEPS):
        ours, theirs = rolltape.open(base), rolltape.open(out)
        mask = np.stack(ours.samples(step).cells("response_mask")).astype(bool)
        engine = np.stack(ours.samples(step).cells("rollout_log_probs"))[mask].astype(np.float64)
        before, now = (
            np.stack(one.samples(step, "old_log_prob").cells("old_log_probs"))[mask].astype(np.float64)
            for one in (ours, theirs)
        )
        drifts.append(np.mean((now - before) ** 2) / 2)
        floors.append(np.mean((before - engine) ** 2) / 2)
    left = next(step for step in range(STEPS) if drifts[step] > 4 * floors[step])
    assert found.left_at == left == 1
    assert [one.drift_k2 for one in found.steps] == pytest.approx(drifts)
    assert [one.floor_k2 for one in found.steps] == pytest.approx(floors)
    warned = [record.getMessage() for record in caplog.records if "leaves the noise" in record.getMessage()]
    assert len(warned) == 1
    assert warned[0].startswith(f"step {left} ")
    metrics = rolltape.open(out).metrics()
    assert [metrics[step]["trust/drift_k2"] for step in range(STEPS)] == pytest.approx(drifts)
    assert all("trust/drift_k2" not in line for line in rolltape.open(base).metrics().values())
    assert all(0 < line["trust/seconds"] < 60 for line in metrics.values()), "what it costs is said"


def test_what_the_meter_logs_is_no_difference_of_two_runs(tmp_path, base):
    report = rolltape.compare(base, replay(base, tmp_path / "same"))
    assert report.clean


def test_verdicts_by_how_far_the_policy_has_moved(tmp_path, base):
    near = rolltape.trust(replay(base, tmp_path / "near", drift=0.002), base)
    some = rolltape.trust(replay(base, tmp_path / "some", drift=0.1), base)
    far = rolltape.trust(replay(base, tmp_path / "far", drift=3.0), base)
    assert (near.verdict, near.left_at) == (Verdict.WITHIN_NOISE, None)
    assert some.verdict is Verdict.CORRECTABLE
    assert "cap" in some.correction
    assert far.verdict is Verdict.PLUMBING_ONLY
    assert [one.verdict for one in (near.steps[0], some.steps[0], far.steps[0])] == [Verdict.EXACT] * 3
    assert not far.findings or not any(one.is_bug for one in far.findings), "training is not called a bug"


def test_a_recorded_run_by_itself(tmp_path, base):
    found = rolltape.trust(base)
    assert (found.verdict, found.baseline, found.floor) == (Verdict.WITHIN_NOISE, None, None)
    assert found.counted == found.recorded == 24 * 4 * STEPS
    assert 0 < found.finished < found.counted
    loud = rolltape.trust(record(tmp_path / "loud", noise=0.3))
    assert loud.verdict is Verdict.CORRECTABLE


def test_a_shift_is_named_on_a_tape(tmp_path, base):
    shifted = replay(base, tmp_path / "shifted", edit=lambda step, rows: np.roll(rows, 1, axis=1))
    found = rolltape.trust(shifted, base)
    assert found.verdict is Verdict.PLUMBING_ONLY
    assert [one.kind for one in found.findings] == ["shifted by one"]


@pytest.mark.parametrize("layout", ["padded", "ragged"])
def test_rows_that_were_sorted_and_not_put_back_are_named(tmp_path, layout):
    def by_length(step, rows):
        order = np.argsort([np.count_nonzero(row) for row in rows], kind="stable")
        return rows[order] if layout == "padded" else [rows[at] for at in order]

    found = rolltape.trust(record(tmp_path / "sorted", layout=layout, edit=by_length))
    assert found.verdict is Verdict.PLUMBING_ONLY
    assert [one.kind for one in found.findings] == ["rows swapped"]


def test_a_lost_eos_is_named_by_the_lengths_of_rows(tmp_path):
    base = record(tmp_path / "base", layout="ragged")
    lost = replay(
        base, tmp_path / "lost", layout="ragged",
        edit=lambda step, rows: [row[:-1] if at % 2 else row for at, row in enumerate(rows)],
    )  # fmt: skip
    found = rolltape.trust(lost, base)
    assert "eos dropped" in [one.kind for one in found.findings]
    assert found.verdict is Verdict.PLUMBING_ONLY


def test_two_of_many_sequences_are_not_all_of_them(tmp_path, base):
    """An ESS of 0.99 that two answers of 128 say (marin #8955): how many there are is told."""

    def few(step, rows):
        rows = rows.copy()
        rows[2:] = np.nan
        return rows

    found = rolltape.trust(replay(base, tmp_path / "few", edit=few), base)
    assert found.not_numbers > 0
    assert found.verdict is Verdict.PLUMBING_ONLY
    assert any(one.kind == "not numbers" for one in found.findings)


def test_a_few_of_the_recorded_sequences_do_not_speak_for_all(tmp_path):
    def few(count):
        return lambda step, found: {
            "uid": found["uid"][:count], "index": found["index"][:count],
            "log_probs": Run().trained(step, found)[:count],
        }  # fmt: skip

    found = rolltape.trust(record_both(tmp_path / "few", 2, Run().rollout, few(3)))
    assert found.verdict is Verdict.CANNOT_TELL
    assert found.why == "only 3 of 96 recorded sequences have log-probs on both sides"
    most = rolltape.trust(record_both(tmp_path / "most", 2, Run(noise=0.0).rollout, few(90)))
    assert (most.verdict, most.counted, most.recorded) == (Verdict.WITHIN_NOISE, 180, 192)


def test_kinds_are_refused_by_name(tmp_path):
    base = record(
        tmp_path / "cooked",
        values={"logprob_kind": "processed"},
        fingerprint={"sampling": {"temperature": 0.7, "top_p": 0.9}},
    )
    found = rolltape.trust(base)
    assert found.verdict is Verdict.CANNOT_TELL
    assert "kept set" in found.refused[0]
    found = rolltape.trust(base, trainer={"kind": "raw"})
    assert "kind of log-prob" in found.refused[0]
    found = rolltape.trust(base, trainer={"temperature": 1.0}, engine={"top_p": 1.0})
    assert found.refused == ["temperature: 0.7 in the engine's log-probs, 1 in the trainer's"]
    with pytest.raises(rolltape.ConfigError, match="heat"):
        rolltape.trust(base, trainer={"heat": 1.0})
    with pytest.raises(rolltape.ConfigError, match="cannot be"):
        rolltape.trust(base, trainer={"kind": "boiled"})


def test_surviving_mass_is_named_or_corrected(tmp_path):
    """Without a column of the mass it is named; with one the comparison is exact again."""
    cut = lambda logp: top_p(logp, 0.8)  # noqa: E731

    def mass(step, world):
        ours = log_softmax(noisy(world.logits, 0.01, 50 + step))
        kept = np.exp(np.where(np.isfinite(top_p(ours, 0.8)), ours, -np.inf)).sum(axis=1)
        return {"kept_mass": Run()._rows(world, kept, 1.0)}

    named = rolltape.trust(record(tmp_path / "named", engine=cut))
    assert [one.kind for one in named.findings] == ["surviving mass"]
    values = {"logprob_kind": "processed"}
    settings = {"sampling": {"temperature": 1.0, "top_p": 0.8}}
    known = rolltape.trust(
        record(tmp_path / "known", engine=cut, columns=mass, values=values, fingerprint=settings)
    )
    assert known.refused == []
    assert known.verdict is Verdict.WITHIN_NOISE


def record_both(path, steps, made, trained):
    """A tape with rollouts and what a trainer has of them, both as they are given."""
    with rolltape.Tape(path, mode="record") as tape:
        rollout = tape.stage("rollout")(made)
        loss = tape.stage("loss", replay=False)(
            lambda step, found: {"uid": found["uid"], "index": found["index"], **trained(step, found)}
        )
        for step in range(steps):
            with tape.step(step):
                loss(step, rollout(step))
    return path


def test_routes_that_differ_are_refused(tmp_path):
    made = Run(
        columns=lambda step, world: {"routed_experts": np.full((len(world.lengths), WIDTH), step)}
    ).rollout

    def alike(step, found):
        return {"log_probs": Run().trained(step, found), "routed_experts": np.array(found["routed_experts"])}

    def other(step, found):
        return alike(step, found) | {"routed_experts": np.array(found["routed_experts"]) + 1}

    assert rolltape.trust(record_both(tmp_path / "alike", 2, made, alike)).refused == []
    found = rolltape.trust(record_both(tmp_path / "other", 2, made, other))
    assert found.refused[0].startswith("routes of experts: they differ in 96 of 96")
    assert found.verdict is Verdict.CANNOT_TELL


def test_stale_weights_are_named_over_steps(tmp_path):
    """The engine agrees at the first step and never again."""
    made, trained = Run(noise=1e-4).rollout, Run(drift=0.3).trained
    path = record_both(tmp_path / "stale", 6, made, lambda step, found: {"log_probs": trained(step, found)})
    found = rolltape.trust(path)
    assert [one.kind for one in found.findings] == ["wrong weights version"]
    assert found.verdict is Verdict.PLUMBING_ONLY


def test_a_probe_is_enough(tmp_path):
    with rolltape.Tape(tmp_path / "probed", mode="record") as tape:
        made = Run().rollout(0)
        with tape.step(0):
            tape.stage("rollout")(lambda: made)()
            tape.probe("logprobs", Run().trained(0, made), uid=made["uid"])
    found = rolltape.trust(tmp_path / "probed")
    assert found.columns == ("rollout / rollout_log_probs", "probe.logprobs / value")
    assert found.verdict is Verdict.WITHIN_NOISE


@pytest.mark.parametrize("out", [True, False])
def test_a_probe_of_a_replay_is_measured_as_it_comes(tmp_path, caplog, out):
    """The padding of both sides is not counted, whatever is in it."""
    run = Run()

    def play(tape, drift):
        rollout = tape.stage("rollout")(run.rollout)
        for step in range(STEPS):
            with tape.step(step):
                made = rollout(step)
                tape.probe("logprobs", Run(drift=drift).trained(step, made), uid=made["uid"])

    recorded = tmp_path / "probed"
    with rolltape.Tape(recorded, mode="record") as tape:
        play(tape, 0.0)
    caplog.clear()
    moved = tmp_path / "moved" if out else None
    with rolltape.Tape(recorded, mode="replay", out=moved) as tape:
        play(tape, 0.2)
    warned = [one.getMessage() for one in caplog.records if "leaves the noise" in one.getMessage()]
    assert len(warned) == 1
    assert warned[0].startswith("step 1 ")
    if out:
        found, metrics = rolltape.trust(moved), rolltape.open(moved).metrics()
        assert found.left_at == 1
        for one in found.steps:
            assert metrics[one.step]["trust/drift_k2"] == pytest.approx(one.drift_k2)
            assert metrics[one.step]["trust/floor_k2"] == pytest.approx(one.floor_k2)


def test_ages_are_told(tmp_path):
    version = lambda step, world: {"weights_version": step + 1 - np.arange(len(world.lengths)) % 2}  # noqa: E731
    found = rolltape.trust(record(tmp_path / "base", columns=version))
    assert [one.age for one in found.ages] == [0, 1]
    assert sum(one.tokens for one in found.ages) == found.tokens.estimates.count


def test_a_policy_scored_twice_is_a_floor(tmp_path, base):
    twice = replay(base, tmp_path / "twice", edit=lambda step, rows: np.where(rows < 0, rows - 1e-4, rows))
    moved = replay(base, tmp_path / "moved", drift=0.005)
    found = rolltape.trust(moved, base, floor=twice)
    assert found.floor["k2"].value == pytest.approx(0.5e-8, rel=1e-3)
    assert found.left_at == 1


def test_steps_measured_elsewhere_say_the_same(tmp_path, base):
    """What a cluster is sent and sends back: everything goes through pickle, a step at a time."""

    class Elsewhere:
        def over(self, work, items, tapes):
            assert sorted(tapes) == sorted([str(base), str(moved)])
            for item in items:
                yield from pickle.loads(pickle.dumps(list(pickle.loads(pickle.dumps(work))([item]))))

    moved = replay(base, tmp_path / "moved", drift=0.1)
    here, there = rolltape.trust(moved), rolltape.trust(moved, spread=Elsewhere())
    assert json.dumps(to_json(here)) == json.dumps(to_json(there))


def test_the_command(tmp_path, base):
    same = replay(base, tmp_path / "same")
    moved = replay(base, tmp_path / "moved", drift=0.1)
    shown = command("trust", same)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0] == f"{same} against {base}: exact"
    shown = command("trust", moved, base)
    assert shown.exit_code == 1
    assert "correct with: weights of " in shown.stdout
    assert command("trust", moved, "--gate", "correctable").exit_code == 0
    assert command("trust", same, "--gate", "exact").exit_code == 0
    document = json.loads(command("trust", moved, "--json").stdout)
    assert document["verdict"] == "correctable"
    assert document["left_at"] == 1
    assert (
        document["tokens"]["k3"]["low"] < document["tokens"]["k3"]["value"] < document["tokens"]["k3"]["high"]
    )
    assert document == json.loads(json.dumps(to_json(rolltape.trust(str(moved)))))


def test_wrong_use_is_told(tmp_path, base):
    same = replay(base, tmp_path / "same")
    assert "the replay comes first" in command("trust", base, same).stderr
    assert "its own baseline" in command("trust", base, base).stderr
    assert "a floor is how far" in command("trust", base, "--floor", same).stderr
    with rolltape.Tape(tmp_path / "none", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a"], "reward": [1.0]})()
    shown = command("trust", tmp_path / "none")
    assert "no log-probs of a trainer" in shown.stderr
    assert command("trust", base, "--trainer", "temperature").exit_code == 2


def test_a_step_that_nobody_can_tell_does_not_pass_the_gate(tmp_path, base):
    def play(out):
        with rolltape.Tape(base, mode="replay", out=out) as tape:
            rollout = tape.stage("rollout")(lambda step: None)
            trained = tape.stage("old_log_prob", replay=False)(
                lambda found, rows, count: {
                    "uid": found["uid"][:count], "index": found["index"][:count],
                    "old_log_probs": rows[:count],
                }
            )  # fmt: skip
            for step in range(STEPS):
                with tape.step(step):
                    found = rollout(step)
                    trained(found, Run().trained(step, found), 10 if step == 1 else None)
        return out

    out = play(tmp_path / "partly")
    found = rolltape.trust(out)
    assert (found.strip, found.verdict) == ("=?=", Verdict.EXACT)
    assert found.why == "every log-prob is the same, bit for bit; cannot tell at 1 of 3 steps"
    assert not found.reaches(Verdict.PLUMBING_ONLY)
    assert command("trust", out, "--gate", "exact").exit_code == 1
    assert command("trust", out, "--gate", "exact", "--steps", "0,2").exit_code == 0
    assert command("trust", out, "--steps", "1").exit_code == 3


def masked(base, out, mask):
    """A replay whose trainer has a mask of its own: of the recorded one, what ``mask`` leaves."""
    with rolltape.Tape(base, mode="replay", out=out) as tape:
        rollout = tape.stage("rollout")(lambda step: None)
        trained = tape.stage("old_log_prob", replay=False)(
            lambda found, rows: {
                "uid": found["uid"], "index": found["index"], "old_log_probs": rows,
                "response_mask": mask(np.array(found["response_mask"])),
            }
        )  # fmt: skip
        for step in range(STEPS):
            with tape.step(step):
                found = rollout(step)
                trained(found, Run().trained(step, found))
    return out


def test_a_narrower_mask_is_not_exact(tmp_path, base):
    same = rolltape.trust(masked(base, tmp_path / "same", lambda mask: mask))
    assert same.verdict is Verdict.EXACT
    first = rolltape.trust(masked(base, tmp_path / "first", lambda mask: mask & (np.arange(WIDTH) < 1)))
    assert first.verdict is Verdict.CANNOT_TELL
    assert "another mask" in first.refused[0]
    kept = (np.arange(96) % 4 > 0)[:, None]
    some = rolltape.trust(masked(base, tmp_path / "some", lambda mask: mask & kept))
    assert some.verdict is Verdict.WITHIN_NOISE, "sequences that are left out are left out"
    assert (some.counted, some.recorded) == (72 * STEPS, 96 * STEPS)


def test_a_baseline_without_numbers_is_no_baseline(tmp_path):
    """Tokens that are nan on the baseline alone must not be left out in silence."""
    for name, hole in (("all", slice(0, None)), ("some", slice(4, None))):

        def nan(step, rows, hole=hole):
            rows = rows.copy()
            rows[:, hole] = np.nan
            return rows

        base = record(tmp_path / name, edit=nan)
        found = rolltape.trust(replay(base, tmp_path / f"{name} again"), base)
        assert found.verdict is Verdict.PLUMBING_ONLY, name
        assert found.why == "a bug in the plumbing: not numbers"


@pytest.mark.parametrize(
    ("values", "trainer"),
    [
        ({"logprob_kind": "raw"}, {"kind": "raw"}),
        ({"logprob_kind": "processed", "top_p": 0.5}, {"kind": "processed", "top_p": 0.5}),
    ],
)
def test_the_kept_mass_is_not_added_where_both_are_of_the_same_distribution(tmp_path, values, trainer):
    mass = lambda step, world: {"kept_mass": np.full((len(world.lengths), WIDTH), 0.5, np.float32)}  # noqa: E731
    found = rolltape.trust(record(tmp_path / "base", values=values, columns=mass), trainer=trainer)
    assert (found.verdict, found.findings) == (Verdict.WITHIN_NOISE, [])


def test_the_meter_stops_nothing_and_hides_nothing(tmp_path, caplog):
    with rolltape.Tape(tmp_path / "run", mode="record") as tape, tape.step(0):
        meter = Meter(tape)
        two = [[-1.0], [-2.0]]
        assert meter.measure(0, two, two, mask=[[1]]) == {}
        assert meter.measure(0, two, two, groups=["a"]) == {}
        assert meter.measure(0, two, [["x"], [-2.0]]) == {}
        assert sum("cannot be measured" in one.getMessage() for one in caplog.records) == 3
        assert meter.measure(0, two, two, mask=[[0], [0]]) == {}
        assert "trust/not_numbers" not in meter.measure(0, two, two)
        for _ in range(2):
            assert meter.measure(0, two, [[-1.0], [np.nan]])["trust/not_numbers"] == 1
        told = [one.getMessage() for one in caplog.records if "nan" in one.getMessage()]
        assert told == ["step 0: 1 of 2 log-probs are nan or inf"]


def test_a_step_of_which_nothing_counts_does_not_leave_the_noise(tmp_path, caplog):
    empty = lambda step, world: {"response_mask": np.zeros((len(world.lengths), WIDTH), bool)}  # noqa: E731
    base = record(tmp_path / "base", columns=empty)
    replay(base, tmp_path / "again", columns=empty)
    assert [one for one in caplog.records if "leaves the noise" in one.getMessage()] == []
