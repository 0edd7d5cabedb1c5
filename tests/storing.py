"""What the tests of storage share: scripts in processes of their own, calls that fail, what is left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

import rolltape
from rolltape.storage import LocalStorage

NAME = "train/rollout/step_000000.parquet"
needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="without /proc nobody can tell whether a writer is gone"
)
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(rolltape.__file__)))


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a script in a process of its own, and wait until it has printed ``ready``."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str]) -> list[int]:
    """Let the script go on; return the list it prints at its end."""
    output, _ = process.communicate("go\n", timeout=60)
    assert process.returncode == 0
    return json.loads(output)


def temporary_files(storage: LocalStorage) -> list[str]:
    return [name for name in os.listdir(f"{storage.location}/.tmp") if name.endswith(".tmp")]


def fail_with(code: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail
