"""Write the fixture tapes that every later version must be able to read.

    python tools/make_fixtures.py               of recordings: format1.tape, format1-torch.tape
    python tools/make_fixtures.py segments      of recordings in segments: format2.tape

Run it when the format is new; from then on the files stay as they are, that is their purpose.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import rolltape  # noqa: E402
from rolltape.codec.file import FORMAT  # noqa: E402
from rolltape.storage import storage_at  # noqa: E402
from rolltape.storage.segment_index import FORMAT as SEGMENTS  # noqa: E402
from rolltape.tape.compaction import compact  # noqa: E402
from tests.fixtures import content, content_segments, content_torch  # noqa: E402

FIXTURES = ROOT / "tests" / "fixtures"


def write(name: str, recordings: dict[str, Callable[[], Any]], *, calls: bool) -> None:
    """Record every value under its stage, the rollout with its inputs and metrics."""
    folder = FIXTURES / f"format{FORMAT}{name}.tape"
    shutil.rmtree(folder, ignore_errors=True)
    with rolltape.Tape(folder, mode="record", fingerprint=content.FINGERPRINT, random_state=False) as tape:
        for stage, build in recordings.items():
            with tape.step(0):
                declare(tape, stage, build)(**content.INPUTS)
        tape.log(content.METRICS, step=0)
        echo = tape.stage("call")(lambda value: value)
        for split, step, key in content.CALLS if calls else ():
            with tape.step(step, split=split, key=key):
                echo([step])
                echo([step, "again"])
    finish(folder)


def write_segments() -> None:
    """Fold a tape of several steps, prune one of them and record another one anew."""
    folder = FIXTURES / f"format{SEGMENTS}.tape"
    shutil.rmtree(folder, ignore_errors=True)
    record_steps(folder, "record", content_segments.STEPS)
    compact(storage_at(folder), keep=0, settled=0)
    record_steps(folder, "rewrite", [content_segments.ANEW], anew=True)
    prune = [sys.executable, "-m", "rolltape", "prune", str(folder), "--yes", "--steps"]
    subprocess.run([*prune, str(content_segments.PRUNED)], check=True, env={"PYTHONPATH": str(ROOT / "src")})
    finish(folder)


def record_steps(folder: Path, mode: str, steps: Iterable[int], *, anew: bool = False) -> None:
    with rolltape.Tape(folder, mode=mode, random_state=False) as tape:

        @tape.stage("rollout", inputs=True)
        def rollout(step: int) -> Any:
            return content_segments.rollout(step, anew=anew)

        @tape.stage("reward")
        def reward(step: int) -> Any:
            return content_segments.reward(step, anew=anew)

        for step in steps:
            with tape.step(step):
                rollout(step)
                reward(step)
                tape.log({"loss": step / 8})


def finish(folder: Path) -> None:
    shutil.rmtree(folder / ".tmp")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{os.path.relpath(folder)}: {size:,} bytes")


def declare(tape: rolltape.Tape, stage: str, build: Callable[[], Any]) -> Callable[..., Any]:
    """A stage that returns the value."""

    def run(prompts: list[str], n: int) -> Any:
        return build()

    run.__qualname__ = stage
    return tape.stage(stage, inputs=stage == "rollout")(run)


if __name__ == "__main__":
    if sys.argv[1:] == ["segments"]:
        write_segments()
    else:
        write("", content.RECORDINGS, calls=True)
        write("-torch", content_torch.RECORDINGS, calls=False)
