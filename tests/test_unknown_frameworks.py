"""TRL, ROLL, slime, miles and Ray with other internals are refused before anything is changed.

verl, of which there are releases of two kinds, has tests/test_unknown_releases.py.
"""

import importlib
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from rolltape.errors import UnsupportedReleaseError
from rolltape.integrations import miles, roll, slime
from rolltape.integrations.roll import workers
from rolltape.integrations.slime.rollout_function import Rollouts
from tests import roll_standin
from tests.test_slime_functions import standin
from tests.test_unknown_releases import python, release

TRAINER = """
class VLLMGeneration: pass
class GRPOTrainer:
    def __init__(self):
        class Any: pass
        self.callback_handler, self.state, self.processing_class, self.args = Any(), Any(), Any(), Any()
        self.callback_handler.callbacks, self.state.global_step = [], 0
        self.processing_class.batch_decode, self.args.seed = print, 0
        self.model, self.accelerator = None, Any()
        self.accelerator.process_index, self.accelerator.num_processes = 0, 1
    def _generate_single_turn(self, prompt_ids, images): pass
    def _calculate_rewards(self, inputs): pass
    def train(self): print("trained")
"""
RUN_TRL = """
from rolltape.integrations.trl import install
install()
import trl
from trl.{module} import {cls}
{cls}().train()
"""
CHANGES = {
    "renamed": (
        "_generate_single_turn(self, prompt_ids",
        "_generate(self, prompt_ids",
        "_generate_single_turn",
    ),
    "other parameter": ("prompt_ids, images", "prompts, images", "_generate_single_turn(prompt_ids, ...)"),
    "rewards renamed": ("_calculate_rewards", "_score", "_calculate_rewards(...)"),
    "no callbacks": ("callback_handler.callbacks,", "callback_handler.all,", "callback_handler.callbacks"),
    "no vLLM": ("VLLMGeneration", "Generation", "VLLMGeneration"),
    "trainer renamed": ("class GRPOTrainer", "class Trainer", "GRPOTrainer"),
}


def trl(folder, text, module="trainer/grpo_trainer.py"):
    package = release(folder, {module: text}, "1.77.0", "trl")
    (package / "trl/__init__.py").write_text("class GRPOTrainer: 'imported when it is used'\n")
    return package


@pytest.mark.parametrize("change", CHANGES)
def test_a_trl_with_other_internals(tmp_path, change):
    before, after, missing = CHANGES[change]
    assert before in TRAINER
    cls = "Trainer" if change == "trainer renamed" else "GRPOTrainer"
    program = RUN_TRL.format(module="trainer.grpo_trainer", cls=cls)
    folder = trl(tmp_path, TRAINER.replace(before, after))
    asked = python(folder, program, ROLLTAPE_DIR=str(tmp_path / "t"), ROLLTAPE_MODE="record")
    assert (asked.stdout, asked.returncode) == ("", 1)
    assert "UnsupportedReleaseError: trl 1.77.0 has no" in asked.stderr
    assert missing in asked.stderr
    assert "1.0.0, 1.4.0" in asked.stderr
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("change", CHANGES)
def test_such_a_trl_is_left_alone_where_nobody_asks(tmp_path, change):
    before, after, _ = CHANGES[change]
    cls = "Trainer" if change == "trainer renamed" else "GRPOTrainer"
    program = RUN_TRL.format(module="trainer.grpo_trainer", cls=cls)
    done = python(trl(tmp_path, TRAINER.replace(before, after)), program)
    assert done.stdout == "trained\n", done.stderr


def test_a_trl_whose_trainers_are_elsewhere(tmp_path):
    folder = trl(tmp_path, TRAINER, "rl/grpo.py")
    program = RUN_TRL.format(module="rl.grpo", cls="GRPOTrainer")
    asked = python(folder, program, ROLLTAPE_DIR=str(tmp_path / "t"))
    assert (asked.stdout, asked.returncode) == ("", 1)
    assert "UnsupportedReleaseError: trl 1.77.0 has no trl.trainer.grpo_trainer" in asked.stderr
    assert python(folder, program).stdout == "trained\n"


