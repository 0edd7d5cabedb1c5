"""A step of several ranks is recorded when every rank's shard is there: real processes, races, kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.key import MAX_WORLD, Key
from rolltape.storage import LocalStorage
from rolltape.tape.commits import Committer, read_commit
from rolltape.tape_repair import repair
from tests.cli_tapes import run as command
from tests.taping import ROOT, Rollout, batch_of, files, record, same

COMMIT = "train/rollout/step_{:06d}.of{}.commit"

PROGRAM = """
import json, os, signal, sys
import rolltape
from rolltape.storage import LocalStorage, ObjectStorage
from tests.taping import batch_of

directory, (me, steps, options, die) = sys.argv[1], map(json.loads, sys.argv[2:])
kind = ObjectStorage if "://" in directory else LocalStorage
publish = kind.publish

def watched(self, name, chunks, **options):
    if die == "before commit" and name.endswith(".commit") or die == "before shard" and "/step_" in name:
        os.kill(os.getpid(), signal.SIGKILL)
    size = publish(self, name, chunks, **options)
    if name.endswith(".commit"):
        print("committed", name, flush=True)
    return size

kind.publish = watched
tape = rolltape.Tape(directory, **options)

@tape.stage("rollout")
def generate(step):
    print("ready", flush=True)
    sys.stdin.readline()               # all processes are inside the live call of the same step
    return {"by": [me], **batch_of(step)}

result = {"live": []}
stage = generate.__wrapped__
try:
    for step in steps:
        with tape.step(step):
            plan = tape.plan(step)
            result["live"].append(plan.calls_live)
            got = generate(step)
            result.setdefault("by", []).append(got["by"][0])
    tape.close()
except rolltape.RolltapeError as error:
    result["error"] = str(error)
