"""A release with unknown internals is refused where a tape is asked for, and left alone where none is.

The packages here are what a release of verl looks like from outside, with something missing or renamed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolltape.releases import LIBRARIES

SOURCE = Path(__file__).resolve().parents[1] / "src"

TRAINER = """
from verl.utils.rollout_skip import RolloutSkip
class RayPPOTrainer:
    def __init__(self, config):
        self.config = config
    def init_workers(self): pass
    def fit(self): print("trained")
    def _get_gen_batch(self, batch): return batch
"""
SKIP = """
class RolloutSkip:
    def __init__(self, config, rollout_wg): self.theirs = True
    def wrap_generate_sequences(self): pass
"""
MANAGER = """
class SkipManager:
    step = -1
    @staticmethod
    def init(config): print("trained")
    @staticmethod
    def set_step(step): pass
    @staticmethod
    def annotate(role, **more): return lambda function: function
    @staticmethod
    def annotate_tq(role, phase): return lambda function: function
"""
PPO_TRAINER = """
class PPOTrainer:
    def _add_batch_to_generate(self): pass
    def _next_train_batch(self, num_prompts=None): pass
    def _submit_batch_to_rollout(self, batch): pass
    def _reissue_inflight_prompts(self, partition_id="train"): pass
    def _validate(self): pass
"""
BUFFER = """
class ReplayBuffer:
    def sample(self, global_steps, partition_id, batch_size): pass
