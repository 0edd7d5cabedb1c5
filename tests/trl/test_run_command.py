"""`rolltape run` over scripts that know nothing of tapes: TRL's trainers are on its tape, without an edit."""

from __future__ import annotations

import json
import sys

import pytest

from rolltape import Tape
from tests.trl.test_processes import LAUNCHERS, python

SCRIPT = """
import json, sys
import torch
torch.set_num_threads(1)
from tests.trl.training import build, refuse, run
{before}
model, folder, kind, mode = sys.argv[1:5]
if mode == "replay":
    from trl import GRPOTrainer, RLOOTrainer
    GRPOTrainer._generate_single_turn = RLOOTrainer._generate_single_turn = refuse
trainer = build(model, folder, kind, max_steps=2)
{after}
found = run(trainer)
if trainer.accelerator.is_main_process:
    print(json.dumps([found.weights, found.logs]))
"""


@pytest.fixture
def run(model, tmp_path):
    """Runs a script with a tape under it; what it printed, and what was said."""

    def run(mode, kind="grpo", before="", after="", start=(), tape="tape"):
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.format(before=before, after=after))
        command = ["-m", "rolltape", "run", "--mode", mode, "--dir", tmp_path / tape, "--", sys.executable]
        done = python(*command, *start, script, model, tmp_path / mode, kind, mode)
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_a_script_is_recorded_and_replayed_as_it_is(run, kind, tmp_path):
    recorded, said = run("record", kind)
    assert f"uses tape {tmp_path / 'tape'}, mode record" in said
    assert run("replay", kind)[0] == recorded
    with Tape(tmp_path / "tape", mode="replay") as tape:
        assert [at.key.step for at in tape.recordings() if at.key.stage == "rollout"] == [0, 1]
        assert list(tape.metrics()) == [0, 1]


def test_every_process_of_a_launcher_is_on_the_tape(run, tmp_path, unused_tcp_port):
    start = [*LAUNCHERS["accelerate launch"], unused_tcp_port]
    recorded, _ = run("record", start=start)
    assert run("replay", start=start)[0] == recorded
    with Tape(tmp_path / "tape", mode="replay", rank=1, world_size=2) as tape:
        steps = [at.key.step for at in tape.recordings() if at.key.stage == "rollout"]
        assert sorted(steps) == [0, 0, 1, 1]  # a shard of each


OWN = "import rolltape; from rolltape.integrations.trl import install, instrument; tape = {}"
ENV = OWN.format("rolltape.Tape.from_env()")


@pytest.mark.parametrize(
    ("before", "after", "start"),
    [
        (ENV, "assert instrument(trainer, tape) is tape", ()),
        (ENV + "\nimport trl\ninstall(tape)", "assert trainer._rolltape is tape", ()),
        ("", "", ("-m", "rolltape.integrations.trl")),
    ],
    ids=["instrument", "install", "as a module"],
)
def test_a_script_that_puts_its_trainer_on_the_tape_itself_still_does(run, tmp_path, before, after, start):
    script = {"before": before, "after": after, "start": start}
    recorded, _ = run("record", **script)
    assert run("replay", **script)[0] == recorded
    with Tape(tmp_path / "tape", mode="replay") as tape:
        assert [at.key.path for at in tape.recordings() if at.key.call] == []  # nothing twice


def test_a_tape_that_the_script_says_is_off_stays_off(model, run, tmp_path):
    own = OWN.format("rolltape.Tape(mode='off')")
    with pytest.raises(AssertionError, match="the command opened no tape"):
        run("record", before=own, after="instrument(trainer, tape)")
    assert not (tmp_path / "tape").exists()


def test_off_leaves_trl_alone(run):
    live, said = run("off", after="assert type(trainer).train.__module__ == 'transformers.trainer'")
    assert "uses tape" not in said
    assert run("record", tape="other")[0] == live
