"""One cached virtual environment per stack, shared by every clone on the machine.

    python3 tools/envs.py nox -m nox --list      build the environment if need be, then run its Python

A stack is a list of requirement files installed in order. Its environment lives under
`${ROLLTAPE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/rolltape}/envs`, is named after a hash of those files and of
the interpreter, and counts as built only once its stamp is there: an interrupted install starts over.
Rolltape itself is never installed into it. Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".complete"
STACKS = {
    "nox": ("nox",),
    "node": ("node",),
    "lint": ("lint",),
    "docs": ("docs",),
    "light": ("light",),
    "core": ("torch", "core"),
    "verl": ("torch", "verl"),
    "trl": ("torch", "trl"),
    "engines": ("torch", "engines", "engines-nodeps"),
    "viewer": ("torch", "viewer"),
    "serve": ("serve",),
    "store": ("store",),
}
"""Stack -> its files in requirements/, in install order. Each also constrains the installs of the others.

What a file named `…-nodeps` lists is installed without what it declares to need.
"""

PROBE = """
import json, os, sys, sysconfig, venv
path = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
print(json.dumps([path, "%d.%d" % sys.version_info[:2], sys.version + sysconfig.get_platform()]))
"""


@dataclass(frozen=True)
class Interpreter:
    path: str
    """The real file, never a shim, a link or the Python of another environment."""
    version: str
    """Major and minor, as in `3.11`."""
    build: str
    """What else tells two interpreters apart: full version, compiler, platform."""


class InstallFailed(Exception):
    """A command that builds an environment failed; its output has been printed."""


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    """Say what is going on, and how long it took."""
    print(f"rolltape: {what} ...", flush=True)
    start, outcome = time.monotonic(), "failed after"
    try:
        yield
        outcome = "done in"
    finally:
        print(f"rolltape: {what}: {outcome} {time.monotonic() - start:.1f} s", flush=True)


@functools.cache
def find_python(version: str) -> Interpreter | None:
    """A working Python of that `major.minor`: the one running, then PATH, then pyenv."""
    for candidate in _candidates(version):
        found = _probe(candidate)
        if found and found.version == version:
            return found
    return None


def find_python_or_own(version: str) -> Interpreter:
    """The Python asked for, or else the one running this file, with a line that says so."""
    own = _probe(sys.executable)
    assert own is not None, f"{sys.executable} cannot import venv"
    found = find_python(version)
    if found is None:
        print(f"rolltape: no Python {version} on this machine, using {own.version}", flush=True)
    return found or own


def ensure(stack: str, python: Interpreter) -> Path:
    """The Python of the stack's environment, which is complete when this returns."""
    env = envs_dir() / f"{stack}-{python.version}-{_key(stack, python)}"
    executable = env / "bin" / "python"
    if (env / STAMP).exists():
        return executable
    env.parent.mkdir(parents=True, exist_ok=True)
    with _locked(env.with_name(env.name + ".lock")):
        if not (env / STAMP).exists():  # another run may have built it while we waited
            shutil.rmtree(env, ignore_errors=True)
            _build(stack, python, env)
            (env / STAMP).touch()
    return executable


def envs_dir() -> Path:
    cache = os.environ.get("ROLLTAPE_CACHE")
    if cache:
        return Path(cache).expanduser().absolute() / "envs"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "rolltape" / "envs"


def _candidates(version: str) -> Iterator[str]:
    yield sys.executable
    for folder in os.get_exec_path():
        yield os.path.join(folder, f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    yield from (str(path) for path in sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))


def _probe(executable: str) -> Interpreter | None:
    """Run it to know it: a pyenv shim exists, and fails, for versions that are not switched on."""
    if not os.access(executable, os.X_OK):
        return None
    command = [executable, "-I", "-c", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return Interpreter(*json.loads(done.stdout)) if done.returncode == 0 else None


def _requirements(stack: str) -> list[Path]:
    return [ROOT / "requirements" / f"{name}.txt" for name in STACKS[stack]]


def _key(stack: str, python: Interpreter) -> str:
    digest = hashlib.sha256(f"{python.path}\n{python.build}\n".encode())
    for file in _requirements(stack):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with phase(f"waiting for another run to build {path.stem}"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file, or dying, lets go of the lock


def _build(stack: str, python: Interpreter, env: Path) -> None:
    pip = [str(env / "bin" / "python"), "-m", "pip"]
    with phase(f"{stack}: creating {env}"):
        if _has_ensurepip(python):
            _run([python.path, "-m", "venv", str(env)])
        else:  # Debian's Python without python3-venv
            _run([python.path, "-m", "venv", "--without-pip", str(env)])
            _run([python.path, "-m", "pip", "--python", pip[0], "install", "pip"])
    files = _requirements(stack)
    for file in files:
        constraints = [arg for other in files if other != file for arg in ("-c", str(other))]
        with phase(f"{stack}: installing requirements/{file.name}"):
            alone = ["--no-deps"] if file.stem.endswith("-nodeps") else []
            _run([*pip, "install", "--no-input", *alone, "-r", str(file), *constraints])


def _has_ensurepip(python: Interpreter) -> bool:
    probe = [python.path, "-I", "-c", "import ensurepip"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL).returncode == 0


def _run(command: list[str]) -> None:
    # A PYTHONPATH would let pip mistake what lies in the clone for something installed.
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=env, text=True, **streams)
    if done.returncode != 0:
        print(done.stdout, flush=True)
        raise InstallFailed(f"exit code {done.returncode} from: {' '.join(command)}")


def main(stack: str, *args: str) -> None:
    own = _probe(sys.executable)
    if own is None or sys.version_info < (3, 10):
        sys.exit(f"rolltape: {sys.executable} is not Python >= 3.10 with venv; try make PYTHON=python3.11")
    try:
        executable = str(ensure(stack, own))
    except InstallFailed as failure:
        sys.exit(f"rolltape: {failure}")
    os.execv(executable, [executable, *args])


if __name__ == "__main__":
    main(*sys.argv[1:])
