"""`rolltape run`: any command, its subprocesses and Ray workers find the tape; its exit code is passed on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rolltape.cli.commands.run import command, environment
from rolltape.integrations import ray_env
from rolltape.steps import ALL_STEPS, StepSelector

TESTS = Path(__file__).resolve().parents[1]
SOURCE, STANDIN = TESTS.parent / "src", TESTS / "roll_standin/src"


def run(*arguments, **env):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ROLLTAPE_")}
    call = "sys.exit(command.main(sys.argv[1:], standalone_mode=False))"
    code = f"import sys; from rolltape.cli.commands.run import command; {call}"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env={**environ, **env}
    )


PROGRAM = """
import rolltape
tape = rolltape.Tape.from_env()
@tape.stage("rollout")
def generate():
    print("generated")
    return {"responses": [1, 2]}
for step in range(2):
    with tape.step(step):
        generate()
tape.close()
"""


def test_record_then_replay_any_program(tmp_path):
    recorded = run("--mode", "record", "--dir", str(tmp_path / "t"), "--", sys.executable, "-c", PROGRAM)
    assert (recorded.returncode, recorded.stdout.count("generated")) == (0, 2), recorded.stderr
    assert recorded.stderr.count("rolltape: exit code 0") == 1
    assert "has 2 recordings, 2 of them new" in recorded.stderr
    replayed = run("--mode", "replay", "--dir", str(tmp_path / "t"), "--", sys.executable, "-c", PROGRAM)
    assert (replayed.returncode, replayed.stdout.count("generated")) == (0, 0)
    assert "has 2 recordings, 0 of them new" in replayed.stderr


@pytest.mark.parametrize("code", [1, 7])
def test_the_exit_code_is_passed_on(tmp_path, code):
    opens = f"import rolltape; rolltape.Tape.from_env(); raise SystemExit({code})"
    done = run("--dir", str(tmp_path / "t"), "--", sys.executable, "-c", opens)
    assert done.returncode == code


@pytest.mark.parametrize("mode", ["record", "auto", "replay", "off"])
def test_a_command_that_never_opened_the_tape_is_an_error(tmp_path, mode):
    """A framework that is not hooked must not pass for a recorded or a replayed run."""
    tape = tmp_path / "t"
    if mode == "replay":
        assert (
            run("--mode", "record", "--dir", str(tape), "--", sys.executable, "-c", PROGRAM).returncode == 0
        )
    done = run("--mode", mode, "--dir", str(tape), "--", sys.executable, "-c", "print('trained')")
    assert done.stdout == "trained\n"
    if mode == "off":
        assert done.returncode == 0
    else:
        assert done.returncode == 4
        assert "the command opened no tape" in done.stderr
    assert not [*tmp_path.glob("opened-*"), *tmp_path.glob("t/.tmp/*")]


def test_a_command_ended_by_a_signal_and_one_that_is_not_there(tmp_path):
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run("--dir", str(tmp_path / "t"), "--", sys.executable, "-c", kill).returncode == 137
    assert run("--dir", str(tmp_path / "t"), "--", "no-such-command-anywhere").returncode == 127


def test_options_of_the_command_are_its_own(tmp_path):
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--mode", "x", "--help", "a.b=True"]
    done = run("--dir", str(tmp_path), "--", *program)
    assert done.stdout.strip() == "['--mode', 'x', '--help', 'a.b=True']"


def test_the_directory_is_absolute_for_every_subprocess(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inner = "import os, json; print(json.dumps(dict(os.environ)))"
    start = f"subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    outer = f"import subprocess, sys, os; os.chdir('/'); {start}"
    done = run("--mode", "record", "--dir", "a/b", "--steps", "0-9,20", "--", sys.executable, "-c", outer)
    found = json.loads(done.stdout)
    assert found["ROLLTAPE_DIR"] == str(tmp_path / "a/b")
    assert (found["ROLLTAPE_MODE"], found["ROLLTAPE_STEPS"]) == ("record", "0-9,20")


def test_what_an_earlier_run_exported_does_not_leak_in():
    before = {"ROLLTAPE_STEPS": "5", "ROLLTAPE_ON_MISS": "live", "HOME": "/h"}
    found = environment(before, "replay", "/t", ALL_STEPS)
    assert "ROLLTAPE_STEPS" not in found
    assert "ROLLTAPE_ON_MISS" not in found
    assert found["HOME"] == "/h"
    assert environment({}, "replay", "/t", StepSelector.parse("1-3"), "live")["ROLLTAPE_ON_MISS"] == "live"


def test_replay_without_a_tape_says_so_before_anything_starts(tmp_path):
    result = CliRunner().invoke(command, ["--mode", "replay", "--dir", str(tmp_path / "no"), "--", "true"])
    assert "no tape to replay" in str(result.exception)


RAY = """
import os, ray
ray.init(address=os.environ["CLUSTER"], log_to_driver=False)

