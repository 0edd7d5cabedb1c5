"""Write the fixture tapes that every later version must be able to read: ``python tools/make_fixtures.py``.

Run it when the format is new; from then on the files stay as they are, that is their purpose.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import rolltape  # noqa: E402
from rolltape.codec.file import FORMAT  # noqa: E402
from tests.fixtures import content, content_torch  # noqa: E402

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
    write("", content.RECORDINGS, calls=True)
    write("-torch", content_torch.RECORDINGS, calls=False)
