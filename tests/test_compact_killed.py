"""A compaction that is killed anywhere leaves every recording readable, once; the next one finishes it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rolltape
from rolltape.storage import LocalStorage, storage_at
from rolltape.tape.compaction import compact
from tests.compacting import Died, Dying, around, everything, findings, folded, plain, segments
from tests.taping import ROOT, batch_of, record


def fresh(directory: Path) -> None:
    """Nothing is folded."""
    with rolltape.Tape(directory, mode="record") as tape:
        rollout = tape.stage("rollout", inputs=True)(batch_of)
        reward = tape.stage("reward")(lambda step: [step] if step < 2 else ["x"])
        for step in range(4):
            with tape.step(step):
                rollout(step)
                reward(step)


def half_folded(directory: Path) -> None:
    """Some is folded, some of that is pruned, some is written anew, and more was recorded."""
    record(directory, range(8))
    folded(directory, size=30_000)
    with rolltape.Tape(directory, mode="rewrite") as tape:
        stage = tape.stage("rollout")(lambda step: batch_of(100 + step))
        for step in (2, 6, 7):
            with tape.step(step):
                stage(step)
    storage_at(directory).delete_all(["train/rollout/step_000000.parquet"])
    record(directory, range(8, 12))


@pytest.mark.parametrize("begin", [fresh, half_folded])
@pytest.mark.parametrize("size", [20_000, 10**8])
def test_killed_after_any_change(tmp_path: Path, begin: Callable[[Path], None], size: int) -> None:
    begin(tmp_path / "tape")
    before = everything(tmp_path / "tape")
    options = {"keep": 0, "settled": 0, "size": size}
    for changes in range(1000):
        directory = tmp_path / str(changes)
        shutil.copytree(tmp_path / "tape", directory)
        try:
            compact(around(Dying(LocalStorage(directory), changes)), **options)
        except Died:
            killed = True
        else:
            killed = False
        assert everything(directory) == before, changes
        folded(directory, size=size)
        assert everything(directory) == before, changes
        assert findings(directory) == [], changes
        named = {tmp_path / str(changes) / name for name in storage_at(directory).index().segments}
        orphans = len(set(segments(directory)) - named)
        assert storage_at(directory).clean(-10) == orphans
        assert set(segments(directory)) == named
        shutil.rmtree(directory)
        if not killed:
            break
    assert changes > 8


@pytest.mark.parametrize("begin", [fresh, half_folded])
def test_deletions_that_are_killed_leave_what_is_not_deleted(
    tmp_path: Path, begin: Callable[[Path], None]
) -> None:
    begin(tmp_path / "tape")
    folded(tmp_path / "tape", keep=1)
    before = everything(tmp_path / "tape")
    doomed = [name for name in before if "/step_" in name][::2]
    kept = {name: data for name, data in before.items() if name not in doomed}
    for changes in range(1000):
        directory = tmp_path / str(changes)
        shutil.copytree(tmp_path / "tape", directory)
        try:
            around(Dying(LocalStorage(directory), changes)).delete_all(doomed)
        except Died:
            left = everything(directory)
            assert left.items() >= kept.items()
            assert left.items() <= before.items(), "what is left is what it was"
            storage_at(directory).delete_all(doomed)
            assert everything(directory) == kept
            shutil.rmtree(directory)
            continue
        assert everything(directory) == kept
        break
    assert changes > 2


def test_a_process_that_is_killed_for_real(tmp_path: Path) -> None:
    """As soon as a file comes or goes, at another place each time."""
    record(tmp_path / "tape", range(40))
    before = everything(tmp_path / "tape")
    script = (
        "import sys; from rolltape.storage import storage_at; from rolltape.tape.compaction import compact;"
        "print('ready', flush=True); compact(storage_at(sys.argv[1]), keep=0, settled=0, size=60_000)"
    )
    for turn in range(3):
        directory = tmp_path / str(turn)
        shutil.copytree(tmp_path / "tape", directory)
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(directory)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        while len(segments(directory)) < turn // 2 + 1 and process.poll() is None:
            pass
        while turn % 2 and len(plain(directory)) > 36 - turn and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert everything(directory) == before
        assert findings(directory) == []
        folded(directory, size=60_000)
        assert everything(directory) == before
        assert plain(directory) == []