@ray.remote
def look():
    import rolltape
    return rolltape.Tape().dir  # opened in a worker, it counts as opened by the program

print(ray.get(look.remote()))
"""


def test_ray_workers_of_a_running_cluster(ray_session, tmp_path):
    done = run(
        "--dir", str(tmp_path / "t"), "--", sys.executable, "-c", RAY,
        CLUSTER=ray_session.get_runtime_context().gcs_address,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "t")


ROLL = """
import json, os, sys
import ray
import roll  # what ROLL's own start scripts have imported when they call ray.init

variables = {"OWN": "1", "PYTHONPATH": os.environ["PYTHONPATH"]}
ray.init(address=os.environ["CLUSTER"], log_to_driver=False, runtime_env={"env_vars": variables})

@ray.remote
def look():
    import rolltape
    from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler
    rolltape.Tape().close()
    return RolloutScheduler.get_batch.__module__, os.environ["ROLLTAPE_DIR"], os.environ["OWN"]

@ray.remote
class Scheduler:
    def look(self):
        from roll.distributed.scheduler.generate_scheduler import DynamicSamplingScheduler
        return hasattr(DynamicSamplingScheduler.get_batch, "__wrapped__")

print(json.dumps([ray.get(look.remote()), ray.get(Scheduler.remote().look.remote())]))
"""


@pytest.mark.parametrize("theirs", [None, "their_hooks.add_variable"])
def test_rolls_schedulers_in_ray_workers_need_nothing_else(ray_session, tmp_path, theirs):
    """Real Ray workers import a stand-in of ROLL; that its methods were wrapped there is what counts."""
    (tmp_path / "their_hooks.py").write_text(
        "def add_variable(env):\n    return {**(env or {}), 'env_vars': {**env['env_vars'], 'OWN': '2'}}\n"
    )
    env = {} if theirs is None else {"RAY_RUNTIME_ENV_HOOK": theirs}
    done = run(
        "--dir", str(tmp_path / "t"), "--", sys.executable, "-c", ROLL,
        CLUSTER=ray_session.get_runtime_context().gcs_address,
        PYTHONPATH=os.pathsep.join([str(SOURCE), str(STANDIN), str(tmp_path)]), **env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (module, folder, own), wrapped = json.loads(done.stdout.splitlines()[-1])
    assert (module, folder, wrapped) == (
        "roll.distributed.scheduler.rollout_scheduler",
        str(tmp_path / "t"),
        True,
    )
    assert own == ("1" if theirs is None else "2")
    said = [line for line in done.stderr.splitlines() if "RAY_RUNTIME_ENV_HOOK" in line]
    assert len(said) == (0 if theirs is None else 1)


def test_the_hook_of_an_outer_run_is_not_taken_for_the_users():
    found = environment(
        {"RAY_RUNTIME_ENV_HOOK": "rolltape.integrations.ray_env.forward"}, "auto", "/t", ALL_STEPS
    )
    assert "ROLLTAPE_RAY_HOOK_BEFORE" not in found
    assert environment({}, "auto", "/t", ALL_STEPS)["RAY_RUNTIME_ENV_HOOK"] == (
        "rolltape.integrations.roll.workers.runtime_env_if_used"
    )


def test_a_verl_without_entry_points_is_told_to_import_the_plugin(monkeypatch):
    """In the command and in its Ray workers; modules that the user or the program names come first."""
    plugin = ray_env.VERL_PLUGIN
    assert environment({}, "auto", "/t", ALL_STEPS)[ray_env.MODULES] == plugin
    found = environment({ray_env.MODULES: "theirs,other"}, "auto", "/t", ALL_STEPS)
    assert found[ray_env.MODULES] == f"theirs,other,{plugin}"
    assert environment(found, "auto", "/t", ALL_STEPS)[ray_env.MODULES] == found[ray_env.MODULES]
    monkeypatch.delenv(ray_env.MODULES, raising=False)
    assert ray_env.MODULES not in ray_env.forward({})["env_vars"]
    monkeypatch.setenv(ray_env.MODULES, plugin)
    assert ray_env.forward({})["env_vars"][ray_env.MODULES] == plugin
    job = {"env_vars": {ray_env.MODULES: "of_the_job"}}
    assert ray_env.forward(job)["env_vars"][ray_env.MODULES] == f"of_the_job,{plugin}"
