"""The first divergence is the earliest event: probes where they ran, columns as returned, calls in turn."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rolltape
from rolltape.storage import LocalStorage
from rolltape.tape.recording import Recording
from tests.cli_tapes import run


def write(path, wrong=(), **options):
    """A step in which probes run inside a stage; what is in ``wrong`` is off by one."""

    def number(name, size=3):
        return np.arange(1, size + 1, dtype=np.float32) + (1 if name in wrong else 0)

    with rolltape.Tape(path, **options) as tape:

        @tape.stage("forward", replay=False)
        def forward():
            tape.probe("a_layer", number("layer"))
            tape.probe("b_head", number("head"))
            return {
                "uid": list("abc"),
                "names": ["x", "y", "z2" if "names" in wrong else "z"],
                "ragged": [number("ragged", n) for n in (1, 2, 3)],
                "dense": number("dense"),
                "text": [f"{n}" for n in number("text")],
                "late": number("late"),
            }

        @tape.stage("aaa", replay=False)
        def after():
            tape.probe("z_inner", number("inner"))
            return {"uid": list("abc"), "x": number("after")}

        for step in range(2):
            with tape.step(step):
                tape.probe("before", number("before"))
                forward()
                tape.probe("between", number("between"))
                after()
                tape.log({"loss": float(number("metric")[0])})
    return path


ORDER = ["before", "layer", "head", "names", "ragged", "dense", "text", "late", "between", "inner", "after",
         "metric"]  # fmt: skip
PATHS = {
    "before": "probe.before/value", "layer": "probe.a_layer/value", "head": "probe.b_head/value",
    "names": "forward/names", "ragged": "forward/ragged", "dense": "forward/dense", "text": "forward/text",
    "late": "forward/late", "between": "probe.between/value", "inner": "probe.z_inner/value",
    "after": "aaa/x", "metric": "metrics/loss",
}  # fmt: skip


@pytest.mark.parametrize("at", range(len(ORDER) - 1))
def test_of_two_differences_the_earlier_one_is_first(tmp_path, at):
    base = write(tmp_path / "a", mode="record")
    for later in ORDER[at + 1 :]:
        new = write(tmp_path / f"b-{later}", wrong=(ORDER[at], later), mode="record")
        found = rolltape.compare(base, new)
        assert found.first.path == PATHS[ORDER[at]], later


def test_a_replay_has_the_same_order(tmp_path):
    base = write(tmp_path / "a", mode="record")
    write(base, wrong=("head", "late"), mode="replay", out=tmp_path / "b")
    assert rolltape.compare(base, tmp_path / "b").first.path == "probe.b_head/value"
    assert rolltape.open(base).stages() == rolltape.open(tmp_path / "b").stages()


def test_columns_are_stored_as_they_were_returned(tmp_path):
    base = rolltape.open(write(tmp_path / "a", mode="record"))
    assert list(base.samples(0, "forward").columns) == ["uid", "names", "ragged", "dense", "text", "late"]


def alternating(path, wrong=(), **options):
    """Two stages that are called in turn, for each mini-batch: what one gets wrong shows in the next pass."""
    with rolltape.Tape(path, **options) as tape:
        forward = tape.stage("forward", replay=False)(lambda uid, x: {"uid": uid, "logits": x})
        loss = tape.stage("loss", replay=False)(lambda uid, x: {"uid": uid, "x": x})
        for step in range(2):
            with tape.step(step):
                for call in range(3):
                    uid = [f"{call}.{at}" for at in range(2)]
                    off = [np.float32((name, call) in wrong) for name in ("forward", "loss")]
                    x = np.ones(2, np.float32) + call
                    forward(uid, x + off[0])
                    loss(uid, 2 * x + off[1])
    return path


def test_of_calls_that_alternate_the_first_wrong_one_is_named(tmp_path):
    base = alternating(tmp_path / "a", mode="record")
    new = alternating(tmp_path / "b", [("loss", 0), ("forward", 1), ("loss", 2)], mode="record")
    first = rolltape.compare(base, new).first
    assert (first.path, first.first.sample) == ("loss/x", ("0.0", 0))
    new = alternating(tmp_path / "c", [("forward", 1), ("loss", 1)], mode="record")
    assert rolltape.compare(base, new).first.path == "forward/logits"


def test_tapes_without_the_order_keep_that_in_which_calls_began(tmp_path):
    base, new = write(tmp_path / "a", mode="record"), write(tmp_path / "b", ("head", "late"), mode="record")
    for tape in (base, new):
        for recording in list(rolltape.open(tape).recordings()):
            file = recording.open_whole()
            pieces = file.subset(range(file.samples), order=None)
            LocalStorage(str(tape)).publish(recording.key.path, pieces, replace=True)
            assert Recording(LocalStorage(str(tape)), recording.key).about.order is None
    assert rolltape.open(base).stages()[:4] == ["probe.before", "forward", "probe.a_layer", "probe.b_head"]
    assert rolltape.compare(base, new).first.path == "forward/late"


@pytest.mark.parametrize("since", range(6))
def test_tensors_and_numbers_of_no_sample_come_as_they_were_returned(tmp_path, since):
    shapes = {"loss": None, "weight": (4, 5), "bias": (4,), "head": (3, 4), "lr": None, "last": (4, 2)}

    def update(path, wrong):
        random = np.random.default_rng(0)
        made = {
            name: float(random.normal()) if not of else random.normal(size=of) for name, of in shapes.items()
        }
        made = {name: 2 * value if name in wrong else value for name, value in made.items()}
        with rolltape.Tape(path, mode="record", background=False) as tape, tape.step(0):
            tape.stage("rollout")(lambda: {"uid": list("abcdef"), "x": np.arange(6.0)})()
            tape.stage("update")(lambda: made)()
        return path

    base, new = update(tmp_path / "a", ()), update(tmp_path / "b", [*shapes][since:])
    assert rolltape.compare(base, new).first.path == f"update/{[*shapes][since]}"


# -- made here, or carried ----------------------------------------------------------------------------------


def drift(path, *, state, off=None, start=1.0, first=0, **options):
    """A run whose weight moves a little in every step; ``off`` is a step that moves it too far."""
    weight = start
    with rolltape.Tape(path, **options) as tape:
        rollout = tape.stage("rollout")(lambda: {"uid": list("ab"), "x": np.arange(2.0) + 1})
        keep = tape.stage("state")(lambda: {"w": np.array([weight])})
        loss = tape.stage("loss", replay=False)(lambda b: {"uid": b["uid"], "y": b["x"] * weight})
        for step in range(first, 4):
            with tape.step(step):
                if state:
                    keep()
                loss(rollout())
                weight += 0.5 + (1.0 if step == off else 0.0)
    return path


def origins(base, new, *options):
    document = json.loads(run("diff", base, new, "--json", *options).stdout)
    return {one["step"]: one["origin"] for one in document["steps"]}


def test_the_first_step_that_diverges_is_not_to_blame_where_its_state_differs(tmp_path):
    base = drift(tmp_path / "a", state=True, mode="record")
    new = drift(tmp_path / "b", state=True, off=1, mode="record")
    assert origins(base, new) == {0: "", 1: "", 2: "carried from before", 3: "carried from before"}


def test_nor_where_nothing_tells_what_its_state_was(tmp_path):
    base = drift(tmp_path / "a", state=False, mode="record")
    new = drift(tmp_path / "b", state=False, off=1, mode="record")
    unknown = "made here or carried"
    assert origins(base, new) == {0: "", 1: "", 2: unknown, 3: unknown}


def test_the_first_step_of_all_is_where_its_rollouts_are_the_same(tmp_path):
    base = drift(tmp_path / "a", state=False, mode="record")
    new = drift(tmp_path / "b", state=False, start=2.0, mode="record")
    assert origins(base, new)[0] == "made here"
    assert origins(base, new, "--steps", "2-")[2] == "made here or carried"
