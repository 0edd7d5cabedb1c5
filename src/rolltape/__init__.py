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

from rolltape import errors
from rolltape._version import __version__
from rolltape.batch import Batch, register_adapter
from rolltape.determinism import deterministic
from rolltape.errors import *  # noqa: F403
from rolltape.key import Key
from rolltape.policy import Action, Decision, Mode, OnMiss, Overwrite
from rolltape.settings import MatchLevel, OnError, Settings
from rolltape.steps import StepSelector
from rolltape.tape import Recording, Summary, Tape

__all__ = [
    "Action",
    "Batch",
    "Decision",
    "Key",
    "MatchLevel",
    "Mode",
    "OnError",
    "OnMiss",
    "Overwrite",
    "Recording",
    "Settings",
    "StepSelector",
    "Summary",
    "Tape",
    "__version__",
    "deterministic",
    "register_adapter",
    *errors.__all__,
]
