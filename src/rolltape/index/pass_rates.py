"""How often the samples of a prompt passed. Pure.

>>> pass_rates(np.array([0, 0, 1]), np.array([1.0, 0.0, np.nan])).tolist()
[0.5, 0.5, nan]
"""

from __future__ import annotations

import numpy as np

PASSED = 1.0
"""The reward from which on a sample has passed, unless somebody says otherwise."""


def pass_rates(groups: np.ndarray, rewards: np.ndarray, passed: float = PASSED) -> np.ndarray:
    """For each sample, the share of its group whose reward is ``passed`` or more; NaN where none has one.

    ``groups`` numbers the groups from 0 on. A sample without a reward (NaN) has neither passed nor failed: it
    does not count.
    """
    if not len(groups):
        return np.zeros(0)
    known = ~np.isnan(rewards)
    size = int(groups.max()) + 1
    scored = np.bincount(groups, known, size)
    won = np.bincount(groups, known & (np.where(known, rewards, 0) >= passed), size)
    rates = np.divide(won, scored, out=np.full(size, np.nan), where=scored > 0)
    return np.asarray(rates[groups])
