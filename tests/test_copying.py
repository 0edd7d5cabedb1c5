"""`rolltape push`, `pull` and `sync`: what is missing is copied, verified, once; what differs is named."""

import json
import os
import shutil

import numpy as np
import pytest

import rolltape
from rolltape.copying import carry_out, plan_copy
from rolltape.copying.merging import merged, whole_lines
from rolltape.errors import ConfigError, MismatchError, StorageError, TapeNotFoundError
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage
from rolltape.tape.metrics import metrics_line
from tests.cli_tapes import damage, file_of, in_terminal, record, rollout, run


@pytest.fixture
def tape(tmp_path):
    """Four rollouts with inputs, their rewards, two validation rollouts, metrics."""
    path = record(tmp_path / "a", {step: rollout(step=step) for step in range(4)}, inputs=True)
    record(path, {step: {"x": [step]} for step in range(4)}, stage="reward", metrics=False)
    return record(path, {0: rollout(), 3: rollout(2)}, split="val")


def contents(tape):
    """Every file with its bytes; hidden ones belong to the directory, not to the tape."""
    files = (path for path in tape.rglob("*") if path.is_file())
    named = {str(path.relative_to(tape)): path.read_bytes() for path in files}
    return {name: data for name, data in named.items() if not name.startswith(".")}


def more(path, steps, stage="rollout", **options):
    """Record further steps onto a tape."""
    return record(path, {step: rollout(step=step) for step in steps}, stage=stage, inputs=True, **options)


class Failing(LocalStorage):
    """A place whose disk fails for good after so many files and lines."""

    def __init__(self, root, writes):
        super().__init__(root)
        self.left = writes

    def _count(self, name):
        self.left -= 1
        if self.left < 0:
            raise StorageError("the disk has failed", where=name)

    def publish(self, name, chunks, *, replace):
        self._count(name)
        return super().publish(name, chunks, replace=replace)

    def append(self, name, line):
        self._count(name)
        super().append(name, line)


def test_a_push_makes_an_equal_tape_and_the_next_one_has_nothing_to_do(tape, tmp_path):
    done = run("push", tape, tmp_path / "b", "--json")
    assert done.exit_code == 0, done.stderr
    (copy,) = json.loads(done.stdout)["copies"]
    assert contents(tmp_path / "b") == contents(tape)
    assert len(copy["files"]) == 14
    assert copy["bytes"] == sum(
        len(data) for name, data in contents(tape).items() if name.endswith(".parquet")
    )
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "b").rglob("*.parquet")}
    (copy,) = json.loads(run("push", tape, tmp_path / "b", "--json").stdout)["copies"]
    assert (copy["files"], copy["lines"]) == ([], 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "b").rglob("*.parquet")} == before


def test_only_what_is_missing_is_copied(tape, tmp_path):
    run("push", tape, tmp_path / "b")
    more(tape, range(4, 6))
    (copy,) = json.loads(run("push", tape, tmp_path / "b", "--json").stdout)["copies"]
    names = [f"train/rollout/step_00000{step}{kind}.parquet" for step in (4, 5) for kind in (".in", "")]
    assert copy["files"] == names
    assert copy["lines"] == 2
    assert contents(tmp_path / "b") == contents(tape)


def test_a_dry_run_writes_nothing(tape, tmp_path):
    done = run("push", tape, tmp_path / "b", "--dry-run")
    assert done.exit_code == 0
    assert "would copy 14 files" in done.stderr
    assert not (tmp_path / "b").exists()


