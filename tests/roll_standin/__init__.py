"""A minimal stand-in for ROLL, which no registry has: the same modules, classes and signatures, no GPU.

Its schedulers draw their batches at random, so that "the same again" can only come from a tape.
"""

import contextlib
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

from rolltape.integrations import roll as integration

SOURCE = str(Path(__file__).parent / "src")
SCHEDULER = "roll.distributed.scheduler"


def forget_roll():
    for name in [name for name in sys.modules if name == "roll" or name.startswith("roll.")]:
        del sys.modules[name]


@contextlib.contextmanager
def importable(source=SOURCE):
    """ROLL can be imported from ``source``, afresh; afterwards nothing of it or the installer is left."""
    forget_roll()
    sys.path.insert(0, source)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        integration.uninstall()
        sys.path.remove(source)
        forget_roll()


def rollout_scheduler(config, mode="train", **more):
    module = importlib.import_module(f"{SCHEDULER}.rollout_scheduler")
    return module.RolloutScheduler(config, None, None, None, mode, **more)


def sampling_scheduler(config, domains=("math",), **more):
    module = importlib.import_module(f"{SCHEDULER}.generate_scheduler")
    clusters = {domain: object() for domain in domains}
    return module.DynamicSamplingScheduler(config, None, clusters, [], None, {}, **more)


def request(step, **meta):
    module = importlib.import_module(f"{SCHEDULER}.protocol")
    return module.DataProto(meta_info={"global_step": step, **meta})


def config(dump_dir, mode="dump", *, enable=True, **more):
    """A pipeline config as far as a scheduler looks at it."""
    module = importlib.import_module("roll.configs.base_config")
    mock = module.RolloutMockConfig(enable=enable, mode=mode, dump_dir=str(dump_dir))
    values = {"rollout_mock": mock, "generate_opt_level": 1, "seed": 42, "pretrain": "Qwen/Qwen2.5-0.5B"}
    return SimpleNamespace(**{**values, **more})
