"""What `make` runs, one session per stack. The environments come from tools/envs.py, not from nox."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import envs  # noqa: E402
import plots  # noqa: E402
from tally import RESULTS  # noqa: E402

MAIN_PYTHON = "3.11"
"""Torch for the CPU is at hand for this one, so `core` runs here."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""What Chromium is called."""

TWO_AT_ONCE = ("-n", "2", "--dist", "loadfile")
"""For suites whose tests mostly wait for other processes, or use one core each."""

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "core", "light-3.10", "light-3.13", "verl", "trl", "engines", "viewer"]


@nox.session
def lint(session: nox.Session) -> None:
    """ruff check, ruff format --check, and mypy --strict on the library."""
    python = environment(session, "lint", envs.find_python_or_own(MAIN_PYTHON))
    with envs.phase("lint: ruff and mypy"):
        session.run(python, "-m", "ruff", "check", ".", external=True)
        session.run(python, "-m", "ruff", "format", "--check", ".", external=True)
        session.run(python, "-m", "mypy", external=True)


@nox.session
def core(session: nox.Session) -> None:
    """Every test, with torch and all extras."""
    run_tests(session, "core", envs.find_python_or_own(MAIN_PYTHON), *TWO_AT_ONCE)


@nox.session(name="light-3.10")
def light_310(session: nox.Session) -> None:
    """The torch-free tests, on the oldest Python and the oldest dependencies promised."""
    light(session, "3.10")


@nox.session(name="light-3.13")
def light_313(session: nox.Session) -> None:
    """The torch-free tests, on the newest Python and the newest dependencies."""
    light(session, "3.13")


@nox.session
def verl(session: nox.Session) -> None:
    """verl's own classes, TransferQueue and Ray, and verl's real trainer, on CPU."""
    run_tests(session, "verl", envs.find_python_or_own(MAIN_PYTHON), "tests/verl", "-W", "default")


@nox.session
def trl(session: nox.Session) -> None:
    """TRL's real trainers, on CPU, in one process and in two; and the loggers people use with them."""
    run_tests(
        session, "trl", envs.find_python_or_own(MAIN_PYTHON), "tests/trl", "-W", "default", *TWO_AT_ONCE
    )


@nox.session
def engines(session: nox.Session) -> None:
    """Generation and scoring on real engines, on CPU: transformers, vLLM, llama.cpp, a Ray cluster."""
    run_tests(session, "engines", envs.find_python_or_own(MAIN_PYTHON), "tests/engines", "-W", "default")


@nox.session
def viewer(session: nox.Session) -> None:
    """The rollout viewer, in a real browser and in a terminal, on tapes of the reference trainer."""
    have_chromium(session)
    have_plots(session)
    run_tests(session, "viewer", envs.find_python_or_own(MAIN_PYTHON), "tests/viewer")


@nox.session
def demo(session: nox.Session) -> None:
    """Train a small language model, replay the training, change it and break it."""
    run_module(session, "trl", "rolltape", "demo")


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmarks, whose numbers the documentation quotes."""
    run_module(session, "core", "benchmarks")


def light(session: nox.Session, version: str) -> None:
    python = envs.find_python(version)
    if python is None:
        session.skip(f"no Python {version} on this machine")
    run_tests(session, "light", python, *TWO_AT_ONCE)


def run_tests(session: nox.Session, stack: str, interpreter: envs.Interpreter, *options: str) -> None:
    python = environment(session, stack, interpreter)
    env = clone_as_installed(session, python) | {"ROLLTAPE_STACK": stack}
    results = RESULTS / f"{session.name}.xml"
    with envs.phase(f"{session.name}: tests on Python {interpreter.version}"):
        command = [python, "-m", "pytest", f"--junitxml={results}", "--durations=5", *options]
        session.run(*command, *session.posargs, env=env, external=True)


def run_module(session: nox.Session, stack: str, module: str, *args: str) -> None:
    python = environment(session, stack, envs.find_python_or_own(MAIN_PYTHON))
    env = clone_as_installed(session, python)
    session.run(python, "-m", module, *args, *session.posargs, env=env, external=True)


def have_chromium(session: nox.Session) -> None:
    """The system's Chromium, installed if this is a Debian and we may."""
    if any(map(shutil.which, BROWSERS)):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        session.error(
            "the viewer's tests need Chromium, and only root on Debian can be given it here: "
            "install the package chromium, then run this again"
        )
    apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]  # another run may be at it
    quiet = {"external": True, "silent": True, "env": {"DEBIAN_FRONTEND": "noninteractive"}}
    with envs.phase("viewer: installing Chromium"):
        session.run(*apt, "update", **quiet)
        session.run(
            *apt, "install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core", **quiet
        )
    if not any(map(shutil.which, BROWSERS)):
        session.error("apt-get installed chromium, and there is still none on PATH (Ubuntu's is a snap)")


def have_plots(session: nox.Session) -> None:
    """The library that draws the viewer's plots, which a clone lacks until something is built of it."""
    if plots.is_there():
        return
    python = sys.executable
    if plots.find_npm() is None:
        python = environment(session, "node", envs.find_python_or_own(MAIN_PYTHON))
    with envs.phase("viewer: fetching its plot library"):
        session.run(python, str(ROOT / "tools" / "plots.py"), external=True, log=False)


def environment(session: nox.Session, stack: str, interpreter: envs.Interpreter) -> str:
    try:
        return str(envs.ensure(stack, interpreter))
    except envs.InstallFailed as failure:
        session.error(str(failure))


def clone_as_installed(session: nox.Session, python: str) -> dict[str, str]:
    """Show this clone to an environment that others share: code by PYTHONPATH, metadata by an egg-info."""
    setup = "from setuptools import setup; setup()"
    session.run(python, "-c", setup, "-q", "egg_info", external=True, log=False)
    return {"PYTHONPATH": str(ROOT / "src")}
