"""The contract with one release of verl, in one process: `python scenarios.py WORK RESULTS.json`.

Each scenario is verl's own program, `TaskRunner.run` of its main_ppo, with a configuration and an
environment; what it did is written down, and judged by tests/verl/test_releases.py.
"""

import json
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

import running
import verl  # loads rolltape_standin
from hydra import compose, initialize_config_module
from verl.trainer.ppo import ray_trainer

try:
    import verl.trainer.main_ppo_v0 as main_ppo
except ModuleNotFoundError:  # before 0.9
    import verl.trainer.main_ppo as main_ppo

WORK, RESULTS = Path(sys.argv[1]), Path(sys.argv[2])
RELEASE = tuple(int(part) for part in verl.__version__.split(".")[:2])
RESULT = {}


class Refilling(ray_trainer.RayPPOTrainer):
    """Generates twice per step, as the DAPO recipe does where too many groups are filtered out."""

    def fit(self):
        from verl import DataProto

        self.global_steps = 1
        manager = (
            __import__("verl.utils.skip", fromlist=["SkipManager"]).SkipManager if RELEASE >= (0, 9) else None
        )
        if manager is not None:
            manager.init(self.config)
        for rows in self.train_dataloader:
            if manager is not None:
                manager.set_step(self.global_steps)
            batches = []
            for _ in range(2):
                batch = DataProto.from_single_dict(rows)
                prompts = self._get_gen_batch(batch).repeat(repeat_times=2, interleave=True)
                source = self.async_rollout_manager if self.async_rollout_mode else self.actor_rollout_wg
                batches.append(source.generate_sequences(prompts))
            whole = DataProto.concat(batches)
            whole.batch["advantages"] = whole.batch["responses"].float() - 0.5
            self.actor_rollout_wg.update_actor(whole)
            self.global_steps += 1
            if self.global_steps > self.total_training_steps:
                return


def own_keys(folder, action="cache", last=1):
    """The release's own configuration of its own skip."""
    rollout = "actor_rollout_ref.rollout"
    if RELEASE < (0, 8):
        return [f"{rollout}.skip_rollout=True", f"{rollout}.skip_dump_dir={folder}"]
    if RELEASE < (0, 9):
        keys = {"enable": True, "dump_dir": folder, "max_dump_step": last, "action": action}
        return [f"{rollout}.skip.{key}={value}" for key, value in keys.items()]
    keys = {"enable": True, "dump_dir": folder, "steps": list(range(1, 6)), "action": action}
    return [f"skip.rollout.{key}={value}" for key, value in keys.items()]


def scenario(name, *overrides, trainer=None, steps=running.STEPS, fails_at=None, **env):
    """Run the program once; what went wrong is part of the result."""
    folder = WORK / name
    folder.mkdir(parents=True)
    journal = folder / "journal.jsonl"
    journal.touch()
    before = dict(os.environ)
    os.environ.update(
        env, ROLLTAPE_TEST_JOURNAL=str(journal), VERL_FILE_LOGGER_PATH=str(folder / "metrics.jsonl")
    )
    os.environ["ROLLTAPE_TEST_FAIL_AT"] = str(fails_at or 0)
    own = ["trainer.use_v1=False"] if RELEASE >= (0, 9) else []
    config = compose("ppo_trainer", [*running.settings(WORK, folder, steps)[:-1], *own, *overrides])
    theirs, error = main_ppo.RayPPOTrainer, None
    main_ppo.RayPPOTrainer = trainer or theirs
    try:
        runner = getattr(main_ppo.TaskRunner, "__ray_metadata__", None)
        (main_ppo.TaskRunner if runner is None else runner.modified_class)().run(config)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        (folder / "error.txt").write_text(traceback.format_exc())
    finally:
        main_ppo.RayPPOTrainer = theirs
        install = sys.modules.get("rolltape.integrations.verl.install")
        if install is not None:
            install.stop()
        os.environ.clear()
        os.environ.update(before)
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    generated = [event for event in events if event["event"] == "generate"]
    RESULT[name] = {
        "generated": sum(not event["validate"] for event in generated),
        "validated": sum(event["validate"] for event in generated),
        "weights": [event["weight"] for event in events if event["event"] == "weights"],
        "error": error,
    }


