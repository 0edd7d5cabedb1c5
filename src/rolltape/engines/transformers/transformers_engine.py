"""``TransformersEngine``: a transformers model in this process, batched, with exact log-probs.

Every completion has its own random stream, so that a seed gives the same tokens whatever else is in the
batch, except for rounding in the model's arithmetic, which depends on the batch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rolltape.engines.api.completion import Completion, Logprobs, not_a_number
from rolltape.engines.api.encoding import check_ids, check_stops, check_text_only
from rolltape.engines.api.engine import Engine
from rolltape.engines.api.finishing import Listener, listener
from rolltape.engines.api.libraries import library
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.rollout import Rollout
from rolltape.engines.api.sampling import SamplingParams, uniforms
from rolltape.engines.api.weights import check_fit
from rolltape.engines.transformers.tensor_inputs import (
    Encoded,
    Share,
    encode_prompt,
    plan_batches,
    split_by_media,
)
from rolltape.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from rolltape.engines.transformers.decoding import Row


class TransformersEngine(Engine):
    """Samples from a causal language model, or a vision-language model, of the transformers library."""

    name = "transformers"
    gives_routes = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        processor: Any = None,
        dtype: Any = None,
        device: Any = None,
        token_budget: int = 65536,
        weights_version: int = 0,
        max_staleness: int | None = None,
    ) -> None:
        """``model`` is a model or its path; from a path, its tokenizer and processor are loaded too.

        A model that takes images needs ``processor``, which includes the tokenizer. ``token_budget``
        limits how many tokens, of prompts and responses, are in memory at once.
        """
        super().__init__(weights_version=weights_version, max_staleness=max_staleness)
        library("torch", extra="transformers", for_what="TransformersEngine")
        hub = library("transformers", extra="transformers", for_what="TransformersEngine")
        if token_budget < 1:
            raise ConfigError(f"token_budget must be at least 1, not {token_budget}")
        if isinstance(model, (str, os.PathLike)):
            from rolltape.engines.transformers.loading import load

            model, tokenizer, processor = load(os.fspath(model), tokenizer, processor, dtype)
        elif dtype is not None:
            raise ConfigError("dtype= works only with the path of a model", hint="pass model.to(dtype)")
        self.version = str(hub.__version__)
        self.model = model if device is None else model.to(device)
        self.processor = processor
        self.tokenizer = tokenizer if tokenizer is not None else getattr(processor, "tokenizer", None)
        self.token_budget = token_budget
        text = self.model.config.get_text_config(decoder=True)
        self.vocab_size = int(text.vocab_size)
        self.context_length: int | None = getattr(text, "max_position_embeddings", None)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens with which the model ends a response by itself."""
        ends: set[int] = set()
        for source in (self.model.generation_config, self.tokenizer):
            found = getattr(source, "eos_token_id", None)
            ends.update([found] if isinstance(found, int) else found or ())
        return frozenset(ends)

    def score(
        self, rollout: Rollout, *, temperature: float = 1.0, token_budget: int | None = None
    ) -> list[Logprobs]:
        """The log-probs of the response tokens under the engine's current weights."""
        from rolltape.engines.transformers.scoring import score

        budget = token_budget or self.token_budget
        return score(
            self.model, rollout, temperature=temperature, token_budget=budget, processor=self.processor
        )

    # -- generation ------------------------------------------------------------------------------------

    def _prepare(self, prompts: list[Prompt], params: SamplingParams) -> list[Encoded]:
        """Refuse invalid input before anything runs."""
        from rolltape.engines.transformers.decoding import routers

        check_stops(params, self.vocab_size)
        if params.routes and not routers(self.model):
            raise EngineError(
                f"the model {type(self.model).__name__} has no experts",
                where="SamplingParams.routes",
                causes=["it is not a mixture of experts, or transformers does not know its routers"],
            )
        if self.processor is None:
            check_text_only(prompts, f"the model {type(self.model).__name__} without a processor")
        if params.stop and self.tokenizer is None:
            raise ConfigError(
                "stop texts need a tokenizer", where="SamplingParams.stop", hint="pass tokenizer="
            )
        found = [
            encode_prompt(prompt, self.tokenizer, self.processor, position)
            for position, prompt in enumerate(prompts)
        ]
        for position, one in enumerate(found):
            check_ids(one.ids, position, vocab_size=self.vocab_size, context=self.context_length)
        return found

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        import torch

        from rolltape.engines.transformers.decoding import Row

        encoded = self._prepare(prompts, params)
        seed = int(torch.randint(2**62, ())) if params.seed is None else params.seed
        longest = self.context_length
        room = [
            params.max_tokens if longest is None else min(params.max_tokens, longest - len(one.ids))
            for one in encoded
        ]
        rows = [
            [Row(uniforms(seed, str(prompt.uid), prompt.first + index, most)) for index in range(params.n)]
            for prompt, most in zip(prompts, room, strict=True)
        ]
        if (told := listener()) is not None:
            for at, group in enumerate(rows):
                for index, row in enumerate(group):
                    row.told = partial(self._tell, told, at, index, encoded[at])
        failed: dict[int, Exception] = {}
        lengths = [len(one.ids) for one in encoded]
        for batch in plan_batches(lengths, [params.n] * len(prompts), room, self.token_budget):
            try:
                self._run(batch, encoded, rows, params)
            except Exception as error:  # usually out of memory; the other batches continue
                failed.update((share.prompt, _broken(share.prompt, error)) for share in batch)
        return [failed.get(at) or self._answer(at, encoded[at], group) for at, group in enumerate(rows)]

    def _run(
        self, batch: list[Share], encoded: list[Encoded], rows: list[list[Row]], params: SamplingParams
    ) -> None:
        from rolltape.engines.transformers.decoding import decode
        from rolltape.engines.transformers.drawing import StopTexts
        from rolltape.engines.transformers.loading import evaluating

        ends = frozenset() if params.ignore_eos else self.end_token_ids
        stops = StopTexts(params.stop, self.tokenizer) if params.stop else None
        with evaluating(self.model):
            for shares in split_by_media(batch, encoded):
                decode(
                    self.model,
                    [encoded[share.prompt] for share in shares],
                    [rows[share.prompt][share.start : share.stop] for share in shares],
                    params,
                    ends.union(params.stop_token_ids),
                    stops,
                )

    def _tell(self, told: Listener, position: int, index: int, prompt: Encoded, row: Row) -> None:
        """Tell that a row has ended; one that is not a number fails in the end."""
        if not np.isnan(row.logprobs).any():
            told(position, index, [self._completion(prompt, row)])

    def _answer(self, position: int, prompt: Encoded, rows: list[Row]) -> list[Completion] | Exception:
        for index, row in enumerate(rows):
            if np.isnan(row.logprobs).any():
                return not_a_number(row.logprobs, index, position)
        return [self._completion(prompt, row) for row in rows]

    def _completion(self, prompt: Encoded, row: Row) -> Completion:
        text = row.text or ""
        if row.text is None and self.tokenizer is not None:
            text = self.tokenizer.decode(row.tokens, skip_special_tokens=True)
        return Completion(
            prompt_ids=prompt.ids,  # type: ignore[arg-type]
            response_ids=row.tokens,  # type: ignore[arg-type]
            text=str(text),
            logprobs=row.logprobs,  # type: ignore[arg-type]
            finish_reason=row.finish_reason,
            weights_version=self.weights_version,
            top_ids=row.top_ids or None,  # type: ignore[arg-type]
            top_logprobs=row.top_logprobs or None,  # type: ignore[arg-type]
            routes=np.concatenate(row.routes) if row.routes else None,
        )

    # -- weights ---------------------------------------------------------------------------------------

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        import torch

        mine = check_fit(tensors, self.model)
        with torch.no_grad():
            for name, tensor in tensors.items():
                mine[name].copy_(tensor)


def _broken(position: int, error: Exception) -> EngineError:
    failure = EngineError(
        f"the model failed on the batch of prompt {position}: {type(error).__name__}: {error}",
        where=f"prompts[{position}]",
        causes=["out of memory"],
        hint="create the engine with a smaller token_budget=",
    )
    failure.__cause__ = error
    return failure
