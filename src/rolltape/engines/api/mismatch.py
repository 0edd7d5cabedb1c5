"""``mismatch``: how far the log-probs reported by an engine are from those of another computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rolltape.engines.api.completion import Logprobs
from rolltape.engines.api.rollout import Rollout
from rolltape.engines.api.sampling import LogprobKind
from rolltape.errors import BatchError, ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Mismatch:
    """Differences and importance ratios over all sampled tokens, in double precision.

    The ratio of a token is ``exp(scored - reported)``: the weight that corrects for it having been sampled
    from the reported distribution. The KL estimates are of reported against scored, from the sampled tokens.
    """

    difference: list[np.ndarray]
    """Per completion and token: scored − reported."""
    tokens: int
    mean: float
    mean_abs: float
    max_abs: float
    worst: tuple[int, int]
    """Completion and token of ``max_abs``."""
    ratio_mean: float
    ratio_min: float
    ratio_max: float
    ratio_std: float
    effective: float
    """The effective share of tokens, given their ratios: 1 if all ratios are equal."""
    k1: float
    """Mean of −log ratio: unbiased, may be negative."""
    k2: float
    """Mean of half the squared log ratio: biased, small variance."""
    k3: float
    """Mean of ratio − 1 − log ratio: unbiased, never negative."""

    def __str__(self) -> str:
        return (
            f"{self.tokens} tokens: |difference| mean {self.mean_abs:.3g}, max {self.max_abs:.3g} "
            f"(completion {self.worst[0]}, token {self.worst[1]}); "
            f"ratio {self.ratio_min:.4f} … {self.ratio_max:.4f}, mean {self.ratio_mean:.6f}; "
            f"KL k1 {self.k1:.3g}, k2 {self.k2:.3g}, k3 {self.k3:.3g}"
        )


def mismatch(rollout: Rollout, scored: Sequence[Logprobs], *, temperature: float = 1.0) -> Mismatch:
    """Compare the reported log-probs with ``score(model, rollout, temperature=temperature)``.

    Log-probs of different kinds are refused: their difference would say nothing about the engine.
    """
    _check(rollout, scored, temperature)
    difference = [
        np.asarray(theirs, np.float64) - np.asarray(ours, np.float64)
        for ours, theirs in zip(rollout.logprobs, scored, strict=True)
    ]
    log_ratio = np.concatenate(difference)
    size = np.abs(log_ratio)
    at = int(np.argmax(np.where(np.isnan(size), np.inf, size)))  # NaN counts as the worst
    ends = np.cumsum([len(row) for row in difference])
    row = int(np.searchsorted(ends, at, side="right"))
    ratio = np.exp(log_ratio)
    return Mismatch(
        difference=difference,
        tokens=len(log_ratio),
        mean=float(log_ratio.mean()),
        mean_abs=float(size.mean()),
        max_abs=float(size[at]),
        worst=(row, at - int(ends[row]) + len(difference[row])),
        ratio_mean=float(ratio.mean()),
        ratio_min=float(ratio.min()),
        ratio_max=float(ratio.max()),
        ratio_std=float(ratio.std()),
        effective=float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())),
        k1=float(-log_ratio.mean()),
        k2=float((log_ratio**2).mean() / 2),
        k3=float((np.expm1(log_ratio) - log_ratio).mean()),
    )


def _check(rollout: Rollout, scored: Sequence[Logprobs], temperature: float) -> None:
    if len(scored) != len(rollout):
        raise BatchError(f"{len(scored)} completions were scored, but the rollout has {len(rollout)}")
    for row, (ours, theirs) in enumerate(zip(rollout.logprobs, scored, strict=True)):
        if len(ours) != len(theirs):
            raise BatchError(f"completion {row} has {len(ours)} tokens, but {len(theirs)} were scored")
    if not sum(map(len, scored)):
        raise BatchError(
            "there are no tokens to compare", causes=["every prompt failed, or nothing was sampled"]
        )
    params = rollout.sampling
    if rollout.logprob_kind is LogprobKind.RAW or params.is_plain:
        if temperature != 1:
            raise ConfigError(
                f"the rollout has raw log-probs, but was scored at temperature {temperature}",
                hint="score at temperature 1, whatever temperature the rollout was sampled at",
            )
    elif params.top_p < 1 or params.top_k or temperature != params.temperature:
        raise ConfigError(
            "the rollout has processed log-probs, and scoring gave log-probs of another distribution: "
            f"sampled at temperature {params.temperature}, top_p {params.top_p}, top_k {params.top_k}, "
            f"scored at temperature {temperature}",
            hint='generate with logprobs="raw"; or without top_p and top_k, and score at that temperature',
        )
