"""A release with unknown internals is refused where a tape is asked for, and left alone where none is.

The packages here are what a release of verl looks like from outside, with something missing or renamed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolltape.integrations.releases import LIBRARIES

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
    @staticmethod
    def init(config): print("trained")
    @staticmethod
    def set_step(step): pass
    @staticmethod
    def annotate(role, **more): return lambda function: function
    @staticmethod
    def annotate_tq(role, phase): return lambda function: function
"""
OLD = {"trainer/ppo/ray_trainer.py": TRAINER, "utils/rollout_skip.py": SKIP}
NEW = {
    "trainer/ppo/ray_trainer.py": "class RayPPOTrainer: pass\n",
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
from verl.utils.skip.skip_manager import SkipManager
SkipManager.init({config})
"""
TRAINER_FILE, SKIP_FILE = "trainer/ppo/ray_trainer.py", "utils/rollout_skip.py"
MANAGER_FILE, IMPORT = "utils/skip/skip_manager.py", "from verl.utils.rollout_skip import RolloutSkip"
CHANGES = {
    "renamed": (OLD, TRAINER_FILE, "init_workers(self)", "start_workers(self)", "init_workers()"),
    "another parameter": (OLD, TRAINER_FILE, "(self, batch)", "(self, rows)", "_get_gen_batch(batch)"),
    "one more parameter": (OLD, SKIP_FILE, "rollout_wg)", "rollout_wg, clock)", "RolloutSkip(config"),
    "no skip at all": (OLD, TRAINER_FILE, IMPORT, "", "RolloutSkip"),
    "manager renamed": (NEW, MANAGER_FILE, "def set_step(step)", "def begin(step)", "set_step(step)"),
    "manager takes more": (NEW, MANAGER_FILE, "(role, phase)", "(role, phase, lane)", "annotate_tq"),
}


def release(folder, files, version="0.77.0"):
    """A package of that release in a folder, with its metadata."""
    for name, text in files.items():
        path = folder / "verl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in [folder / "verl", *(folder / "verl").rglob("*")]:
        if path.is_dir():
            (path / "__init__.py").touch()
    info = folder / f"verl-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n")
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


def test_a_trainer_that_starts_in_a_way_of_its_own_is_refused(tmp_path):
    """Where the workers are set up by a subclass, the tape would be under half of it."""
    program = RUN_OLD.replace("trainer = RayPPOTrainer", "trainer = Apart").replace(
        "trainer = Apart", "class Apart(RayPPOTrainer):\n    def init_workers(self): pass\ntrainer = Apart"
    )
    folder = release(tmp_path, OLD)
    asked = python(folder, program.format(config={}), ROLLTAPE_DIR=str(tmp_path / "t"))
    assert "UnsupportedReleaseError: verl 0.77.0 starts Apart in a way of its own" in asked.stderr
    assert python(folder, program.format(config={})).stdout == "trained\n"
    adds = program.replace("def init_workers(self): pass", "def init_workers(self): super().init_workers()")
    assert (
        "in a way of its own" not in python(folder, adds.format(config={}), ROLLTAPE_DIR=str(tmp_path)).stderr
    )
