"""slime on tapes: a rollout function that records what another returns, and replays it.

    --rollout-function-path rolltape.integrations.slime.generate_rollout

With ``--custom-generate-function-path rolltape.integrations.slime.generate`` besides, a run that is killed in
the middle of a rollout goes on with the samples that had finished.

With ``--rollout-data-postprocess-path rolltape.integrations.slime.measure`` besides, slime reports how far
the trainer's log-probs lie from the engine's.

For miles, a fork of slime, use ``rolltape.integrations.miles.RolloutFn``. See docs/slime.md.
"""

from rolltape.integrations.slime.generate_function import generate
from rolltape.integrations.slime.log_probs import measure
from rolltape.integrations.slime.rollout_function import generate_rollout

__all__ = ["generate", "generate_rollout", "measure"]
