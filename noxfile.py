"""What `make` runs, one session per stack. The environments come from tools/envs.py, not from nox."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import azurite  # noqa: E402
import compat  # noqa: E402
import cpu_limit  # noqa: E402
import envs  # noqa: E402
import overlays  # noqa: E402
import plots  # noqa: E402
from sessions import SESSIONS  # noqa: E402
from tally import RESULTS  # noqa: E402

MAIN_PYTHON = "3.11"
"""Torch for the CPU is at hand for this one, so `core` runs here."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""What Chromium is called."""

TWO_FILES_AT_ONCE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
"""For suites whose files prepare something dear that their tests share."""

TWO_AT_ONCE = ("-n", "2", "--dist", "worksteal")
"""For suites of many tests that stand alone: who is done takes over half of what the other has left."""

ROUND_BY_ROUND = ("-n", "2", "--dist", "load", "--maxschedchunk", "1")
"""For tests that have an order."""

SOAKED_IN_A_STORE = tuple(
    f"tests/store/{name}.py"
    for name in ("test_kill_minus_nine_on_s3", "test_racing_writers", "test_bit_flips_on_s3")
)
"""What `make soak` repeats on a real S3 server."""

REAL_TRAINER = "tests/verl/test_real_trainer.py"
"""As long as the rest of its stack: a session by itself, so that both can run at the same time."""

BENCH_STACKS = {
    "viewer": "viewer",
    "many_runs": "viewer",
    "trl": "trl",
    "generation": "engines",
    "serve": "engines",
    "store": "store",
    "ray_data": "store",
}
"""The parts of the benchmarks that need another stack than `core`."""

LONG = (
    "tests/test_trust_estimates.py",
    "tests/test_bisect_command.py",
    "tests/test_ranks.py",
    "tests/test_spread.py",
    "tests/test_unedited.py",
    "tests/test_verify_noise.py",
    "tests/contracts/test_misplaced_on_every_path.py",
    "tests/contracts/test_foreign_notes_on_every_path.py",
)
"""A third of the time of the torch-free tests: on the oldest Python and in `core`, not on all four."""

nox.options.default_venv_backend = "none"
nox.options.sessions = list(SESSIONS)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff check, ruff format --check, mypy --strict on the library, and which way its imports go."""
    python = environment(session, "lint", envs.find_python_or_own(MAIN_PYTHON))
    with envs.phase("lint: ruff, mypy and import-linter"):
        session.run(python, "-m", "ruff", "check", ".", external=True)
        session.run(python, "-m", "ruff", "format", "--check", ".", external=True)
        session.run(python, "-m", "mypy", external=True)
        command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
        session.run(python, "-c", command, env={"PYTHONPATH": str(ROOT / "src")}, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, into site/: a link or an anchor that leads nowhere fails."""
    python = environment(session, "docs", envs.find_python_or_own(MAIN_PYTHON))
    bin_first = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])  # for ruff
    env = {"PATH": bin_first, "NO_MKDOCS_2_WARNING": "1"}
    with envs.phase("docs: building site/"):  # with --quiet, --strict would count no warnings
        session.run(python, "-m", "mkdocs", "build", "--strict", env=env, external=True)


@nox.session
def core(session: nox.Session) -> None:
    """Every test, with torch and all extras."""
    run_tests(session, "core", envs.find_python_or_own(MAIN_PYTHON), *TWO_AT_ONCE)


@nox.session(name="light-3.10")
def light_310(session: nox.Session) -> None:
    """The torch-free tests, on the oldest Python and the oldest dependencies promised."""
    light(session, "3.10")


@nox.session(name="light-3.12")
def light_312(session: nox.Session) -> None:
    """The torch-free tests, on a Python in between and the newest dependencies."""
    light(session, "3.12", *LONG)


@nox.session(name="light-3.13")
def light_313(session: nox.Session) -> None:
    """The torch-free tests, on the newest Python and the newest dependencies."""
    light(session, "3.13", *LONG)


@nox.session
def verl(session: nox.Session) -> None:
    """verl's own classes, TransferQueue and Ray, on CPU."""
    python = envs.find_python_or_own(MAIN_PYTHON)
    run_tests(session, "verl", python, "tests/verl", f"--ignore={REAL_TRAINER}", "-W", "default")


@nox.session(name="verl-trainer")
def verl_trainer(session: nox.Session) -> None:
    """verl's real trainers, on CPU, one run after the other."""
    run_tests(session, "verl", envs.find_python_or_own(MAIN_PYTHON), REAL_TRAINER, "-W", "default")