SCHEDULERS = "distributed/scheduler"
OLD_NAME, NEW_NAME = "get_batch(self, data: DataProto, global_step", "get_batch(self, request, global_step"
ROLL_CHANGES = {
    "renamed": ("rollout_scheduler.py", "class RolloutScheduler", "class Scheduler", "RolloutScheduler.get_"),
    "other parameter": ("generate_scheduler.py", OLD_NAME, NEW_NAME, "get_batch(data, batch_size, ...)"),
    "other mixin": ("rollout_mock_mixin.py", "_should_load_mock", "_loads", "_should_load_mock(global_step)"),
    "no module": ("rollout_mock_mixin.py", None, None, "rollout_mock_mixin"),
}


@pytest.mark.parametrize("change", ROLL_CHANGES)
def test_a_roll_with_other_internals(tmp_path, change, monkeypatch):
    monkeypatch.delenv("RAY_RUNTIME_ENV_HOOK", raising=False)
    name, before, after, missing = ROLL_CHANGES[change]
    shutil.copytree(Path(roll_standin.SOURCE) / "roll", tmp_path / "roll")
    file = tmp_path / "roll" / SCHEDULERS / name
    if before is None:
        file.unlink()
    else:
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after))
    with roll_standin.importable(str(tmp_path)):
        roll.install()
        with pytest.raises(UnsupportedReleaseError, match=r"roll .* has no") as caught:
            importlib.import_module(f"roll.distributed.scheduler.{name.removesuffix('.py')}")
    assert missing in str(caught.value)
    assert "@with_rollout_mock" in str(caught.value)


@pytest.fixture(params=["slime", "miles"])
def framework(request, monkeypatch, tmp_path):
    package = request.param
    modules = standin(package)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "theirs", ModuleType("theirs"))
    sys.modules["theirs"].generate = lambda *args, **named: "live"
    sys.modules["theirs"].Generate = lambda given: lambda given: "live"
    args = Namespace(rolltape_rollout_function="theirs.generate", hf_checkpoint="m")
    if package == "miles":
        args.rolltape_rollout_function = "theirs.Generate"

    def call():
        if package == "slime":
            return slime.generate_rollout(args, 0, None)
        given = SimpleNamespace(args=args, data_source=None)
        return miles.RolloutFn(given)(SimpleNamespace(rollout_id=0, evaluation=False))

    yield package, modules, call
    Rollouts._open = None


@pytest.mark.parametrize(
    "gone", ["utils.types.Sample", "rollout.base_types.RolloutFnTrainOutput", "utils.types"]
)
@pytest.mark.parametrize("asks", [True, False])
def test_a_slime_or_miles_with_other_internals(framework, monkeypatch, tmp_path, gone, asks):
    package, modules, call = framework
    name = f"{package}.{gone}"
    if name in modules:
        monkeypatch.delitem(sys.modules, name)
    else:
        module, _, attribute = name.rpartition(".")
        monkeypatch.delattr(modules[module], attribute)
    monkeypatch.setenv("ROLLTAPE_MODE", "record" if asks else "off")
    monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "t"))
    if not asks:
        assert call() == "live"
        return
    with pytest.raises(UnsupportedReleaseError, match=f"{package} .* has no {package}.{gone}"):
        call()
    assert not (tmp_path / "t").exists()


def test_a_ray_that_does_not_say_whether_this_is_a_worker(monkeypatch):
    ray = ModuleType("ray")
    ray.is_initialized = lambda: True
    ray.get_runtime_context = SimpleNamespace
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_RUNTIME_ENV_HOOK", raising=False)
    with pytest.raises(UnsupportedReleaseError, match=r"ray .*worker\.mode"):
        workers.reach()