def test_pull_brings_a_tape_here_under_its_own_name(tape, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run("pull", tape).exit_code == 0
    assert contents(tmp_path / "here/a") == contents(tape)


def test_what_was_copied_replays(tape, tmp_path):
    run("push", tape, tmp_path / "b")
    shutil.rmtree(tape)
    with rolltape.Tape(tmp_path / "b", mode="replay") as copy:
        stage = copy.stage("rollout", inputs=True)(lambda step: pytest.fail("it is on the tape"))
        with copy.step(2):
            got = stage(2)
    np.testing.assert_array_equal(got["responses"], rollout(step=2)["responses"])


def test_a_compacted_tape_is_copied_as_plain_files_that_older_readers_read(tape, tmp_path):
    assert run("push", tape, tmp_path / "plain").exit_code == 0
    assert run("compact", tape, "--settled", "0", "--keep", "0").exit_code == 0
    assert json.loads((tape / "tape.json").read_text())["format"] == 2
    assert run("push", tape, tmp_path / "copy").exit_code == 0
    assert json.loads((tmp_path / "copy/tape.json").read_text())["format"] == 1
    assert run("check", tmp_path / "copy").exit_code == 0
    assert run("diff", tmp_path / "plain", tmp_path / "copy").exit_code == 0
    assert run("push", tape, tmp_path / "copy").exit_code == 0


def test_a_first_copy_that_is_ended_anywhere_is_no_tape_and_is_gone_on_with(tape, tmp_path):
    writes = 0
    while True:
        target = tmp_path / f"b{writes}"
        plan = plan_copy(LocalStorage(tape), Failing(target, writes))
        try:
            carry_out(plan)
            break
        except StorageError:
            pass
        if target.exists():
            assert not (target / "tape.json").exists()
            with pytest.raises(TapeNotFoundError):
                rolltape.open(target)
            if (target / "copying.json").exists():
                with pytest.raises(TapeNotFoundError, match="has not finished"):
                    rolltape.Tape(target, mode="record")
        assert run("push", tape, target).exit_code == 0
        assert contents(target) == contents(tape)
        shutil.rmtree(target)
        writes += 1
    assert writes == 18  # copying.json, 14 recordings, two files of metrics, tape.json


def test_a_later_copy_that_is_ended_anywhere_is_a_shorter_tape(tape, tmp_path):
    base = tmp_path / "base"
    run("push", tape, base)
    more(tape, range(4, 7))
    more(tape, range(4, 7), stage="reward", metrics=False)
    writes = 0
    while True:
        target = tmp_path / f"b{writes}"
        shutil.copytree(base, target)
        try:
            carry_out(plan_copy(LocalStorage(tape), Failing(target, writes)))
            break
        except StorageError:
            pass
        report = inspect(LocalStorage(target))
        assert [one for one in report.findings if one.kind != "leftover"] == []
        steps = rolltape.open(target).steps("rollout")
        assert steps == list(range(len(steps)))
        assert run("push", tape, target).exit_code == 0
        assert contents(target) == contents(tape)
        writes += 1
    assert writes == 12 + 3


def test_another_tape_is_refused_by_name(tape, tmp_path):
    other = record(tmp_path / "other")
    before = contents(other)
    done = run("push", tape, other)
    assert done.exit_code == 2
    assert "another tape" in done.stderr
    assert str(other) in done.stderr
    mine, theirs = (json.loads((path / "tape.json").read_text())["id"][:8] for path in (tape, other))
    assert mine in done.stderr
    assert theirs in done.stderr
    assert contents(other) == before
    assert run("sync", tape, other).exit_code == 2


def test_an_unfinished_copy_of_another_tape_is_refused(tape, tmp_path):
    with pytest.raises(StorageError):
        carry_out(plan_copy(LocalStorage(tape), Failing(tmp_path / "b", 3)))
    other = record(tmp_path / "other", {7: rollout()})
    with pytest.raises(MismatchError, match="another tape"):
        plan_copy(LocalStorage(other), LocalStorage(tmp_path / "b"))


def test_recordings_without_a_tape_are_not_taken_over(tape, tmp_path):
    run("push", tape, tmp_path / "b")
    (tmp_path / "b/tape.json").unlink()
    done = run("push", tape, tmp_path / "b")
    assert done.exit_code == 2
    assert "tape.json is missing beside" in done.stderr


@pytest.mark.parametrize("way", ["push", "pull", "sync"])
def test_a_step_that_differs_is_named_and_left_on_both_sides(tape, tmp_path, way):
    target = tmp_path / "b"
    run("push", tape, target)
    again(tape, 2)
    more(tape, [4])
    before = file_of(target, 2).read_bytes(), file_of(tape, 2).read_bytes()
    done = run(way, tape, target, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)["conflicts"]
    assert file_of("", 2).as_posix() in [conflict["file"] for conflict in found]
    assert (file_of(target, 2).read_bytes(), file_of(tape, 2).read_bytes()) == before
    assert file_of(target, 4).exists()  # the rest is copied all the same


def again(path, step):
    """Record a step again, with other numbers that take as many bytes."""
    with rolltape.Tape(path, mode="rewrite", background=False) as tape:

        @tape.stage("rollout", inputs=True)
        def call(step):
            return {**rollout(step=step), "rewards": np.arange(4, dtype=np.float32) / 8}

        with tape.step(step):
            call(step)


def test_rewrite_takes_one_side(tape, tmp_path):
    run("push", tape, tmp_path / "b")
    again(tape, 2)
    assert run("push", tape, tmp_path / "b", "--rewrite").exit_code == 0
    copied, mine = contents(tmp_path / "b"), contents(tape)
    assert {name: data for name, data in copied.items() if name.endswith(".parquet")} == {
        name: data for name, data in mine.items() if name.endswith(".parquet")
    }
    assert run("check", tmp_path / "b").exit_code == 0
    assert run("push", tape, tmp_path / "b").exit_code == 0


def test_a_flip_that_keeps_the_size_is_a_difference(tape, tmp_path):
    """The seal is compared, not the size alone."""
    run("push", tape, tmp_path / "b")
    one, other = file_of(tape, 1), file_of(tmp_path / "b", 1)
    data = bytearray(other.read_bytes())
    data[-20] ^= 1
    other.write_bytes(data)
    assert len(data) == one.stat().st_size
    assert run("push", tape, tmp_path / "b").exit_code == 1


def test_a_damaged_recording_is_not_copied_and_nothing_without_its_inputs(tape, tmp_path):
    damage(file_of(tape, 1), "rewards")
    file_of(tape, 2, suffix=".in").unlink()
    inputs = file_of(tape, 3, suffix=".in")
    inputs.write_bytes(inputs.read_bytes()[:-3])
    done = run("push", tape, tmp_path / "b", "--json")
    assert done.exit_code == 1
    said = {one["file"]: one["what"] for one in json.loads(done.stdout)["damaged"]}
    assert set(said) == {
        "train/rollout/step_000001.parquet",
        "train/rollout/step_000002.parquet",
        "train/rollout/step_000003.in.parquet",
        "train/rollout/step_000003.parquet",
    }
    assert "'rewards'" in said["train/rollout/step_000001.parquet"]
    assert rolltape.open(tmp_path / "b").steps("rollout") == [0]
    assert rolltape.open(tmp_path / "b").steps("reward") == [0, 1, 2, 3]


def test_sync_gives_each_side_what_the_other_has(tape, tmp_path):
    other = tmp_path / "b"
    run("sync", tape, other)
    more(tape, [4])
    more(other, [5])
    assert run("sync", other, tape).exit_code == 0
    left, right = contents(tape), contents(other)
    assert {name for name in left if "step_" in name} == {name for name in right if "step_" in name}
    for split in ("train", "val"):
        name = f"{split}/metrics.jsonl"
        assert sorted(whole_lines(left[name])) == sorted(whole_lines(right[name]))
    assert rolltape.open(tape).metrics() == rolltape.open(other).metrics()
    assert run("check", tape, other).exit_code == 0


def test_what_was_pruned_is_not_brought_back_and_not_pruned_elsewhere(tape, tmp_path):
    other = tmp_path / "b"
    run("push", tape, other)
    run("prune", other, "--steps", "0-1", "--stage", "rollout", "--split", "train", "--yes")
    for _ in range(3):
        assert run("sync", tape, other).exit_code == 0
        assert rolltape.open(other).steps("rollout") == [2, 3]
        assert rolltape.open(tape).steps("rollout") == [0, 1, 2, 3]
    assert run("check", tape, other).exit_code == 0
    run("push", other, tmp_path / "c")
    assert run("check", tmp_path / "c").exit_code == 0  # it knows that steps were dropped on purpose


def test_metrics_that_differ_are_named(tape, tmp_path):
    other = tmp_path / "b"
    run("push", tape, other)
    for path, value in ((tape, 1.0), (other, 2.0)):
        LocalStorage(path).append("train/metrics.jsonl", metrics_line(9, {"loss": value}))
    done = run("sync", tape, other)
    assert done.exit_code == 1
    assert "the metrics of step 9 differ" in done.stdout


def test_a_line_without_an_end_stays_behind_until_it_has_one(tape, tmp_path):
    with open(tape / "train/metrics.jsonl", "ab") as file:
        file.write(metrics_line(8, {"loss": 1.0})[:30])
    assert run("push", tape, tmp_path / "b").exit_code == 0
    assert (tmp_path / "b/train/metrics.jsonl").read_bytes().endswith(b"\n")


def test_notes_come_along_and_what_is_no_part_of_a_tape_stays(tape, tmp_path):
    (tape / "noise.json").write_text("{}")
    (tape / "accepted.jsonl").write_text('{"a":1}\n{"a":1}\n')
    (tape / "checkpoint.pt").write_bytes(b"x" * 100)
    (tape / "train/rollout/notes.txt").write_text("mine")
    (tape / ".tmp").mkdir(exist_ok=True)
    (tape / ".tmp/x.tmp").write_text("half")
    done = run("push", tape, tmp_path / "b", "--json")
    (copy,) = json.loads(done.stdout)["copies"]
    assert sorted(copy["foreign"]) == ["checkpoint.pt", "train/rollout/notes.txt"]
    there = contents(tmp_path / "b")
    assert there["noise.json"] == b"{}"
    assert there["accepted.jsonl"] == b'{"a":1}\n{"a":1}\n'
    assert "checkpoint.pt" not in there
    assert not list((tmp_path / "b").rglob("x.tmp"))


def test_a_copy_onto_itself_is_refused(tape):
    for place in (tape, tape / "inside", tape.parent):
        with pytest.raises(ConfigError, match="itself"):
            plan_copy(LocalStorage(tape), LocalStorage(place))


def test_two_copies_at_once_are_one_copy(tape, tmp_path):
    first, second = (plan_copy(LocalStorage(tape), LocalStorage(tmp_path / "b")) for _ in range(2))
    carry_out(first)
    carry_out(second)
    assert contents(tmp_path / "b") == contents(tape)
    more(tape, [4])
    first, second = (plan_copy(LocalStorage(tape), LocalStorage(tmp_path / "b")) for _ in range(2))
    carry_out(first)
    carry_out(second)
    assert contents(tmp_path / "b") == contents(tape)


def test_a_file_that_is_read_back_otherwise_is_an_error(tape, tmp_path):
    class Lying(LocalStorage):
        def read(self, name, *args, **options):
            data = super().read(name, *args, **options)
            return data if "reward" not in name else data[:-1] + b"!"

    with pytest.raises(StorageError, match="read back"):
        carry_out(plan_copy(LocalStorage(tape), Lying(tmp_path / "b")))
    assert not (tmp_path / "b/tape.json").exists()


def test_the_bar_is_shown_on_a_terminal(tape, tmp_path):
    code, screen = in_terminal("push", tape, tmp_path / "b", columns=200)
    assert code == 0
    assert "copied 14 files" in screen
    assert os.fspath(tape) in screen


@pytest.mark.parametrize(
    ("mine", "theirs", "missing"),
    [
        (b"abc", b"", b"abc"),
        (b"abc", b"abc", b""),
        (b"abc", b"b", b"ac"),
        (b"aab", b"a", b"ab"),
        (b"a", b"abc", b""),
        (b"", b"abc", b""),
    ],
)
def test_lines_are_added_once_each(mine, theirs, missing):
    found = merged("accepted.jsonl", [bytes([c]) for c in mine], [bytes([c]) for c in theirs])
    assert b"".join(found.missing) == missing
    assert found.conflict is None


def test_the_lines_about_runs_keep_their_order():
    assert merged("runs.jsonl", [b"a", b"b"], [b"a"]).missing == (b"b",)
    assert merged("runs.jsonl", [b"a"], [b"a", b"b"]).missing == ()
    assert merged("runs.jsonl", [b"a", b"b"], [b"a", b"c"]).conflict is not None