@nox.session
def trl(session: nox.Session) -> None:
    """TRL's real trainers, on CPU, in one process and in two; and the loggers people use with them."""
    run_tests(
        session, "trl", envs.find_python_or_own(MAIN_PYTHON), "tests/trl", "-W", "default", *TWO_FILES_AT_ONCE
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
def serve(session: nox.Session) -> None:
    """Frameworks and SDKs that talk to a server over HTTP, through `rolltape serve` and from its tapes."""
    folders = ("tests/serve", "tests/clients")
    run_tests(session, "serve", envs.find_python_or_own(MAIN_PYTHON), *folders, "-W", "default")


@nox.session
def store(session: nox.Session) -> None:
    """Tapes in object stores, behind a real S3 server, and a Ray cluster that reads and writes them."""
    python = envs.find_python_or_own(MAIN_PYTHON)
    have_azurite(session)
    run_tests(session, "store", python, "tests/store", "-W", "default", *TWO_FILES_AT_ONCE)


@nox.session
def demo(session: nox.Session) -> None:
    """Train a small language model, replay the training, change it and break it."""
    run_module(session, "trl", "rolltape", "demo")


@nox.session
def soak(session: nox.Session) -> None:
    """The slow tests in many rounds: kills, flipped bits, full disks, forks, long runs, servers, stores."""
    python = envs.find_python_or_own(MAIN_PYTHON)
    soaked = {
        "core": ("tests/slow", *ROUND_BY_ROUND),
        "store": (*SOAKED_IN_A_STORE, "-W", "default", *ROUND_BY_ROUND),
        "serve": ("tests/serve/test_serve_killed.py", "-W", "default"),
        "verl": (REAL_TRAINER, "-k", "s3", "-W", "default"),
    }
    for stack in os.environ.get("ROLLTAPE_SOAK_ONLY", "").split() or soaked:
        run_tests(session, stack, python, *soaked[stack])


@nox.session(name="compat")
def compatibility(session: nox.Session) -> None:
    """The contract with every release in the table; what was seen goes into docs/compatibility.md."""
    failed = []
    for row in compat.chosen(session.posargs):
        python = envs.find_python(row.python)
        if python is None:
            session.log(f"{row.name}: no Python {row.python} on this machine, its row stays as it is")
            continue
        junit = RESULTS / f"compat-{row.name}.xml"
        seen = compat.count(row, run_row(session, row, python, junit))
        compat.write([seen])
        print(f"rolltape: {row.name}: {seen.result}", flush=True)
        failed += [row.name] * bool(seen.failed)
    if failed:
        session.log(f"not compatible: {', '.join(failed)}; the page says so")


def run_row(session: nox.Session, row: compat.Row, interpreter: envs.Interpreter, junit: Path) -> Path:
    python = environment(session, row.stack, interpreter)
    env = clone_as_installed(session, python) | cpu_settings(session, row.stack, python) | row.env
    env["ROLLTAPE_STACK"] = row.stack
    if row.overlay and not row.builds_its_own:
        env["PYTHONPATH"] = f"{overlays.ensure(row.overlay, python)}{os.pathsep}{env['PYTHONPATH']}"
    junit.parent.mkdir(exist_ok=True)
    junit.unlink(missing_ok=True)
    command = [python, "-m", "pytest", f"--junitxml={junit}", "-p", "no:cacheprovider"]
    strict = [] if row.stack == "light" else ["-W", "default"]
    with envs.phase(f"{row.name}: {' '.join(row.tests)}"):
        session.run(*command, *strict, *row.tests, env=env, external=True, success_codes=range(256))
    return junit


@nox.session
def fuzz(session: nox.Session) -> None:
    """Changed recordings, dumps, tapes, metrics and requests, as many as are asked for."""
    python = envs.find_python_or_own(MAIN_PYTHON)
    run_tests(session, "core", python, "tests/fuzz")
    run_tests(session, "viewer", python, "tests/viewer/test_fuzzed_requests.py")


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmarks, whose numbers the documentation quotes; fails if a promise is not kept."""
    stack = next((BENCH_STACKS[arg] for arg in session.posargs if arg in BENCH_STACKS), "core")
    if stack == "viewer":
        have_plots(session)
        have_chromium(session)
    peers = ()
    if "serve" in session.posargs:
        have_package(session, "wrk", ("wrk",), "wrk", "the benchmark of serve")
        peers = ("vcrpy",)
    run_module(session, stack, "benchmarks", overlaid=peers)


def light(session: nox.Session, version: str, *left_out: str) -> None:
    python = envs.find_python(version)
    if python is None:
        session.skip(f"no Python {version} on this machine")
    run_tests(session, "light", python, *TWO_AT_ONCE, *(f"--ignore={file}" for file in left_out))


def run_tests(session: nox.Session, stack: str, interpreter: envs.Interpreter, *options: str) -> None:
    python = environment(session, stack, interpreter)
    env = (
        clone_as_installed(session, python) | cpu_settings(session, stack, python) | {"ROLLTAPE_STACK": stack}
    )
    results = RESULTS / f"{session.name}.xml"
    with (
        envs.phase(f"{session.name}: tests on Python {interpreter.version}"),
        # Ray joins whatever cluster it finds there: a session that runs at the same time has one of its own.
        tempfile.TemporaryDirectory(prefix="rt-", ignore_cleanup_errors=True) as ray,
    ):
        env["RAY_TMPDIR"] = ray
        # No cache of pytest's: sessions that run at the same time would share it.
        command = [python, "-m", "pytest", f"--junitxml={results}", "--durations=5", "-p", "no:cacheprovider"]
        session.run(*command, *without_folder(options, session.posargs), env=env, external=True)


def without_folder(options: Sequence[str], asked: Sequence[str]) -> list[str]:
    """The arguments of pytest: a session's own folder is left out where tests are asked for by name."""
    by_name = any(arg.startswith("tests/") for arg in asked)
    return [arg for arg in options if not (by_name and arg.startswith("tests/"))] + list(asked)


def run_module(
    session: nox.Session, stack: str, module: str, *args: str, overlaid: Sequence[str] = ()
) -> None:
    python = environment(session, stack, envs.find_python_or_own(MAIN_PYTHON))
    env = clone_as_installed(session, python) | cpu_settings(session, stack, python)
    folders = [str(overlays.ensure(name, python)) for name in overlaid]
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], *folders])
    session.run(python, "-m", module, *args, *session.posargs, env=env, external=True)


