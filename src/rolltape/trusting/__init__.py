"""How far a replay may be trusted: what its trainer's log-probs say against those of who sampled the tokens.

Estimates (``estimates``, ``tails``) and structure tests (``structure``) are pure functions of :class:`Pairs`;
``taking`` makes those from tapes, ``verdict`` says what a run may be used for, ``run_trust`` asks them all.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> engine = [-1 - rng.exponential(size=20) for _ in range(64)]
>>> pairs = Pairs.of(engine, [row + 0.01 * rng.normal(size=20) for row in engine])
>>> found = over_tokens(pairs)
>>> bool(found["k2"].low < 0.5e-4 < found["k2"].high), find_structure(pairs)
(True, [])
"""

from rolltape.trusting.alike import Kind
from rolltape.trusting.estimates import Estimate, Estimates, over_sequences, over_tokens
from rolltape.trusting.live import Meter
from rolltape.trusting.pairs import Pairs
from rolltape.trusting.run_trust import Level, StepTrust, Trust, to_json, trust
from rolltape.trusting.structure import Finding, find_structure
from rolltape.trusting.tails import tails
from rolltape.trusting.use_verdict import Verdict

__all__ = [
    "Estimate", "Estimates", "Finding", "Kind", "Level", "Meter", "Pairs", "StepTrust", "Trust", "Verdict",
    "find_structure", "over_sequences", "over_tokens", "tails", "to_json", "trust",
]  # fmt: skip
