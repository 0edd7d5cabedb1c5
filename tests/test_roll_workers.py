"""How the installer reaches Ray's workers: what it puts into the job. With a real Ray: test_roll_real.py."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rolltape.errors import RolltapeError
from rolltape.integrations import roll
from rolltape.integrations.ray_env import hook_into
from rolltape.integrations.roll import workers

HOOK = "RAY_RUNTIME_ENV_HOOK"


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in (HOOK, "ROLLTAPE_RAY_HOOK_BEFORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    yield
    roll.uninstall()


called = []


def their_hook(runtime_env):
    return {**(runtime_env or {}), "theirs": True}


def their_setup():
    called.append("theirs")


def test_a_job_gets_our_setup_and_our_variables(monkeypatch):
    monkeypatch.setenv("ROLLTAPE_DIR", "/data/tape")
    roll.install()
    assert os.environ[HOOK] == "rolltape.integrations.roll.workers.runtime_env"
    job = workers.runtime_env({"env_vars": {"A": "1"}})
    assert job["worker_process_setup_hook"] == "rolltape.integrations.roll.install"
    assert job["env_vars"]["A"] == "1"
    assert job["env_vars"]["ROLLTAPE_DIR"] == "/data/tape"
    assert job["env_vars"]["ROLLTAPE_CWD"] == os.getcwd()
    assert workers.runtime_env(None)["worker_process_setup_hook"] == "rolltape.integrations.roll.install"


def test_hooks_of_the_program_still_run(monkeypatch):
    monkeypatch.setenv(HOOK, f"{__name__}.their_hook")
    monkeypatch.setitem(
        sys.modules, __name__, sys.modules.get(__name__) or SimpleNamespace(their_hook=their_hook)
    )
    roll.install()
    assert workers.runtime_env({})["theirs"] is True
    roll.uninstall()
    assert os.environ[HOOK] == f"{__name__}.their_hook"


@pytest.mark.parametrize("as_text", [False, True])
def test_a_setup_of_the_program_runs_after_ours(monkeypatch, as_text):
    module = SimpleNamespace(their_setup=their_setup)
    monkeypatch.setitem(sys.modules, "their_module", module)
    called.clear()
    given = "their_module.their_setup" if as_text else their_setup
    job = workers.runtime_env({"worker_process_setup_hook": given})
    monkeypatch.setattr(roll, "install", lambda: called.append("ours"))
    job["worker_process_setup_hook"]()
    assert called == ["ours", "theirs"]


def test_a_program_that_does_not_use_roll_gets_our_variables_and_no_setup(monkeypatch):
    monkeypatch.delitem(sys.modules, "roll", raising=False)
    monkeypatch.setenv("ROLLTAPE_DIR", "/data/tape")
    job = workers.runtime_env_if_used({})
    assert job["env_vars"]["ROLLTAPE_DIR"] == "/data/tape"
    assert "worker_process_setup_hook" not in job
    monkeypatch.setitem(sys.modules, "roll", SimpleNamespace())
    assert (
        workers.runtime_env_if_used({})["worker_process_setup_hook"] == "rolltape.integrations.roll.install"
    )


def test_of_two_hooks_of_ours_the_one_that_does_more_stays(monkeypatch):
    by_run = {HOOK: "rolltape.integrations.roll.workers.runtime_env_if_used"}
    environ = dict(by_run)
    hook_into(environ)  # as verl's plugin does
    assert environ == by_run
    monkeypatch.setenv(HOOK, by_run[HOOK])
    roll.install()
    assert os.environ[HOOK] == workers.HOOK
    assert "ROLLTAPE_RAY_HOOK_BEFORE" not in os.environ


def test_a_ray_that_runs_already_is_too_late(monkeypatch):
    context = SimpleNamespace(worker=SimpleNamespace(mode=0))
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(RolltapeError, match=r"before ray\.init"):
        roll.install()
    assert HOOK not in os.environ
    context.worker.mode = 1  # a worker: it is where our setup is called
    roll.install()
    assert HOOK not in os.environ


def test_importing_and_installing_loads_nothing_heavy():
    program = (
        "import sys, rolltape.integrations.roll as r; r.install();"
        "print(sorted({'torch', 'ray', 'roll', 'tensordict'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
