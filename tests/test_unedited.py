"""`rolltape run` over frameworks without a plugin point: on the tape without an edit, or refused.

The packages here are what TRL, slime and miles look like from outside; tests/trl/test_run_command.py has TRL.
"""

import json
import os
import subprocess
import sys

import pytest

from rolltape.cli.commands import noise
from rolltape.integrations import unedited
from tests.test_unknown_frameworks import CHANGES, TRAINER, trl
from tests.test_unknown_releases import SOURCE, release

SCRIPT = "from trl.trainer.grpo_trainer import GRPOTrainer as Trainer\nTrainer().train()\n"


def run(folder, script, mode="record", *, paths=(), **variables):
    """A script under `rolltape run`, with the packages of a folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ROLLTAPE_")}
    path = os.pathsep.join(map(str, [folder, *paths, SOURCE]))
    command = [sys.executable, "-m", "rolltape", "run", "--mode", mode, "--dir", str(folder / "t"), "--"]
    return subprocess.run(
        [*command, sys.executable, "-c", script], env={**environ, "PYTHONPATH": path, **variables},
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("change", ["renamed", "rewards renamed", "no vLLM"])
def test_a_trl_with_other_internals_does_not_begin_to_train(tmp_path, change):
    before, after, missing = CHANGES[change]
    folder = trl(tmp_path, TRAINER.replace(before, after))
    done = run(folder, SCRIPT)
    assert (done.stdout, done.returncode) == ("", 1)
    assert "UnsupportedReleaseError: trl 1.77.0 has no" in done.stderr
    assert missing in done.stderr
    assert not (tmp_path / "t").exists()
    assert run(folder, SCRIPT, "off").stdout == "trained\n"


def test_a_trl_whose_trainers_are_elsewhere_does_not_begin_to_train(tmp_path):
    folder = trl(tmp_path, TRAINER, "rl/grpo.py")
    script = SCRIPT.replace("trainer.grpo_trainer", "rl.grpo")
    done = run(folder, f"import trl\n{script}")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "has no trl.trainer.grpo_trainer" in done.stderr


OTHERS = """
from transformers.trainer import Trainer
class SFTTrainer(Trainer): pass
class OnlineDPOTrainer(Trainer):
    def _generate(self, model, prompts): pass
class GKDTrainer(SFTTrainer):
    def generate_on_policy_outputs(model, inputs): pass
class AsyncGRPOTrainer(Trainer): pass
"""
OPENS = "import rolltape; rolltape.Tape.from_env().close()\n"


def others(folder):
    release(folder, {"trainer.py": "class Trainer:\n    def train(self): print('trained')\n"}, "5.0.0",
            "transformers")  # fmt: skip
    trl(folder, TRAINER)
    (folder / "trl/trainer/others.py").write_text(OTHERS)
    return folder


@pytest.mark.parametrize("name", ["OnlineDPOTrainer", "GKDTrainer", "AsyncGRPOTrainer", "Mine"])
def test_a_trainer_that_generates_and_is_not_known_is_refused(tmp_path, name):
    mine = "class Mine(OnlineDPOTrainer): pass\n"
    script = f"import trl\nfrom trl.trainer.others import *\n{mine}{name}().train()\n"
    folder = others(tmp_path)
    done = run(folder, script)
    assert (done.stdout, done.returncode) == ("", 1)
    assert f"ConfigError: {name} is not supported" in done.stderr
    assert run(folder, script, "off").stdout == "trained\n"
    assert run(folder, OPENS + script).stdout == "trained\n"  # the script has a tape of its own


def test_a_trainer_that_generates_nothing_is_left_alone(tmp_path):
    done = run(
        others(tmp_path), "import trl\nfrom trl.trainer.others import SFTTrainer\nSFTTrainer().train()\n"
    )
    assert done.stdout == "trained\n"
    assert done.returncode == 4  # and nothing is on the tape


ARGUMENTS = """
from argparse import Namespace
def parse_args(add_custom_arguments=None):
    found = {"rollout_function_path": "theirs.generate", "eval_function_path": "theirs.generate"}
    return Namespace(**found | {given})