def with_dumps(own_keys):
    """Dumps of the release's own skip: noticed beside a tape, imported, and played."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("rolltape").addHandler(handler)
    scenario("beside-dumps", *own_keys(WORK / "theirs"), ROLLTAPE_VERL="1", ROLLTAPE_MODE="replay")
    logging.getLogger("rolltape").removeHandler(handler)
    RESULT["named"] = "\n".join(line for line in said if "pickled dump" in line)
    subprocess.run(
        [sys.executable, "-m", "rolltape", "import", str(WORK / "theirs"), "--to", str(WORK / "dumped-tape")],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    # A dump says nothing of the run, nor of its prompts.
    unknown = dict.fromkeys(("model", "sampling", "data", "seed", "reward", "inputs"), "warn")
    tape = {"ROLLTAPE_DIR": str(WORK / "dumped-tape"), "ROLLTAPE_MATCH": json.dumps(unknown)}
    scenario("imported", steps=1, ROLLTAPE_MODE="replay", **tape)
    scenario("imported-by-keys", *own_keys(WORK / "unused"), **tape)


def main():
    tape, record, replay = str(WORK / "tape"), {"ROLLTAPE_MODE": "record"}, {"ROLLTAPE_MODE": "replay"}
    before = ray_trainer.RolloutSkip if RELEASE < (0, 9) else None
    scenario("off")
    scenario("off-own-keys", *own_keys(WORK / "theirs"))
    if list((WORK / "theirs").rglob("*")):
        with_dumps(own_keys)
    scenario("record", steps=4, ROLLTAPE_DIR=tape, **record)
    scenario("replay", steps=4, ROLLTAPE_DIR=tape, **replay)
    resume = f"trainer.resume_from_path={WORK / 'record' / 'checkpoints' / 'global_step_2'}"
    scenario("resume", "trainer.resume_mode=resume_path", resume, steps=4, ROLLTAPE_DIR=tape, **replay)
    scenario("missing", steps=5, ROLLTAPE_DIR=tape, **replay)
    match = json.dumps({"seed": "ignore", "data": "ignore"})
    scenario("other-prompts", "++data.seed=6", steps=4, ROLLTAPE_DIR=tape, ROLLTAPE_MATCH=match, **replay)
    scenario("other-model", "actor_rollout_ref.rollout.temperature=0.5", steps=4, ROLLTAPE_DIR=tape, **replay)
    cut = str(WORK / "cut")
    scenario("interrupted", fails_at=2, ROLLTAPE_DIR=cut, ROLLTAPE_MODE="auto")
    scenario("taken-up", ROLLTAPE_DIR=cut, ROLLTAPE_MODE="auto")
    for action in ("cache", "repeat", "repeat_last") if RELEASE == (0, 8) else ("cache",):
        keys = own_keys(f"tape:{WORK / action}", action, last=2)
        scenario(f"{action}-first", *keys, steps=5)
        scenario(f"{action}-again", *keys, steps=5)
    scenario("switch-first", *own_keys(WORK / "switch"), ROLLTAPE_VERL="1")
    scenario("switch-again", *own_keys(WORK / "switch"), ROLLTAPE_VERL="1")
    scenario("calls-first", trainer=Refilling, ROLLTAPE_DIR=str(WORK / "calls"), **record)
    scenario("calls-again", trainer=Refilling, ROLLTAPE_DIR=str(WORK / "calls"), **replay)
    val = ["trainer.test_freq=1", "trainer.val_before_train=True"]
    scenario("val-live", *val, ROLLTAPE_DIR=str(WORK / "val"), **record)
    scenario("val-first", *val, ROLLTAPE_DIR=str(WORK / "val2"), ROLLTAPE_VERL_VAL="1", **record)
    scenario("val-again", *val, ROLLTAPE_DIR=str(WORK / "val2"), ROLLTAPE_VERL_VAL="1", **replay)
    keys = own_keys(f"tape:{WORK / 'val3'}", "repeat" if RELEASE >= (0, 9) else "repeat_last")
    scenario("val-own-keys", *val, *keys)
    if RELEASE < (0, 7):  # where workers generate unless agent loops are asked for
        keys = ["actor_rollout_ref.rollout.mode=async", *own_keys(f"tape:{WORK / 'loops'}")]
        scenario("loops-first", *keys)
        scenario("loops-again", *keys)
    RESULT["class-stays"] = before is None or before is ray_trainer.RolloutSkip
    RESULTS.write_text(json.dumps(RESULT, indent=1))


with initialize_config_module("verl.trainer.config", version_base=None):
    main()