print(json.dumps(result), flush=True)
"""


def launch(
    directory: Path | str, ranks: Iterable[int], world: int, steps: list[int], *,
    die: dict[int, str] | None = None, names: list[int] | None = None, **options: Any,
) -> tuple[list[dict[str, Any] | None], list[str]]:  # fmt: skip
    """A process per rank; each live call waits until all are in one. Results, and what was committed."""
    started = []
    for at, rank in enumerate(ranks):
        given = {"mode": "auto", "rank": rank, "world_size": world, **options}
        me = names[at] if names else rank
        arguments = [str(me), json.dumps(steps), json.dumps(given), json.dumps((die or {}).get(rank, ""))]
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(directory), *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            )
        )  # fmt: skip
    results: list[Any] = [...] * len(started)
    commits: list[str] = []
    try:
        while ... in results:
            waiting = []
            for me, process in enumerate(started):
                while results[me] is ...:
                    said = process.stdout.readline()
                    if said == "ready\n":
                        waiting.append(process)
                        break
                    if said.startswith("committed "):
                        commits.append(said.split()[1])
                    else:
                        results[me] = json.loads(said) if said else None
            for process in waiting:
                process.stdin.write("go\n")
                process.stdin.flush()
    finally:
        for process in started:
            process.kill()
            process.communicate()
    for process, result in zip(started, results, strict=True):
        assert result is not None or process.returncode == -signal.SIGKILL
    return results, commits


def by(directory: Path | str, step: int, world: int) -> list[int]:
    """Who recorded each shard."""
    shards = Key(step=step, world_size=world).shards()
    return [rolltape.open(directory).recording(key).value()["by"][0] for key in shards]


def test_sixteen_processes_commit_every_step_exactly_once(tmp_path: Path) -> None:
    """Two of them are for the same shard: one of the two is kept, and the step is complete with it."""
    ranks = [*range(15), 7]
    results, commits = launch(tmp_path / "t", ranks, 15, [0, 1], names=[*range(15), 99])
    assert not [result for result in results if result is None or "error" in result]
    assert sorted(commits) == [COMMIT.format(0, 15), COMMIT.format(1, 15)]
    assert rolltape.open(tmp_path / "t").steps() == [0, 1]
    for step in (0, 1):
        found = by(tmp_path / "t", step, 15)
        assert found[7] in (7, 99)
        assert [rank for rank in found if rank not in (7, 99)] == [rank for rank in range(15) if rank != 7]
    again, _ = launch(tmp_path / "t", range(15), 15, [0, 1], mode="replay")
    assert [result["live"] for result in again if result] == [[False, False]] * 15


def test_a_rank_that_dies_leaves_a_step_that_all_ranks_record_again(tmp_path: Path) -> None:
    launch(tmp_path / "t", range(3), 3, [0], names=[10, 11, 12])
    launch(tmp_path / "t", range(3), 3, [1], die={2: "before shard"}, names=[20, 21, 22])
    short = "rank 2 of 3 is missing at train/rollout step 1"
    found = rolltape.open(tmp_path / "t")
    assert found.steps() == [0]
    assert [str(one) for one in found.incomplete()] == [short]
    results, commits = launch(tmp_path / "t", range(3), 3, [0, 1], names=[30, 31, 32])
    assert [result["live"] for result in results if result] == [[False, True]] * 3, "all decide alike"
    assert commits == [COMMIT.format(1, 3)]
    assert by(tmp_path / "t", 1, 3) == [30, 31, 32], "nothing of the dead launch is left"
    assert [by(tmp_path / "t", 0, 3)] == [[10, 11, 12]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_kill_between_the_last_shard_and_the_commit(order: tuple[int, ...], tmp_path: Path) -> None:
    first = launch(tmp_path / "t", range(3), 3, [0], die=dict.fromkeys(range(3), "before commit"))[0]
    assert None in first, "whoever was last is dead"
    found = rolltape.open(tmp_path / "t")
    assert found.steps() == []
    assert not found.incomplete()[0].missing
    assert "no commit says" in str(found.incomplete()[0])
    if order == (1, 2, 0):  # nobody has begun anew, so that these shards are of one launch
        assert "completed, all shards are there" in command("repair", tmp_path / "t").stderr
        assert found.steps() == [0]
        return
    results, commits = launch(tmp_path / "t", order, 3, [0], names=[30, 31, 32])
    assert [result["live"] for result in results if result] == [[True]] * 3
    assert commits == [COMMIT.format(0, 3)]
    assert sorted(by(tmp_path / "t", 0, 3)) == [30, 31, 32]


def test_replay_of_an_incomplete_step_is_refused_on_every_rank_alike(tmp_path: Path) -> None:
    for rank in (0, 2):
        record(tmp_path / "t", [0], rank=rank, world_size=3)
    for rank in range(3):
        tape = rolltape.Tape(tmp_path / "t", mode="replay", rank=rank, world_size=3)
        with pytest.raises(rolltape.StepMissingError) as caught:
            Rollout(tape).run([0])
        if rank != 1:
            assert "rank 1 of 3 is missing at train/rollout step 0" in str(caught.value)
            assert "mode=auto" in str(caught.value.hint)
    for on_miss in ("live", "last", "nearest", "cycle"):
        for rank in range(3):
            tape = rolltape.Tape(tmp_path / "t", mode="replay", on_miss="live", rank=rank, world_size=3)
            assert tape.plan(0).calls_live, on_miss


def test_substitutes_are_complete_steps(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path / "t", [0, 1], rank=rank, world_size=2)
    record(tmp_path / "t", [2], rank=0, world_size=2)
    for word, source in (("last", 1), ("nearest", 1), ("cycle", 0)):
        for rank in (0, 1):
            options = {"mode": "replay", "on_miss": word, "rank": rank, "world_size": 2}
            with rolltape.Tape(tmp_path / "t", **options) as tape:
                assert tape.plan(2).source == source, (word, rank)


def test_record_over_an_incomplete_step(tmp_path: Path) -> None:
    record(tmp_path / "t", [0], rank=0, world_size=2)
    with (
        rolltape.Tape(tmp_path / "t", mode="record", rank=0, world_size=2) as tape,
        pytest.raises(rolltape.StepExistsError, match="rank 1 of 2 is missing"),
    ):
        Rollout(tape).run([0])
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", overwrite="keep", rank=rank, world_size=2) as tape:
            rollout = Rollout(tape)
            rollout.run([0])
            assert rollout.live == [0], "neither rank keeps half a step"
    assert rolltape.open(tmp_path / "t").steps() == [0]


def test_a_rewritten_step_never_mixes_old_and_new_shards(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path / "t", [0, 1], rank=rank, world_size=2)
    run = rolltape.open(tmp_path / "t")
    launch(tmp_path / "t", [0], 2, [0], mode="rewrite")
    assert run.steps() == [1]
    with pytest.raises(rolltape.StepMissingError, match="no commit says"):
        run.samples(0)
    results, commits = launch(tmp_path / "t", [1], 2, [0], mode="rewrite")
    assert not results[0].get("error")  # type: ignore[union-attr]
    assert commits == [COMMIT.format(0, 2)]
    assert run.steps() == [0, 1]
    assert len(run.samples(0)) == 8


def test_a_shard_that_replaced_another_behind_the_commit_is_not_used(tmp_path: Path) -> None:
    """An older version rewrites a shard and knows nothing of commits."""
    for name in ("t", "other"):
        for rank in (0, 1):
            record(tmp_path / name, [0], rank=rank, world_size=2)
    path = Key(step=0, rank=1, world_size=2).path
    key = Key(step=0, world_size=2)
    storage = LocalStorage(tmp_path / "t")
    saved = read_commit(storage, key)
    with rolltape.Tape(tmp_path / "t", mode="rewrite", rank=1, world_size=2) as tape:
        Rollout(tape).run([0])
    storage.publish(key.commit, [saved.to_bytes()], replace=True)  # type: ignore[union-attr]
    run = rolltape.open(tmp_path / "t")
    with pytest.raises(
        rolltape.StepMissingError, match="rank 1 of 2 is not what the step was completed with"
    ):
        run.samples(0)
    with (
        rolltape.Tape(tmp_path / "t", mode="replay", rank=1, world_size=2) as tape,
        pytest.raises(rolltape.StepMissingError, match="not what the step was completed with"),
    ):
        Rollout(tape).run([0])
    done = command("check", tmp_path / "t", "--json")
    finding = json.loads(done.stdout)["tapes"][0]["findings"][0]
    assert (finding["kind"], finding["file"]) == ("incomplete", path)


def test_one_process_alone_writes_no_commit_and_no_session(tmp_path: Path) -> None:
    record(tmp_path / "t", [0])
    assert files(tmp_path / "t") == {"tape.json", "train/rollout/step_000000.parquet"}


def test_old_tapes_without_commits_are_complete_when_all_shards_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolltape.tape.recorder.Recorder.complete", lambda *_, **__: None)
    monkeypatch.setattr("rolltape.tape.recorder.new_attempt", lambda *_: None)
    for rank in (0, 1):
        record(tmp_path / "t", range(4 - rank), rank=rank, world_size=2)
    monkeypatch.undo()
    for name in [name for name in files(tmp_path / "t") if name.endswith(".jsonl")]:
        (tmp_path / "t" / name).unlink()
    run = rolltape.open(tmp_path / "t")
    assert run.steps() == [0, 1, 2]
    assert [str(one) for one in run.incomplete()] == ["rank 1 of 2 is missing at train/rollout step 3"]
    with rolltape.Tape(tmp_path / "t", mode="replay", rank=1, world_size=2) as tape:
        assert same(Rollout(tape).run([0, 1])[1], batch_of(1))
    assert command("check", tmp_path / "t").exit_code == 1
    (tmp_path / "t" / Key(step=3, world_size=2).path).unlink()
    assert command("check", tmp_path / "t").exit_code == 0


def test_several_calls_are_complete_one_by_one_and_the_step_as_a_whole(tmp_path: Path) -> None:
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=2) as tape:
            rollout = Rollout(tape)
            for calls, step in ((2, 0), (2 - rank, 1), (1, 2)):
                with tape.step(step):
                    for _ in range(calls):
                        rollout.generate(step)
    commits = sorted(name for name in files(tmp_path / "t") if name.endswith(".commit"))
    assert commits == [
        f"train/rollout/step_00000{at}.of2.commit" for at in ("0.c1", 0, 1, 2)
    ]  # fmt: skip
    run = rolltape.open(tmp_path / "t")
    assert run.steps() == [0, 1, 2], "rank 1 went on to step 2 without a second call at step 1"
    (tmp_path / "t" / Key(step=0, call=1, rank=1, world_size=2).path).unlink()
    assert run.steps() == [1, 2]
    assert [str(one) for one in run.incomplete()] == ["rank 1 of 2 is missing at train/rollout step 0 call 1"]


def test_a_stage_that_one_rank_alone_calls_lacks_nobody(tmp_path: Path) -> None:
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=2) as tape:
            rollout, evaluate = Rollout(tape), tape.stage("evaluate")(lambda: {"score": [1.0]})
            for step in range(2):
                with tape.step(step):
                    rollout.generate(step)
                    if rank == 0:
                        evaluate()
    run = rolltape.open(tmp_path / "t")
    assert run.steps("evaluate") == [0, 1]
    assert not run.incomplete()
    with rolltape.Tape(tmp_path / "t", mode="replay", rank=0, world_size=2) as tape:
        assert tape.plan(1, "evaluate").source == 1


def test_named_calls_are_each_ranks_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=2) as tape:
            Rollout(tape).run([0], key=f"prompt-{rank}")
    assert not [name for name in files(tmp_path / "t") if name.endswith(".commit")]
    assert rolltape.open(tmp_path / "t").steps() == [0]
    assert command("check", tmp_path / "t").exit_code == 0


def test_prune_max_keep_and_repair_take_the_commit_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[str] = []
    delete = LocalStorage.delete
    delete_all = LocalStorage.delete_all
    monkeypatch.setattr(LocalStorage, "delete", lambda self, name: (gone.append(name), delete(self, name))[1])
    monkeypatch.setattr(
        LocalStorage, "delete_all", lambda self, names: (gone.extend(names), delete_all(self, names))[1]
    )
    for rank in (0, 1):
        record(tmp_path / "t", range(5), rank=rank, world_size=2, max_keep=4)
    record(tmp_path / "t", [5], rank=0, world_size=2)
    assert command("prune", tmp_path / "t", "--steps", "1", "--yes").exit_code == 0
    (tmp_path / "t" / Key(step=3, rank=1, world_size=2).path).write_bytes(b"damaged")
    done = repair(LocalStorage(tmp_path / "t"), drop=True)
    assert sorted(done.dropped) == [("train", 3), ("train", 5)]
    for step in (0, 1, 3):
        places = [gone.index(COMMIT.format(step, 2)), gone.index(Key(step=step, world_size=2).path)]
        assert places == sorted(places), step
    left = {name for name in files(tmp_path / "t") if "step_" in name}
    shards = {key.path for step in (2, 4) for key in Key(step=step, world_size=2).shards()}
    assert left == shards | {COMMIT.format(2, 2), COMMIT.format(4, 2)}
    assert command("check", tmp_path / "t").exit_code == 0


def test_repair_fetches_a_missing_shard_with_its_commit(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path / "copy", [0], rank=rank, world_size=2)
    storage, copy = LocalStorage(tmp_path / "t"), LocalStorage(tmp_path / "copy")
    storage.check_writable()
    for name in ("tape.json", Key(step=0, rank=1, world_size=2).path):
        storage.publish(name, [copy.read(name)], replace=False)
    assert rolltape.open(tmp_path / "t").steps() == []
    repair(storage, copy)
    assert rolltape.open(tmp_path / "t").steps() == [0]
    assert command("check", tmp_path / "t").exit_code == 0


def test_a_cut_takes_commits_along_and_what_it_leaves_out_is_not_missing(tmp_path: Path) -> None:
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=2) as tape:
            stage = tape.stage("rollout")(lambda rank=rank: {"uid": [f"{rank}-{row}" for row in range(3)]})
            with tape.step(0):
                stage()
    for samples, ranks in (("0-5", 2), ("0-2", 1), ("1,4", 2)):
        out = tmp_path / f"cut{samples}"
        assert command("cut", tmp_path / "t", "--steps", 0, "--samples", samples, "--out", out).exit_code == 0
        run = rolltape.open(out)
        assert run.steps() == [0], samples
        assert len(run.samples(0).files) == ranks
        assert command("check", out).exit_code == 0


def test_a_failed_commit_is_loud_and_training_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = LocalStorage.publish

    def failing(self: LocalStorage, name: str, chunks: Any, *, replace: bool) -> int:
        if name.endswith(".commit"):
            raise rolltape.StorageError("the disk is gone")
        return publish(self, name, chunks, replace=replace)

    record(tmp_path / "t", [0], rank=0, world_size=2)
    monkeypatch.setattr(LocalStorage, "publish", failing)
    with rolltape.Tape(tmp_path / "t", mode="record", on_error="warn", rank=1, world_size=2) as tape:
        Rollout(tape).run([0])
    assert tape.summary().lost == (COMMIT.format(0, 2),)
    monkeypatch.undo()
    assert rolltape.open(tmp_path / "t").steps() == []


def test_a_name_that_speaks_of_very_many_ranks_costs_nothing(tmp_path: Path) -> None:
    """Names of files may come from anyone; who completes a call stops at the first one missing."""
    storage, key = LocalStorage(tmp_path), Key(step=0, world_size=MAX_WORLD)
    assert not Committer(storage, "", "t").wrote(key, "run", "a-b")
    assert not Committer(storage, "", "t").complete(key)
