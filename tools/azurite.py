"""Puts Azurite, a server that speaks Azure's Blob storage, into the cache: from the npm registry, checked.

    python tools/azurite.py

`requirements/azurite/package-lock.json` says which release of it and of what it needs, with their digests. It
lies beside the environments of `tools/envs.py`, in a folder named after a hash of that file, and counts as
there only once its stamp is. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import envs
import plots

WANTED = envs.ROOT / "requirements" / "azurite"
FILES = ("package.json", "package-lock.json")
PROGRAM = "node_modules/azurite/dist/src/blob/main.js"


def ensure() -> list[str]:
    """How to start its Blob service; all of it is there when this returns."""
    folder = place()
    npm = _npm()
    if not is_there():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with envs._locked(folder.with_name(folder.name + ".lock")):
            if not is_there():
                _install(npm, folder)
    return [_node(npm), str(folder / PROGRAM)]


def place() -> Path:
    """Where it is, or will be."""
    digest = hashlib.sha256(b"".join((WANTED / name).read_bytes() for name in FILES)).hexdigest()[:12]
    return envs.envs_dir().with_name("npm") / f"azurite-{digest}"


def is_there() -> bool:
    return (place() / envs.STAMP).exists()


def _install(npm: list[str], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in FILES:
        shutil.copy(WANTED / name, folder)
    plots._run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"], str(folder))
    (folder / envs.STAMP).touch()


def _npm() -> list[str]:
    """The npm of this machine, or else that of the stack `node`."""
    found = plots.find_npm()
    if found is not None:
        return found
    python = str(envs.ensure("node", envs.find_python_or_own("3.11")))
    code = f"import sys, json; sys.path.insert(0, {str(envs.ROOT / 'tools')!r})\n"
    code += "import plots; print(json.dumps(plots.find_npm()))"
    done = subprocess.run([python, "-I", "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    return list(json.loads(done.stdout))


def _node(npm: list[str]) -> str:
    return npm[0] if len(npm) == 2 else shutil.which("node") or os.path.join(os.path.dirname(npm[0]), "node")


if __name__ == "__main__":
    try:
        print(" ".join(ensure()))
    except (plots.FetchFailed, envs.InstallFailed) as failure:
        sys.exit(f"rolltape: Azurite could not be fetched: {failure}")
