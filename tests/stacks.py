"""Which folders of tests a run has, and what may be missing in it.

In `make test` the stack says so (ROLLTAPE_STACK), and not what can be imported: there a missing library must
fail a test. Without a stack, as with a plain `pytest`, a folder whose libraries are not all installed is
skipped as a whole, and the reason is given.
"""

from __future__ import annotations

import importlib
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

STACK = os.environ.get("ROLLTAPE_STACK")

FOLDERS = {
    "core": ("torch", "slow", "interop", "faults", "fuzz", "index", "pooling"),
    "light": (),
    "verl": ("verl",),
    "trl": ("trl",),
    "engines": ("engines",),
    "viewer": ("viewer",),
    "serve": ("serve", "clients"),
    "store": ("store",),
}
"""Stack -> the folders it has beside `tests` itself, `tests/tools` and `tests/contracts`."""

NEEDS = {
    "slow": (),
    "index": (),
    "pooling": (),
    "faults": ("torch",),
    "fuzz": (),
    "torch": ("torch", "tensordict", "PIL"),
    "interop": ("torch", "duckdb", "polars", "pandas", "omegaconf"),
    "verl": ("torch", "verl", "ray", "transfer_queue", "tensordict", "omegaconf"),
    "trl": ("torch", "trl", "transformers", "tensorboard", "wandb", "mlflow", "trackio"),
    "engines": ("torch", "transformers", "vllm", "ray", "xllamacpp", "httpx"),
    "viewer": (
        "torch",
        "transformers",
        "starlette",
        "uvicorn",
        "jinja2",
        "textual",
        "playwright",
        "httpx",
        "obstore",
    ),
    "serve": ("aiohttp", "openai"),
    "store": ("obstore", "ray", "aiohttp", "duckdb", "polars"),
    "clients": (
        "aiohttp",
        "openai",
        "anthropic",
        "verifiers",
        "atroposlib",
        "rllm_model_gateway",
        "xllamacpp",
    ),
}
"""Folder -> the modules without which it is skipped where no stack is named."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LOUD = ("verl", "trl", "engines", "clients", "store")
"""Folders whose libraries warn about themselves."""

EXTRAS = {
    "core": {"yaml", "omegaconf", "torch", "tensordict", "PIL", "setuptools"},
    "light": {"yaml", "setuptools"},
}
"""Stack -> the optional libraries that it must have, where tests of all stacks use them."""


def why_not(folder: str) -> str | None:
    """Why a run has not this folder; None if it has."""
    if STACK is not None:
        return None if folder in FOLDERS[STACK] else f"not of the stack {STACK}"
    missing = [name for name in NEEDS[folder] if find_spec(name) is None]
    if folder == "viewer" and not any(map(shutil.which, BROWSERS)):
        missing.append("Chromium")
    if folder == "viewer" and not plots().exists():
        missing.append("its plot library (python tools/plots.py)")
    return f"tests/{folder} needs what is not here: {', '.join(missing)}" if missing else None


def plots() -> Path:
    return Path(__file__).resolve().parents[1] / "src/rolltape/viewer/static/uplot"


def examples(count: int = 100) -> int:
    """How many examples of a property to try: all of them in `core`, a fifth on the other Pythons."""
    return max(count // 5, 10) if STACK == "light" else count


def may_lack(name: str) -> bool:
    """Whether a library may be missing, so that what needs it is skipped."""
    return STACK is None or name not in EXTRAS.get(STACK, set())


def optional(name: str) -> ModuleType:
    """The library, for a test that needs it; a skip where it is missing and may be."""
    return pytest.importorskip(name) if may_lack(name) else importlib.import_module(name)
