"""`rolltape prune` deletes what was asked for, with its inputs, and nothing unasked."""

import subprocess
import sys

import pytest

from rolltape.cli.commands.prune import steps_to_drop
from rolltape.errors import StorageError
from rolltape.steps import StepSelector
from rolltape.storage import LocalStorage
from tests.cli_tapes import file_of, in_terminal, record, rollout, run
from tests.storing import needs_proc


@pytest.fixture
def tape(tmp_path):
    """Ten rollouts with inputs, ten rewards, two validation rollouts."""
    path = record(tmp_path / "t", {step: {"x": [step]} for step in range(10)}, inputs=True)
    record(path, {step: {"x": [step]} for step in range(10)}, stage="reward", metrics=False)
    return record(path, {0: rollout(), 5: rollout()}, split="val")


def steps(tape, stage="rollout", split="train", suffix=""):
    names = [file.name for file in (tape / split / stage).iterdir()]
    inputs = [name for name in names if name.endswith(".in.parquet")]
    wanted = inputs if suffix else [name for name in names if name not in inputs]
    return sorted(int(name.split(".")[0].removeprefix("step_")) for name in wanted)


def files(tape):
    return sorted(str(path) for path in tape.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("keep", "chosen", "pin", "dropped"),
    [
        (None, None, "", []),
        (3, None, "", [0, 1, 2, 3, 4, 5, 6]),
        (0, None, "", list(range(10))),
        (20, None, "", []),
        (3, None, "0,9", [1, 2, 3, 4, 5]),
        (None, "2-4", "", [2, 3, 4]),
        (None, "2-4", "3", [2, 4]),
        (2, "5-", "", [5, 6, 7]),
        (None, "50-", "", []),
    ],
)
def test_which_steps_go(keep, chosen, pin, dropped):
    selected = None if chosen is None else StepSelector.parse(chosen)
    assert sorted(steps_to_drop(range(10), keep, selected, StepSelector.parse(pin))) == dropped


def test_old_steps_go_with_their_inputs_and_metrics_stay(tape):
    metrics = (tape / "train/metrics.jsonl").read_text()
    done = run("prune", tape, "--keep", 2, "--pin", 0, "--split", "train", "--yes")
    assert done.exit_code == 0
    assert steps(tape) == [0, 8, 9]
    assert steps(tape, suffix=".in") == [0, 8, 9]
    assert steps(tape, "reward") == [0, 8, 9]
    assert steps(tape, split="val") == [0, 5]
    assert (tape / "train/metrics.jsonl").read_text() == metrics
    assert run("check", tape).exit_code == 0


def test_one_stage_can_be_chosen(tape):
    run("prune", tape, "--steps", "0-6", "--stage", "reward", "--yes")
    assert steps(tape, "reward") == [7, 8, 9]
    assert steps(tape) == list(range(10))


def test_a_dry_run_says_how_much_and_deletes_nothing(tape):
    before = files(tape)
    size = sum(file_of(tape, 0, stage, suffix=s).stat().st_size for stage, s in
               (("rollout", ""), ("rollout", ".in"), ("reward", "")))  # fmt: skip
    done = run("prune", tape, "--steps", "0", "--split", "train", "--dry-run")
    assert done.exit_code == 0
    assert "nothing was deleted" in done.stderr
    assert size > 1000
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith("train/")}
    assert rows["train/rollout"][1:3] == ["0", "2"]
    assert rows["train/reward"][1:3] == ["0", "1"]
    assert files(tape) == before


def test_without_a_terminal_it_wants_yes(tape):
    before = files(tape)
    done = run("prune", tape, "--keep", 1, input="y\n")
    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert files(tape) == before


@pytest.mark.parametrize(
    ("answer", "left"), [(b"n\n", list(range(10))), (b"\n", list(range(10))), (b"y\n", [9])]
)
def test_in_a_terminal_it_asks(tape, answer, left):
    code, screen = in_terminal("prune", tape, "--keep", 1, answer=answer)
    assert code == 0
    assert f"from {tape}?" in screen.replace("\r\n", "")
    assert steps(tape) == left


@needs_proc
def test_leftovers_of_dead_processes_go_without_asking(tape):
    code = "from rolltape.storage import posix; print(posix.temporary_name())"
    dead = tape / ".tmp" / subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    dead.parent.mkdir(exist_ok=True)
    dead.write_bytes(b"half")
    assert "1 leftover" in run("prune", tape, "--dry-run").stderr
    assert dead.exists()
    assert "removed 1 leftover" in run("prune", tape).stderr
    assert not dead.exists()
    assert steps(tape) == list(range(10))


def test_inputs_without_a_result_can_be_pruned(tape):
    file_of(tape, 4).unlink()
    assert run("check", tape).exit_code == 1
    run("prune", tape, "--steps", "4", "--yes")
    assert steps(tape, suffix=".in") == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert run("check", tape).exit_code == 0


def test_results_go_before_their_inputs(tape, monkeypatch):
    """Whoever stops in the middle leaves inputs without a result, never a result without inputs."""
    deleted = []
    monkeypatch.setattr(LocalStorage, "delete_all", lambda self, names: deleted.extend(names))
    run("prune", tape, "--keep", 8, "--stage", "rollout", "--split", "train", "--yes")
    kinds = [name.endswith(".in.parquet") for name in deleted]
    assert kinds == [False, False, True, True]


def test_nothing_to_delete_is_fine(tape):
    done = run("prune", tape, "--keep", 100, "--yes")
    assert done.exit_code == 0
    assert "no recordings to delete" in done.stderr


def test_a_failure_is_an_error(tape, monkeypatch):
    def refuse(self, names):
        raise StorageError("could not delete the file", where=names[0])

    monkeypatch.setattr(LocalStorage, "delete_all", refuse)
    done = run("prune", tape, "--keep", 1, "--yes")
    assert done.exit_code == 2
    assert "could not delete the file" in done.stderr
