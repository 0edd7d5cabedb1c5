"""What kind of number a column, a value or a metric is, by its name: how its limit follows its scale.

A learning rate of 1e-6 and a loss of 1e-6 are not alike: the one is as exact as any number, the other is what
rounding leaves of values that cancel. Names tell them apart; what no name tells is relative to its own scale.
"""

from __future__ import annotations

import re

from rolltape.reader.samples import STATES
from rolltape.tape.probe import PREFIX as PROBE
from rolltape.verify.measure.limits import Kind

USUAL = Kind(floor=0.01)
"""Relative to the root mean square; below a hundredth, a step of a single float near one passes."""
DIFFERENCE = Kind(floor=1.0)
"""Made by subtracting: log-probs, entropies, KL, advantages, losses. As exact as what was subtracted."""
MEAN = Kind(floor=0.1)
"""A single number made of such differences: rounding averages out in part."""
SHARE = Kind(floor=100.0)
"""How many of all tokens are clipped, say: rounding moves some over the border. A thousandth passes."""
RATE = Kind(floor=0.0, factor=0.0)
"""Learning rates and coefficients: relative, each by itself."""
GRADIENT = Kind(floor=0.0, factor=10.0)
"""Gradients and what an optimizer keeps of them: relative to the tensor; for sums that cancel, ten times."""
WEIGHT = Kind(floor=0.0, factor=0.1)
"""What a step starts from: relative to the tensor, and so exact that one update is seen."""
ACTIVATION = Kind(floor=1e-6)
"""Tensors from inside a step: relative to the tensor."""

_RATES = {"lr", "lrs", "coef", "coefs", "coeff", "coeffs", "coefficient", "decay", "temperature", "epsilon"}
_GRADIENTS = {"grad", "grads", "gradient", "gradients", "gnorm", "backward", "momentum", "moment", "moments"}
_MOMENTS = ("exp_avg", "max_exp_avg")
_WEIGHTS = {"weight", "weights", "param", "params", "parameters", "optimizer", "optim", "checkpoint"}
_SHARES = {"clipfrac", "clipfracs", "clipped", "frac", "fraction"}
_DIFFERENCES = {
    "kl", "kls", "kld", "divergence", "advantage", "advantages", "adv", "advs", "loss", "losses", "entropy",
    "entropys", "entropies", "logprob", "logprobs", "logp", "logps", "logratio", "diff", "diffs",
    "difference", "delta", "deltas", "mismatch", "residual", "drift", "gap", "td", "centered", "whitened",
    "variance",
}  # fmt: skip
_CLOCKS = {
    "time", "times", "timing", "timings", "second", "seconds", "sec", "secs", "ms", "duration", "latency",
    "elapsed", "runtime", "walltime", "wallclock", "timestamp", "throughput", "tps", "tgs", "speed", "mfu",
    "flops", "tflops", "memory", "mem", "vram", "rss", "utilization", "util",
}  # fmt: skip


def is_clock(name: str) -> bool:
    """Whether a metric tells of the machine and not of the training: times, throughputs, memory.

    >>> [is_clock(name) for name in ("timing_s/gen", "perf/mfu", "tok/s", "pg_loss", "time_penalty")]
    [True, True, True, False, False]
    """
    words = set(_words(name))
    if words & {"reward", "rewards", "score", "scores", "penalty", "loss"}:
        return False
    return bool(words & _CLOCKS) or name.lower().endswith("/s")


def kind_of(stage: str, name: str, *, single: bool = False) -> Kind:
    """The kind of a column or, with ``single``, of a number that belongs to no sample.

    >>> kind_of("loss", "log_probs") is DIFFERENCE, kind_of("state", "optimizer/exp_avg_sq") is GRADIENT
    (True, True)
    >>> kind_of("metrics", "actor/lr", single=True) is RATE
    True
    """
    within, words = set(_words(stage)), _words(name)
    known, together = set(words), "_".join(words)
    if known & _RATES or "learning_rate" in together:
        return RATE
    if (known | within) & _GRADIENTS or any(moment in together for moment in _MOMENTS):
        return GRADIENT
    if stage in STATES:
        return WEIGHT
    if known & _SHARES or "clip_ratio" in together:
        return SHARE
    if single or stage.startswith(PROBE):  # a loss that is called `total`, or a value that was probed
        known, together = known | within, f"{'_'.join(_words(stage))}_{together}"
    if known & _DIFFERENCES or any(word in together for word in ("log_prob", "log_ratio", "explained_var")):
        return MEAN if single else DIFFERENCE
    if within & _WEIGHTS:
        return WEIGHT
    return ACTIVATION if stage.startswith(PROBE) else USUAL


def _words(name: str) -> list[str]:
    """The words of a name: ``actor/pgLoss_mean`` has four."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return re.findall(r"[a-z]+", apart.lower())
