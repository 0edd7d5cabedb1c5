"""Record the rollouts of an RL training run once; replay them bit for bit.

>>> import rolltape, tempfile
>>> tape = rolltape.Tape(tempfile.mkdtemp() + "/base", mode="record")
>>> @tape.stage("rollout")
... def generate(prompts):
...     return {"responses": [p[::-1] for p in prompts]}
>>> with tape.step(0):
...     batch = generate(["abc"])
>>> _ = tape.close()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rolltape import errors, hooks
from rolltape._version import __version__
from rolltape.errors import *  # noqa: F403

if TYPE_CHECKING:
    from rolltape.batch import Batch, register_adapter, register_role
    from rolltape.determinism import deterministic
    from rolltape.key import Key
    from rolltape.policy import Action, Decision, Mode, OnMiss, Overwrite
    from rolltape.pooling import Pool, pool
    from rolltape.reader import Run, open
    from rolltape.serving import serve
    from rolltape.settings import MatchLevel, OnError, Settings
    from rolltape.steps import StepSelector
    from rolltape.tape import Recording, Summary, Tape
    from rolltape.trusting import Trust, trust
    from rolltape.verify import Report, compare

_HOMES = {
    "batch": ("Batch", "register_adapter", "register_role"),
    "determinism": ("deterministic",),
    "key": ("Key",),
    "policy": ("Action", "Decision", "Mode", "OnMiss", "Overwrite"),
    "pooling": ("Pool", "pool"),
    "reader": ("Run", "open"),
    "serving": ("serve",),
    "settings": ("MatchLevel", "OnError", "Settings"),
    "steps": ("StepSelector",),
    "tape": ("Recording", "Summary", "Tape"),
    "trusting": ("Trust", "trust"),
    "verify": ("Report", "compare"),
}
"""Where each name lives. They are fetched at first use: a process that has this package installed as a
plugin, and never opens a tape, pays for neither pyarrow nor numpy."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Action", "Batch", "Decision", "Key", "MatchLevel", "Mode", "OnError", "OnMiss", "Overwrite",
    "Pool", "Recording", "Report", "Run", "Settings", "StepSelector", "Summary", "Tape", "Trust",
    "__version__", "compare", "deterministic", "open", "pool", "register_adapter", "register_role", "serve",
    "trust",
    *errors.__all__,
]  # fmt: skip


hooks.register_hook("differing calls", lambda: import_module("rolltape.serving.proof").differing)
hooks.register_hook("by prompt", lambda: import_module("rolltape.index.by_prompt").choose)
hooks.register_hook("logprobs", lambda: import_module("rolltape.trusting.probed").measure_probe)
hooks.register_hook("indexing", lambda: import_module("rolltape.index.index_writer").IndexWriter)
hooks.register_hook("run in a notebook", lambda: import_module("rolltape.viewer.notebook").run_html)
hooks.register_hook("engine", lambda: import_module("rolltape.engines.api.taped").TapedEngine)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rolltape' has no attribute {name!r}")
    value = getattr(import_module(f"rolltape.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