"""
PRINTS = """
import json, sys
from {package}.utils.arguments import parse_args
print(json.dumps(vars(parse_args())))
"""
OURS = {
    "slime": "rolltape.integrations.slime.generate_rollout",
    "miles": "rolltape.integrations.miles.RolloutFn",
}


def arguments(folder, package, given=None, mode="record", module="utils/arguments.py", **variables):
    """The arguments that a package has parsed under `rolltape run`."""
    release(folder, {module: ARGUMENTS.replace("{given}", repr(given or {}))}, "0.1.0", package)
    done = run(folder, PRINTS.format(package=package), mode, **variables)
    return json.loads(done.stdout) if done.stdout else done.stderr


@pytest.mark.parametrize("package", OURS)
def test_the_rollout_function_of_slime_and_miles_is_ours_and_records_theirs(tmp_path, package):
    assert arguments(tmp_path, package) == {
        "rollout_function_path": OURS[package],
        "eval_function_path": OURS[package],
        "rolltape_rollout_function": "theirs.generate",
    }


@pytest.mark.parametrize("package", OURS)
def test_their_evaluation_is_theirs(tmp_path, package):
    found = arguments(tmp_path, package, {"eval_function_path": "theirs.evaluate"})
    assert found["rolltape_eval_function"] == "theirs.evaluate"
    assert found["eval_function_path"] == OURS[package]


@pytest.mark.parametrize("package", OURS)
def test_what_the_user_has_named_stays(tmp_path, package):
    by_argument = arguments(tmp_path, package, {"rollout_function_path": OURS[package]})
    assert by_argument["rollout_function_path"] == OURS[package]
    assert "rolltape_rollout_function" not in by_argument
    by_variable = arguments(tmp_path, package, ROLLTAPE_SLIME_FUNCTION="mine.generate")
    assert by_variable["rollout_function_path"] == OURS[package]
    assert "rolltape_rollout_function" not in by_variable
    by_file = arguments(tmp_path, package, {"rolltape_rollout_function": "mine.generate"})
    assert by_file["rolltape_rollout_function"] == "mine.generate"


def test_miles_with_functions_gets_a_function(tmp_path):
    found = arguments(tmp_path, "miles", MILES_USE_LEGACY_ROLLOUT_V1="1")
    assert found["rollout_function_path"] == OURS["slime"]
    assert (
        arguments(tmp_path, "miles", MILES_USE_LEGACY_ROLLOUT_V1="0")["rollout_function_path"]
        == OURS["miles"]
    )


def test_what_cannot_be_recorded_of_miles(tmp_path):
    assert "--fully-async" in arguments(tmp_path, "miles", {"fully_async": True})
    found = arguments(tmp_path, "miles", {"eval_function_path": "theirs.Eval", "eval_uses_snapshots": True})
    assert found["eval_function_path"] == "theirs.Eval"
    assert found["rollout_function_path"] == OURS["miles"]


@pytest.mark.parametrize("package", OURS)
@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"module": "options.py"}, "has no {}.utils.arguments"),
        ({"given": {"rollout_function_path": None}}, "parses no rollout_function_path"),
    ],
    ids=["no module", "no argument"],
)
def test_other_internals_are_refused_with_the_way_by_hand(tmp_path, package, change, missing):
    said = arguments(tmp_path, package, **change)
    assert f"UnsupportedReleaseError: {package} 0.1.0 {missing.format(package)}" in said
    assert f"--rollout-function-path {OURS[package]}" in said


@pytest.mark.parametrize("package", OURS)
def test_off_leaves_the_arguments_alone(tmp_path, package):
    found = arguments(tmp_path, package, mode="off")
    assert found == {"rollout_function_path": "theirs.generate", "eval_function_path": "theirs.generate"}


def test_a_sitecustomize_of_the_user_is_imported_as_before(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__\n")
    done = run(tmp_path, "import sitecustomize; print(mine == sitecustomize.__file__)")
    assert done.stdout == "True\n"


def test_one_that_fails_is_reported_as_python_does(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import gone\n")
    done = run(tmp_path, "print('ran')")
    assert done.stdout == "ran\n"
    assert "No module named 'gone'" in done.stderr


def test_what_starts_under_it_costs_no_framework(tmp_path):
    heavy = "('numpy', 'pyarrow', 'torch', 'transformers', 'trl')"
    done = run(tmp_path, f"import sys; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout == "[]\n"


def test_a_python_without_rolltape_does_not_train_untaped(tmp_path):
    (tmp_path / "rolltape").mkdir()
    (tmp_path / "rolltape/__init__.py").write_text("raise ImportError('not here')\n")
    folder = trl(tmp_path, TRAINER)
    path = os.pathsep.join([unedited.FOLDER, str(folder)])
    command = [sys.executable, "-c", f"print('ran')\n{SCRIPT}"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("ran\n", 1)
    assert "has no Rolltape: nothing that trl generates would be on the tape" in done.stderr


@pytest.mark.parametrize("before", [None, "", "a", "a::b", f"{unedited.FOLDER}:a", "a:"])
def test_the_path_of_the_user_stays_as_it_is(before):
    environ = {} if before is None else {"PYTHONPATH": before}
    unedited.reach(environ)
    first, *rest = environ["PYTHONPATH"].split(os.pathsep)
    assert first == unedited.FOLDER
    assert os.pathsep.join(rest) == (before or "").removeprefix(f"{unedited.FOLDER}{os.pathsep}")


def test_the_runs_of_noise_are_reached_too():
    assert noise.environment({}, "/t", "/out")["PYTHONPATH"] == unedited.FOLDER
