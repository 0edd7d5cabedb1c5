"""slime on tapes: a rollout function that records what another returns, and replays it.

    --rollout-function-path rolltape.integrations.slime.generate_rollout

For miles, a fork of slime, use ``rolltape.integrations.miles.RolloutFn``. See docs/slime.md.
"""

from rolltape.integrations.slime.rollout_function import generate_rollout

__all__ = ["generate_rollout"]