def have_chromium(session: nox.Session) -> None:
    """The system's Chromium, installed if this is a Debian and we may."""
    packages = "chromium fonts-dejavu-core"
    have_package(session, "Chromium", BROWSERS, packages, "the viewer's tests and benchmarks")


def have_package(session: nox.Session, name: str, programs: Sequence[str], packages: str, who: str) -> None:
    """A program of the system, installed if this is a Debian and we may."""
    if any(map(shutil.which, programs)):
        return
    package = packages.split()[0]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        session.error(
            f"{name} is needed for {who}, and only root on Debian can be given it here: "
            f"install the package {package}, then run this again"
        )
    apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]  # another run may be at it
    quiet = {"external": True, "silent": True, "env": {"DEBIAN_FRONTEND": "noninteractive"}}
    with envs.phase(f"installing {name}"):
        session.run(*apt, "update", **quiet)
        session.run(*apt, "install", "-y", "--no-install-recommends", *packages.split(), **quiet)
    if not any(map(shutil.which, programs)):
        session.error(f"apt-get installed {package}, and there is still none on PATH (it may be a snap)")


def have_plots(session: nox.Session) -> None:
    """The library that draws the viewer's plots, which a clone lacks until something is built of it."""
    if plots.is_there():
        return
    python = sys.executable
    if plots.find_npm() is None:
        python = environment(session, "node", envs.find_python_or_own(MAIN_PYTHON))
    with envs.phase("viewer: fetching its plot library"):
        session.run(python, str(ROOT / "tools" / "plots.py"), external=True, log=False)


def have_azurite(session: nox.Session) -> None:
    """The server that speaks Azure's Blob storage, in the cache beside the environments."""
    if not azurite.is_there():
        with envs.phase("store: fetching Azurite"):
            session.run(sys.executable, str(ROOT / "tools" / "azurite.py"), external=True, log=False)


def environment(session: nox.Session, stack: str, interpreter: envs.Interpreter) -> str:
    try:
        return str(envs.ensure(stack, interpreter))
    except envs.InstallFailed as failure:
        session.error(str(failure))


def clone_as_installed(session: nox.Session, python: str) -> dict[str, str]:
    """Show this clone to an environment that others share: code by PYTHONPATH, metadata by an egg-info."""
    source = os.open(ROOT / "src", os.O_RDONLY)
    try:
        fcntl.flock(source, fcntl.LOCK_EX)  # sessions that run at the same time write one after the other
        if metadata_is_old():
            setup = "from setuptools import setup; setup()"
            session.run(python, "-c", setup, "-q", "egg_info", external=True, log=False)
    finally:
        os.close(source)
    return {"PYTHONPATH": str(ROOT / "src")}


def metadata_is_old() -> bool:
    """Whether what it is made of has changed since: tests that run must not lose it for a moment."""
    made = ROOT / "src" / "rolltape.egg-info" / "SOURCES.txt"  # written last
    sources = ("pyproject.toml", "README.md", "src/rolltape/_version.py", "tools/backend.py")
    return not made.exists() or any((ROOT / name).stat().st_mtime >= made.stat().st_mtime for name in sources)


def cpu_settings(session: nox.Session, stack: str, python: str) -> dict[str, str]:
    """What torch needs to be told on this CPU; a line says what was found."""
    if "torch" not in envs.STACKS[stack]:
        return {}
    try:
        added, found = cpu_limit.limit_for(Path(python).parent.parent)
    except cpu_limit.WrongChoice as error:
        session.error(str(error))
    print(f"rolltape: {stack}: {found}", flush=True)
    return added
