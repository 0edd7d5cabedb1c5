"""The plugin in every process: silent and light unless asked, loud when asked, reaching Ray's workers."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rolltape.integrations.ray_env import BEFORE, HOOK, VARIABLE, forward, hook_into

SOURCE = Path(__file__).resolve().parents[2] / "src"


def python(code, **env):
    """Run code in a fresh interpreter and return what it printed as JSON."""
    environ = {n: v for n, v in os.environ.items() if not n.startswith("ROLLTAPE_") and n != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**environ, **env}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_an_entry_point_of_verl():
    assert [found.value for found in entry_points(group="verl.plugins") if found.name == "rolltape"] == [
        "rolltape.integrations.verl.plugin"
    ]


UNTOUCHED = """
import json, logging, os, sys
before = dict(os.environ)
import verl
from omegaconf import OmegaConf
from verl.utils.skip import SkipManager
from verl.utils.skip.base_skip import SKIP_REGISTRY

class Manager:
    @SkipManager.annotate(role="rollout")
    def generate_sequences(self, prompts):
        return "live"

SkipManager.init(OmegaConf.create({"trainer": {"v1": {"trainer_mode": "sync"}}, "skip": {}}))
SkipManager.set_step(1)
print(json.dumps({
    "plugin": "rolltape.integrations.verl.plugin" in sys.modules,
    "registry": sorted({cls.__module__ for cls in SKIP_REGISTRY.values()}),
    "instances": sorted({type(found).__module__ for found in SkipManager.skip_instances.values()}),
    "loaded": [name for name in ("install", "session", "generate", "queue", "adapters")
               if f"rolltape.integrations.verl.{name}" in sys.modules],
    "environment": sorted(set(os.environ) - set(before) - {"RAY_ENABLE_UV_RUN_RUNTIME_ENV"}),
    "returned": Manager().generate_sequences(None),
    "step": SkipManager.step,
}))
"""


def test_nothing_changes_for_those_who_have_not_opted_in():
    found = python(UNTOUCHED)
    assert found["plugin"] is True
    assert found["registry"] == found["instances"] == ["verl.utils.skip.rollout_skip"]
    assert found["loaded"] == []
    assert [name for name in found["environment"] if "ROLLTAPE" in name or "HOOK" in name] == []
    assert found["returned"] == "live"
    assert found["step"] == 1


EARLY = """
import json, sys
import verl
from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.utils.skip import SkipManager
from omegaconf import OmegaConf
from rolltape.integrations.verl.wrappers import is_marked
before = is_marked(AgentLoopManager.__dict__["generate_sequences"])
SkipManager.init(OmegaConf.create({"trainer": {"v1": {"trainer_mode": "sync"}}, "skip": {}}))
print(json.dumps([before, is_marked(AgentLoopManager.__dict__["generate_sequences"])]))
"""


def test_modules_that_were_decorated_before_the_plugin_came_are_found(tmp_path):
    """External modules are imported by verl before its plugins, and may import half of verl."""
    (tmp_path / "early_bird.py").write_text("import verl.experimental.agent_loop.agent_loop\n")
    found = python(
        EARLY, VERL_USE_EXTERNAL_MODULES="early_bird", PYTHONPATH=f"{SOURCE}{os.pathsep}{tmp_path}",
        ROLLTAPE_DIR=str(tmp_path / "tape"), ROLLTAPE_MODE="record",
    )  # fmt: skip
    assert found == [False, True]


def test_an_error_reaches_the_user(tmp_path):
    """verl swallows what goes wrong in a plugin; the tape is opened later, where it cannot be missed."""
    code = (
        "import verl\nfrom omegaconf import OmegaConf\nfrom verl.utils.skip import SkipManager\n"
        "SkipManager.init(OmegaConf.create({'trainer': {'v1': {'trainer_mode': 'sync'}}, 'skip': {}}))"
    )
    env = {**os.environ, "ROLLTAPE_MODE": "replay", "ROLLTAPE_DIR": str(tmp_path / "nowhere")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode != 0
    assert "TapeNotFoundError" in done.stderr


def test_a_relative_directory_is_made_absolute_before_ray_starts(tmp_path):
    go = f"import os, json\nos.chdir({str(tmp_path)!r})\nimport verl\n"
    code = go + "print(json.dumps(os.environ['ROLLTAPE_DIR']))"
    assert python(code, ROLLTAPE_DIR="tapes/base", ROLLTAPE_MODE="record") == str(tmp_path / "tapes/base")


def test_the_hook_adds_our_variables_and_keeps_what_the_program_says(monkeypatch):
    monkeypatch.setenv("ROLLTAPE_DIR", "/tapes/a")
    monkeypatch.setenv("ROLLTAPE_MODE", "record")
    found = forward({"env_vars": {"ROLLTAPE_MODE": "replay", "X": "1"}, "working_dir": None})
    assert found["env_vars"]["ROLLTAPE_DIR"] == "/tapes/a"
    assert found["env_vars"]["ROLLTAPE_MODE"] == "replay"
    assert found["env_vars"]["X"] == "1"
    assert forward(None)["env_vars"]["ROLLTAPE_DIR"] == "/tapes/a"


def double(runtime_env):
    return {**(runtime_env or {}), "doubled": True}


def test_a_hook_that_was_there_is_called_too(monkeypatch):
    environ = {VARIABLE: f"{double.__module__}.double"}
    hook_into(environ)
    hook_into(environ)
    assert environ == {VARIABLE: HOOK, BEFORE: f"{double.__module__}.double"}
    monkeypatch.setitem(sys.modules, double.__module__, sys.modules[__name__])
    monkeypatch.setenv(BEFORE, environ[BEFORE])
    assert forward({})["doubled"] is True


IN_A_CLUSTER = """
import json, os, ray
import verl

@ray.remote
class Worker:
    def look(self):
        return os.environ.get("ROLLTAPE_DIR"), os.environ.get("ROLLTAPE_MODE")

ray.init(address=os.environ["CLUSTER"], log_to_driver=False, runtime_env={"env_vars": {"VERL_OWN": "1"}})
print(json.dumps(ray.get(Worker.remote().look.remote())))
"""


@pytest.mark.parametrize("asked", [True, False])
def test_workers_of_a_cluster_that_was_started_without_us(ray_session, tmp_path, asked):
    """Workers inherit the environment of their cluster, not the program's; ours travels with the job."""
    tape = str(tmp_path / "tape")
    env = {"ROLLTAPE_DIR": tape, "ROLLTAPE_MODE": "record"} if asked else {}
    found = python(IN_A_CLUSTER, CLUSTER=ray_session.get_runtime_context().gcs_address, **env)
    assert found == ([tape, "record"] if asked else [None, None])
