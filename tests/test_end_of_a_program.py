"""A program that ends, forks, or dies with a tape open: what was recorded is on disk, and whole."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import rolltape
from tests.storing import needs_proc
from tests.taping import ROOT, Rollout, files, record

FIRST = "train/rollout/step_000000.parquet"


def python(code: str, *args: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of its own."""
    program = "import sys, os, rolltape\nfrom tests.taping import Rollout\n" + textwrap.dedent(code)
    command = [sys.executable, "-c", program, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)


SLOW_DISK = """
import threading, time
from rolltape.storage import LocalStorage
publish = LocalStorage.publish
main = threading.main_thread()
def late(self, name, chunks, *, replace):
    # Nothing is written before the program's last line has run.
    while name.endswith(".parquet") and not done.is_set() and main.is_alive(): done.wait(0.01)
    return publish(self, name, chunks, replace=replace)
LocalStorage.publish = late
done = threading.Event()
"""


@pytest.mark.parametrize(
    "end",
    [
        "done.set()",
        "done.set(); sys.exit(3)",
        "done.set(); del tape; import gc; gc.collect()",
        "done.set(); 1/0",
    ],
)
def test_a_program_that_never_closes_its_tape_loses_nothing(tmp_path: Path, end: str) -> None:
    ran = python(
        SLOW_DISK + f"tape = rolltape.Tape(sys.argv[1], mode='record'); Rollout(tape).run(range(3)); {end}",
        tmp_path / "t",
    )
    assert ran.returncode == {"d": 0, "s": 3}.get(end.rpartition("; ")[2][0], 0 if "gc" in end else 1), (
        ran.stderr
    )
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        Rollout(tape).run(range(3))
    assert "1/0" in end or not ran.stderr


def test_a_failure_at_the_very_end_is_seen(tmp_path: Path) -> None:
    ran = python(
        """
        from rolltape.storage import LocalStorage
        publish = LocalStorage.publish
        def fail(self, name, chunks, *, replace):
            if name.endswith(".parquet"): raise OSError("the disk is gone")
            return publish(self, name, chunks, replace=replace)
        LocalStorage.publish = fail
        tape = rolltape.Tape(sys.argv[1], mode="record")
        with tape.step(0):
            tape.stage("rollout")(lambda: [1])()
        """,
        tmp_path / "t",
    )
    assert "step_000000.parquet could not be recorded: the disk is gone" in ran.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_process_that_just_returns_loses_nothing(tmp_path: Path, method: str) -> None:
    """multiprocessing ends its children without running atexit."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, sys, rolltape
            from tests.taping import Rollout

            def work(directory):
                tape = rolltape.Tape(directory, mode="record")
                Rollout(tape).run(range(3))

            if __name__ == "__main__":
                process = multiprocessing.get_context({method!r}).Process(target=work, args=(sys.argv[1],))
                process.start()
                process.join(60)
                sys.exit(process.exitcode)
            """
        )
    )
    code = f"import runpy, sys; sys.path[:0] = [{str(ROOT)!r}]; sys.argv = sys.argv[1:]; "
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code + "runpy.run_path(sys.argv[0], run_name='__main__')",
         str(program), str(tmp_path / "t")],
        capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert len(files(tmp_path / "t")) == 4


def test_a_fork_after_opening_has_a_tape_of_its_own(tmp_path: Path) -> None:
    """The parent has writes pending and locks held; the child records, replays and ends without deadlock."""
    ran = python(
        SLOW_DISK
        + """
import warnings; warnings.simplefilter("ignore")  # Python 3.12 warns about any fork beside threads
tape = rolltape.Tape(sys.argv[1], mode="auto")
rollout = Rollout(tape)
rollout.run([0]); done.set(); tape.flush(); rollout.run([0, 0]); done.clear()
rollout.run([1])                       # pending in the parent alone
deck = tape._dispatcher
locks = [deck._lock, deck._tally._lock, deck.recorder._lock, deck.recorder.writer._changed]
for lock in locks: lock.acquire()
child = os.fork()
if child == 0:
    done.set()
    rollout.run([2, 0])
    assert rollout.live == [0, 1, 2], rollout.live
    summary = tape.close()
    assert (summary.recorded, summary.replayed) == (1, 1), summary
    os._exit(7)
for lock in locks: lock.release()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
done.set()
assert tape.close().recorded == 2
""",
        tmp_path / "t",
    )
    assert ran.returncode == 0, ran.stderr
    assert len(files(tmp_path / "t")) == 4


@needs_proc
def test_an_unfinished_recording_is_absent_not_broken(tmp_path: Path) -> None:
    ran = python(
        """
        import threading
        from rolltape.storage import posix
        from rolltape.storage import LocalStorage
        real = posix.write_all
        def half(fd, buffers):
            real(fd, [buffers[0][: len(buffers[0]) // 2]]); os._exit(9)
        tape = rolltape.Tape(sys.argv[1], mode="record")
        rollout = Rollout(tape)
        rollout.run([0]); tape.flush()
        posix.write_all = half
        rollout.run([1]); tape.flush()
        """,
        tmp_path / "t",
    )
    assert ran.returncode == 9
    assert files(tmp_path / "t") == {"tape.json", FIRST}
    record(tmp_path / "t", [1])
    assert list((tmp_path / "t/.tmp").iterdir()) == [], "what the dead process left is cleaned up"
