"""Run the sessions of `make test`, several at a time, those that take longest first.

    python3 tools/envs.py nox tools/sessions.py               all of them
    python3 tools/envs.py nox tools/sessions.py core trl      these
    python3 tools/envs.py nox tools/sessions.py core -- -x    with these arguments of pytest

Many of them wait for servers and trainers as long as they compute, so as many run at a time as there are
cores, and at least two; ROLLTAPE_JOBS says another number. Each is a nox of its own. What one prints is kept
in `.test-results/<session>.log` and shown as a whole when it has ended. Exit code 1 if one failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tally import RESULTS

ROOT = Path(__file__).resolve().parent.parent
SESSIONS = (
    "verl-trainer",
    "engines",
    "core",
    "trl",
    "verl",
    "viewer",
    "serve",
    "store",
    "light-3.10",
    "light-3.12",
    "light-3.13",
    "lint",
    "docs",
)
"""Longest first, so that none of them runs on alone when all others are done."""


@dataclass(frozen=True)
class Started:
    """A session that runs."""

    name: str
    process: subprocess.Popen[bytes]
    since: float


@dataclass(frozen=True)
class Ended:
    """How a session went."""

    name: str
    result: str
    """As nox says: `success`, `skipped`, `failed`, `aborted`."""
    seconds: float
    cpu: float
    """Seconds of computing, of all processes that it waited for."""

    def __str__(self) -> str:
        return f"{self.name}: {self.result} in {self.seconds:.0f} s, {self.cpu:.0f} s of computing"


class Runs:
    """The sessions that wait, run and have ended; `work` is called by as many threads as run at a time."""

    def __init__(self, names: list[str], arguments: list[str]) -> None:
        self._waiting = list(names)
        self._arguments = arguments
        self._ended: dict[str, Ended] = {name: Ended(name, "aborted", 0, 0) for name in names}
        self._running: list[Started] = []
        self._lock = threading.Lock()
        self._report()

    @property
    def all_well(self) -> bool:
        return all(one.result in ("success", "skipped") for one in self._ended.values())

    def work(self) -> None:
        """Run one after the other until none waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                started = self._start(self._waiting.pop(0))
            self._wait(started)

    def stop(self) -> None:
        """Start no other, and ask those that run to end."""
        with self._lock:
            self._waiting.clear()
            for started in self._running:
                started.process.terminate()

    def _start(self, name: str) -> Started:
        print(f"rolltape: {name} started, output in {RESULTS.name}/{name}.log", flush=True)
        command = [sys.executable, "-m", "nox", "--noxfile", "noxfile.py", "-s", name]
        command += ["--report", str(RESULTS / f"{name}.json"), "--", *self._arguments]
        with (RESULTS / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        started = Started(name, process, time.monotonic())
        self._running.append(started)
        return started

    def _wait(self, started: Started) -> None:
        name = started.name
        _, status, used = os.wait4(started.process.pid, 0)
        started.process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started.since
        ended = Ended(name, _result(name), seconds, used.ru_utime + used.ru_stime)
        with self._lock:
            self._running.remove(started)
            self._ended[name] = ended
            self._report()
            sys.stdout.write((RESULTS / f"{name}.log").read_text(errors="replace"))
            print(f"rolltape: {ended}", flush=True)

    def _report(self) -> None:
        """For tools/tally.py; a session counts as aborted until it has ended."""
        found = [{"name": one.name, "result": one.result} for one in self._ended.values()]
        (RESULTS / "sessions.json").write_text(json.dumps({"sessions": found}, indent=2) + "\n")


def _result(name: str) -> str:
    """What nox reported; one that left no report has not ended well, whatever its exit code."""
    report = RESULTS / f"{name}.json"
    if not report.exists():
        return "aborted"
    return json.loads(report.read_text())["sessions"][0]["result"]


def main(asked: list[str]) -> int:
    at = asked.index("--") if "--" in asked else len(asked)
    names, arguments = asked[:at], asked[at + 1 :]
    RESULTS.mkdir(exist_ok=True)
    started, jobs = time.monotonic(), int(os.environ.get("ROLLTAPE_JOBS") or max(os.cpu_count() or 1, 2))
    runs = Runs(names or list(SESSIONS), arguments)
    threads = [threading.Thread(target=runs.work, daemon=True) for _ in range(jobs)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except (KeyboardInterrupt, SystemExit):
        runs.stop()
        for thread in threads:
            thread.join()
        raise
    print(
        f"rolltape: all sessions in {(time.monotonic() - started) / 60:.1f} min, {jobs} at a time", flush=True
    )
    return 0 if runs.all_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