class ReplayBufferAsync(ReplayBuffer): pass
"""
OLD = {"trainer/ppo/ray_trainer.py": TRAINER, "utils/rollout_skip.py": SKIP}
NEW = {
    "trainer/ppo/ray_trainer.py": "class RayPPOTrainer:\n    def _get_gen_batch(self, batch): pass\n",
    "trainer/ppo/v1/trainer_base.py": PPO_TRAINER,
    "trainer/ppo/v1/replay_buffer.py": BUFFER,
    "utils/skip/__init__.py": "",
    "utils/skip/skip_manager.py": MANAGER,
}
RUN_OLD = """
import verl, rolltape.integrations.verl.plugin
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
trainer = RayPPOTrainer({config})
trainer.fit()
"""
RUN_NEW = """
import verl, rolltape.integrations.verl.plugin
import verl.trainer.ppo.ray_trainer, verl.trainer.ppo.v1.trainer_base, verl.trainer.ppo.v1.replay_buffer
from verl.utils.skip.skip_manager import SkipManager
SkipManager.init({config})
"""
TRAINER_FILE, SKIP_FILE = "trainer/ppo/ray_trainer.py", "utils/rollout_skip.py"
V1_FILE, BUFFER_FILE = "trainer/ppo/v1/trainer_base.py", "trainer/ppo/v1/replay_buffer.py"
MANAGER_FILE, IMPORT = "utils/skip/skip_manager.py", "from verl.utils.rollout_skip import RolloutSkip"
CHANGES = {
    "renamed": (OLD, TRAINER_FILE, "init_workers(self)", "start_workers(self)", "init_workers()"),
    "another parameter": (OLD, TRAINER_FILE, "(self, batch)", "(self, rows)", "_get_gen_batch(batch)"),
    "one more parameter": (OLD, SKIP_FILE, "rollout_wg)", "rollout_wg, clock)", "RolloutSkip(config"),
    "no skip at all": (OLD, TRAINER_FILE, IMPORT, "", "RolloutSkip"),
    "manager renamed": (NEW, MANAGER_FILE, "def set_step(step)", "def begin(step)", "set_step(step)"),
    "no step": (NEW, MANAGER_FILE, "step = -1", "current = -1", "SkipManager.step"),
    "V0 renamed": (
        NEW,
        TRAINER_FILE,
        "_get_gen_batch(",
        "_prompts_of(",
        "RayPPOTrainer._get_gen_batch(batch)",
    ),
    "V1 renamed": (NEW, V1_FILE, "_submit_batch_to_rollout", "_submit", "_submit_batch_to_rollout(batch)"),
    "V1 takes more": (NEW, V1_FILE, "_validate(self)", "_validate(self, split)", "PPOTrainer._validate()"),
    "V1 has no trainer": (NEW, V1_FILE, "class PPOTrainer", "class Trainer", "PPOTrainer._next_train_batch"),
    "buffer takes more": (NEW, BUFFER_FILE, "batch_size)", "batch_size, lane)", "ReplayBuffer.sample"),
    "no method": (NEW, V1_FILE, "def _validate(self): pass", "_validate = 1", "PPOTrainer._validate()"),
    "manager takes more": (NEW, MANAGER_FILE, "(role, phase)", "(role, phase, lane)", "annotate_tq"),
}


def release(folder, files, version="0.77.0", package="verl"):
    """A package of that release in a folder, with its metadata."""
    for name, text in files.items():
        path = folder / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in [folder / package, *(folder / package).rglob("*")]:
        if path.is_dir():
            (path / "__init__.py").touch()
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return folder


def python(folder, code, **env):
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ROLLTAPE_")}
    paths = os.pathsep.join([str(folder), str(SOURCE)])
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**ours, "PYTHONPATH": paths, **env}
    )


@pytest.fixture(params=CHANGES)
def changed(request, tmp_path):
    files, name, before, after, missing = CHANGES[request.param]
    assert before in files[name]
    folder = release(tmp_path, {**files, name: files[name].replace(before, after)})
    return folder, RUN_OLD if files is OLD else RUN_NEW, missing


def test_it_is_refused_where_the_environment_asks(changed, tmp_path):
    folder, program, missing = changed
    done = python(folder, program.format(config={}), ROLLTAPE_DIR=str(tmp_path / "t"), ROLLTAPE_MODE="record")
    assert done.returncode != 0
    assert "trained" not in done.stdout
    assert "UnsupportedReleaseError: verl 0.77.0 has no" in done.stderr
    assert missing in done.stderr
    (verl,) = [library for library in LIBRARIES if library.name == "verl"]
    assert ", ".join(verl.tested) in done.stderr
    assert not (tmp_path / "t").exists()


def test_it_is_left_alone_where_nobody_asks(changed):
    folder, program, _ = changed
    done = python(folder, program.format(config={}))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_it_is_refused_where_the_configuration_asks(changed, tmp_path):
    folder, program, missing = changed
    if missing.startswith("RolloutSkip(config"):
        program = program.replace("trainer.fit()", "RolloutSkip(trainer.config, None)").replace(
            "import RayPPOTrainer", "import RayPPOTrainer, RolloutSkip"
        )
    done = python(folder, program.format(config={"rolltape": {"dir": str(tmp_path / "t")}}))
    assert "UnsupportedReleaseError" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("files", "program"), [(OLD, RUN_OLD), (NEW, RUN_NEW)])
def test_an_unknown_release_with_all_that_is_needed_is_not_refused(tmp_path, files, program):
    """For its number alone no release is refused, and off it is as it was."""
    folder = release(tmp_path, files)
    done = python(folder, program.format(config={}))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    if files is OLD:
        look = program.format(config={}) + "\nfrom verl.utils.rollout_skip import RolloutSkip\n"
        done = python(folder, look + "print(RolloutSkip({}, None).theirs, RolloutSkip.__module__)")
        assert done.stdout == "trained\nTrue verl.utils.rollout_skip\n", done.stderr


@pytest.mark.parametrize("left", ["trainer/ppo/core.py", TRAINER_FILE, SKIP_FILE, "utils/skip/manager.py"])
def test_a_release_without_the_modules_is_refused_where_it_trains(tmp_path, left):
    """Nothing that could be wrapped is ever imported: the program would train without its tape."""
    moved = {**OLD, **NEW}.get(left, "").replace(IMPORT, "")
    folder = release(tmp_path, {left: moved, "trainer/main_ppo.py": "print('trained')\n"})
    program = "import verl, rolltape.integrations.verl.plugin\nimport verl.trainer.main_ppo"
    asked = python(folder, program, ROLLTAPE_DIR=str(tmp_path / "t"))
    assert (asked.stdout, asked.returncode) == ("", 1)
    assert "UnsupportedReleaseError: verl 0.77.0 has neither verl.utils.skip.skip_manager" in asked.stderr
    assert python(folder, program).stdout == "trained\n"


def test_a_trainer_that_starts_in_a_way_of_its_own_is_refused(tmp_path):
    """Where the workers are set up by a subclass, the tape would be under half of it."""
    apart = "    def init_workers(self): pass\n"
    folder = release(tmp_path, OLD)

    def run(*body, **env):
        kind = "class Apart(RayPPOTrainer):\n" + "".join(body)
        program = RUN_OLD.replace("trainer = RayPPOTrainer", f"{kind}trainer = Apart").format(config={})
        return python(folder, program, **env)

    own = "    def __init__(self, config): self.config = config\n"  # as verl's asynchronous trainers do
    for body in (apart, apart + own):
        asked = run(body, ROLLTAPE_DIR=str(tmp_path / "t"))
        assert "UnsupportedReleaseError: verl 0.77.0 starts Apart in a way of its own" in asked.stderr
        assert run(body).stdout == "trained\n"
    for call in ("super().init_workers()", "RayPPOTrainer.init_workers(self)"):
        adds = run(f"    def init_workers(self): {call}\n", ROLLTAPE_DIR=str(tmp_path / "t"))
        assert "in a way of its own" not in adds.stderr


@pytest.mark.parametrize("first", ["verl", "hydra_plugins.rolltape_verl"])
def test_a_program_of_hydra_may_import_verl_late(tmp_path, first):
    """Hydra looks for plugins when a program starts; without entry points it is the only one to name ours."""
    folder = release(tmp_path, OLD)
    imports = ", ".join(dict.fromkeys([first, "verl", "hydra_plugins.rolltape_verl"]))
    program = RUN_OLD.replace("verl, rolltape.integrations.verl.plugin", imports).format(config={})
    look = "from rolltape.integrations.verl.wrappers import is_marked\nprint(is_marked(trainer.init_workers))"
    assert python(folder, program + look).stdout == "trained\nTrue\n"
