"""How completions are sampled: ``SamplingParams``, the kind of log-probs, and the random numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.batch import register_adapter
from rolltape.choices import NamedOption
from rolltape.errors import ConfigError


class LogprobKind(NamedOption):
    """Which distribution a log-prob belongs to."""

    RAW = "raw"
    """The model's own: log-softmax of its unchanged logits. What a trainer recomputes."""
    PROCESSED = "processed"
    """The one sampled from: after temperature, top-k and top-p. At temperature 0 it is a point mass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample, the same for every engine. An invalid value raises ``ConfigError``, which names it.

    >>> SamplingParams(n=16, temperature=0.7, stop="\\n").stop
    ('\\n',)
    """

    n: int = 1
    """Completions per prompt: the size of a group."""
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that has this much probability."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 means all of them."""
    max_tokens: int = 256
    """The longest response. The model's context may end it earlier, also with finish reason ``length``."""
    min_tokens: int = 0
    """No end of sequence, stop token or stop text before this many tokens."""
    stop: Sequence[str] = ()
    """Texts that end a response. They are removed from the text, but their tokens stay."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end a response, besides the model's own. They stay in ``response_ids``."""
    ignore_eos: bool = False
    """Continue past the model's end of sequence, up to ``max_tokens``."""
    seed: int | None = None
    """Makes sampling repeatable. Each completion has its own random stream, see :func:`seed_for`."""
    logprobs: LogprobKind = LogprobKind.RAW
    """The kind of log-probs in the rollout."""
    top_logprobs: int = 0
    """Also return the k most likely tokens at every position, with log-probs of the same kind."""
    routes: bool = False
    """Also return the experts of every token, for a mixture-of-experts model."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "logprobs", LogprobKind.parse(self.logprobs))
        _check(self)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0

    @property
    def is_plain(self) -> bool:
        """Whether the sampled distribution is the model's own, so that both kinds of log-prob are equal."""
        return self.temperature == 1 and self.top_p == 1 and self.top_k == 0


def seed_for(seed: int, uid: str, index: int = 0) -> int:
    """The seed of one completion: independent of the rest of the batch and its order. 31 bits.

    >>> seed_for(1, "a") == seed_for(1, "a", 0) != seed_for(1, "a", 1)
    True
    """
    return _key(seed, uid, index) >> 33


def uniforms(seed: int, uid: str, index: int, count: int) -> np.ndarray:
    """The random numbers of one completion, one per token, in [0, 1): the same in any batch."""
    return np.random.Generator(np.random.Philox(key=_key(seed, uid, index))).random(count)


def _key(seed: int, uid: str, index: int) -> int:
    named = f"{seed}\0{uid}\0{index}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little")


def _check(params: SamplingParams) -> None:
    for name, least in (("n", 1), ("max_tokens", 1), ("min_tokens", 0), ("top_k", 0), ("top_logprobs", 0)):
        value = getattr(params, name)
        if not _is_int(value) or value < least:
            raise _bad(name, value, f"a whole number of at least {least}")
    if not _is_number(params.temperature) or not 0 <= params.temperature < math.inf:
        raise _bad("temperature", params.temperature, "a number of at least 0")
    if not _is_number(params.top_p) or not 0 < params.top_p <= 1:
        raise _bad("top_p", params.top_p, "a number above 0 and at most 1")
    if params.min_tokens > params.max_tokens:
        raise _bad("min_tokens", params.min_tokens, f"at most max_tokens ({params.max_tokens})")
    if not isinstance(params.routes, bool):
        raise _bad("routes", params.routes, "True or False")
    if params.seed is not None and not _is_int(params.seed):
        raise _bad("seed", params.seed, "a whole number or None")
    for text in params.stop:
        if not isinstance(text, str) or not text:
            raise _bad("stop", text, "non-empty text")
    for token in params.stop_token_ids:
        if not _is_int(token) or token < 0:
            raise _bad("stop_token_ids", token, "token ids")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bad(name: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{name} must be {wanted}, not {value!r}", where=f"SamplingParams.{name}")


register_adapter(SamplingParams, name="engines.sampling")
