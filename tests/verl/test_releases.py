"""The releases of verl that people run: each keeps the contract of docs/compatibility.md, without an edit.

Each is an overlay over the stack. The trainer is the release's own, its program and its `fit()`; the
workers are the smallest that it runs with (releases/rolltape_standin.py). `make compat` runs all releases,
`make test` an old one and the newest, for which tests/verl/test_real_trainer.py runs verl's real workers too.
"""

import itertools
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rolltape import Tape
from tests.verl.releases import running
from tools import overlays

NEWEST = f"verl-{metadata.version('verl')}"
"""The stack itself."""
RELEASES = [*(name for name in overlays.OVERLAYS if name.startswith("verl-")), NEWEST]
CHOSEN = os.environ.get("ROLLTAPE_COMPAT", f"verl-0.8.0,{NEWEST}").split(",")
WORKLOAD = Path(__file__).parent / "cpu/workload.py"
V1 = ("0.6", "0.7")
WITHOUT_DUMPS = "0.7.0"
"""Its agent loops generate, and its own V1 is still under the workers: it never dumps anything."""


class Release:
    """One release: where it lies, and what the scenarios with it did."""

    def __init__(self, name, work):
        self.version = name.removeprefix("verl-")
        self.overlay = "" if name == NEWEST else str(overlays.ensure(name))
        self.work = work
        self.python(WORKLOAD, work)
        self.python(running.HERE / "scenarios.py", work, work / "results.json")
        self.did = json.loads((work / "results.json").read_text())

    def python(self, *command):
        paths = [self.overlay, str(running.SOURCE), str(running.HERE)]
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("ROLLTAPE_", "VERL_"))}
        env = ours | {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "VERL_USE_EXTERNAL_MODULES": "rolltape_standin", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-W", "ignore", *map(str, command)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=running.TIMEOUT)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    def metrics(self, name):
        """What was logged at each step, without times."""
        lines = (self.work / name / "metrics.jsonl").read_text().splitlines()
        return [running._exact(json.loads(line)["data"]) for line in lines]

    def cents(self, name):
        """The part of the validation's rewards that comes from answers; the rest is random."""
        (key,) = {key for metrics in self.metrics(name) for key in metrics if key.startswith("val-core")}
        return [round(400 * metrics[key]) % 100 for metrics in self.metrics(name)]

    def steps(self, tape):
        with Tape(self.work / tape, mode="replay") as found:
            return [(at.key.split, at.key.step, at.key.call) for at in found.recordings()]


@pytest.fixture(scope="module", params=[name for name in RELEASES if name in CHOSEN])
def release(request, tmp_path_factory):
    return Release(request.param, tmp_path_factory.mktemp(request.param))


def test_every_release_that_is_named_is_known():
    assert set(CHOSEN) <= set(RELEASES)


def test_recorded_and_replayed_with_no_skip_configuration(release):
    recorded, replayed = release.did["record"], release.did["replay"]
    assert (recorded["error"], recorded["generated"]) == (None, 4)
    assert (replayed["error"], replayed["generated"]) == (None, 0)
    assert replayed["weights"] == recorded["weights"]
    assert release.steps("tape") == [("train", step, 0) for step in (1, 2, 3, 4)]
    assert release.metrics("replay") == release.metrics("record")


def test_a_run_is_resumed_in_the_middle(release):
    resumed = release.did["resume"]
    assert (resumed["error"], resumed["generated"]) == (None, 0)
    assert resumed["weights"] == release.did["record"]["weights"][2:]


def test_a_missing_step_is_an_error(release):
    missing = release.did["missing"]
    assert missing["error"].startswith("StepMissingError: step 5")
    assert missing["generated"] == 0


def test_prompts_and_sampling_are_checked(release):
    assert release.did["other-prompts"]["error"].startswith("MismatchError")
    assert "prompts" in release.did["other-prompts"]["error"]
    assert "temperature" in release.did["other-model"]["error"]
    assert release.did["other-prompts"]["generated"] == release.did["other-model"]["generated"] == 0


def test_an_interrupted_run_is_taken_up(release):
    cut, taken_up = release.did["interrupted"], release.did["taken-up"]
    assert cut["error"] == "RuntimeError: the engine went away"
    assert (taken_up["error"], taken_up["generated"]) == (None, 2)
    assert taken_up["weights"][0] == cut["weights"][0]


def test_by_the_configuration_keys_of_the_release(release):
    """V1 records one step and plays it at every other; V2 and SkipManager record each."""
    for name in ("cache", "switch"):
        first, again = release.did[f"{name}-first"], release.did[f"{name}-again"]
        assert (first["error"], again["error"], again["generated"]) == (None, None, 0)
        assert again["weights"] == first["weights"]
        assert first["generated"] == (1 if release.version.startswith(V1) else len(first["weights"]))


def test_answers_go_with_the_responses_that_are_played(release):
    """Scores of a step that plays another are those of that step: the trainer has its answers too."""
    name = "cache-first" if release.version.startswith(V1) else "val-own-keys"
    scores = [
        metrics["critic/score/mean"] for metrics in release.metrics(name) if "critic/score/mean" in metrics
    ]
    assert len(scores) >= 3
    assert set(scores) == {scores[0]}


def test_validation_keeps_its_own_answers_where_steps_are_repeated(release):
    done = release.did["val-own-keys"]
    assert (done["error"], done["generated"], done["validated"]) == (None, 1, 4)
    if release.version.startswith(
        "0.6"
    ):  # where the trainer scores, and answers are in the cents of its reward
        assert release.cents("val-own-keys") == release.cents("val-live")


def test_the_three_actions_of_v2(release):
    if not release.version.startswith("0.8"):
        assert "repeat-first" not in release.did
        return
    moved = {}
    for action in ("repeat", "repeat_last"):
        first, again = release.did[f"{action}-first"], release.did[f"{action}-again"]
        assert (first["generated"], again["generated"], again["weights"]) == (2, 0, first["weights"])
        weights = [1.0, *map(float.fromhex, first["weights"])]
        moved[action] = [round(after - before, 9) for before, after in itertools.pairwise(weights)]
    one, two, *rest = moved["repeat"]
    assert rest == [one, two, one]
    one, two, *rest = moved["repeat_last"]
    assert rest == [two] * 3


def test_several_generations_of_a_step(release):
    first, again = release.did["calls-first"], release.did["calls-again"]
    assert (first["error"], first["generated"], again["generated"]) == (None, 6, 0)
    assert again["weights"] == first["weights"]
    assert release.steps("calls") == [("train", step, call) for step in (1, 2, 3) for call in (0, 1)]


def test_validation_is_apart(release):
    live, first, again = (release.did[f"val-{name}"] for name in ("live", "first", "again"))
    assert live["validated"] == first["validated"] == 4
    assert (again["error"], again["validated"], again["generated"]) == (None, 0, 0)
    assert release.steps("val") == [("train", step, 0) for step in (1, 2, 3)]
    assert [at for at in release.steps("val2") if at[0] == "val"] == [
        ("val", step, 0) for step in (0, 1, 2, 3)
    ]


def test_off_is_untouched(release):
    """Also with the release's own skip switched on: it does what it always did."""
    assert (release.did["off"]["error"], release.did["off"]["generated"]) == (None, 3)
    assert release.did["off-own-keys"]["error"] is None
    assert release.did["class-stays"]
    assert not list((release.work / "theirs").rglob("*.parquet"))
    assert bool(list((release.work / "theirs").rglob("*"))) == (release.version != WITHOUT_DUMPS)


def test_old_dumps_are_named_and_imported_and_replayed(release):
    """What the release's own skip left behind: reported where the tape would be, and a tape once imported."""
    if release.version == WITHOUT_DUMPS:
        assert "imported" not in release.did
        return
    theirs, replayed = release.did["off-own-keys"], release.did["imported"]
    assert (replayed["error"], replayed["generated"]) == (None, 0)
    assert replayed["weights"] == theirs["weights"][:1]
    assert "rolltape import" in release.did["named"]
    assert str(release.work / "theirs") in release.did["named"]
    again = release.did["imported-by-keys"]
    assert (again["error"], again["weights"][:1]) == (None, theirs["weights"][:1])
    assert again["generated"] == (
        0 if release.version.startswith(V1) else 2 if release.version == "0.8.0" else 0
    )


def test_agent_loops_where_workers_are_the_rule(release):
    if not release.version.startswith("0.6"):
        assert "loops-first" not in release.did
        return
    first, again = release.did["loops-first"], release.did["loops-again"]
    assert (first["error"], first["generated"], again["generated"]) == (None, 1, 0)
    assert again["weights"] == first["weights"]


def test_the_whole_program_through_ray_and_hydra(release):
    """The trainer runs in a Ray worker; nothing but `rolltape run`, then nothing but the environment."""
    tape, use = release.work / "whole", {"overlay": release.overlay}
    command = [sys.executable, "-m", "rolltape", "run", "--mode", "record", "--dir", str(tape), "--"]
    own = ["trainer.use_v1=False"] if release.version.startswith("0.9") else []
    recorded = running.run(release.work, "whole-record", *own, command=command, **use)
    assert (recorded.code, recorded.generated) == (0, 3), recorded.output[-4000:]
    assert "has 3 recordings, 3 of them new" in recorded.output
    env = {"ROLLTAPE_DIR": str(tape), "ROLLTAPE_MODE": "replay"}
    replayed = running.run(release.work, "whole-replay", *own, **use, **env)
    assert (replayed.code, replayed.generated) == (0, 0), replayed.output[-4000:]
    assert (replayed.weights, replayed.metrics) == (recorded.weights, recorded.metrics)
