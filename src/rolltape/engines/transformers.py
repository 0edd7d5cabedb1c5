"""``TransformersEngine``: a transformers model in this process, batched, with exact log-probs.

Every completion draws from a random stream of its own, so that a seed gives the same tokens whatever else is
in the batch, up to the rounding of the model's arithmetic, which depends on the batch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rolltape.engines.batching import Share, plan_batches
from rolltape.engines.completion import Completion
from rolltape.engines.encoding import check_ids, check_stops, check_text_only
from rolltape.engines.engine import Engine
from rolltape.engines.libraries import library
from rolltape.engines.prompt import Prompt
from rolltape.engines.rollout import Rollout
from rolltape.engines.sampling import SamplingParams, uniforms
from rolltape.engines.weights import check_tied, check_weights
from rolltape.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from rolltape.engines.completion import Logprobs
    from rolltape.engines.decoding import Row
    from rolltape.engines.inputs import Encoded


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
        """``model`` is a model or the path of one; a path brings its tokenizer and processor along.

        ``processor`` is what a model that takes images needs; it has the tokenizer in it. ``token_budget``
        limits how many tokens, of prompts and responses, are in memory at once.
        """
        super().__init__(weights_version=weights_version, max_staleness=max_staleness)
        library("torch", extra="transformers", for_what="TransformersEngine")
        hub = library("transformers", extra="transformers", for_what="TransformersEngine")
        if token_budget < 1:
            raise ConfigError(f"token_budget={token_budget} cannot be: it is a count of tokens")
        if isinstance(model, (str, os.PathLike)):
            from rolltape.engines.loading import load

            model, tokenizer, processor = load(os.fspath(model), tokenizer, processor, dtype)
        elif dtype is not None:
            raise ConfigError("dtype= goes with the path of a model", hint="pass model.to(dtype)")
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
        """The log-probs of the response tokens under the engine's present weights."""
        from rolltape.engines.scoring import score

        budget = token_budget or self.token_budget
        return score(
            self.model, rollout, temperature=temperature, token_budget=budget, processor=self.processor
        )

    # -- generation ------------------------------------------------------------------------------------

    def _prepare(self, prompts: list[Prompt], params: SamplingParams) -> list[Encoded]:
        """Refuse what cannot be, before anything runs."""
        check_stops(params, self.vocab_size)
        self._check_routes(params)
        if self.processor is None:
            check_text_only(prompts, f"the model {type(self.model).__name__} without a processor")
        if params.stop and self.tokenizer is None:
            raise ConfigError(
                "stop texts need a tokenizer", where="SamplingParams.stop", hint="pass tokenizer="
            )
        return [self._encode(prompt, position) for position, prompt in enumerate(prompts)]

    def _check_routes(self, params: SamplingParams) -> None:
        from rolltape.engines.routing import routers

        if params.routes and not routers(self.model):
            raise EngineError(
                f"the model {type(self.model).__name__} has no experts that tokens could go to",
                where="SamplingParams.routes",
                causes=["it is not a mixture of experts, or transformers cannot tell its routers"],
            )

    def _encode(self, prompt: Prompt, position: int) -> Encoded:
        from rolltape.engines.inputs import encode_prompt

        encoded = encode_prompt(prompt, self.tokenizer, self.processor, position)
        check_ids(encoded.ids, position, vocab_size=self.vocab_size, context=self.context_length)
        return encoded

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        import torch

        encoded = self._prepare(prompts, params)
        seed = int(torch.randint(2**62, ())) if params.seed is None else params.seed
        room = [self._room(one, params) for one in encoded]
        rows = [self._rows(prompt, params, seed, room[at]) for at, prompt in enumerate(prompts)]
        failed: dict[int, Exception] = {}
        lengths = [len(one.ids) for one in encoded]
        for batch in plan_batches(lengths, [params.n] * len(prompts), room, self.token_budget):
            try:
                self._run(batch, encoded, rows, params)
            except Exception as error:  # out of memory, mostly; the other batches go on
                failed.update((share.prompt, _broken(share.prompt, error)) for share in batch)
        return [failed.get(at) or self._answer(at, encoded[at], group) for at, group in enumerate(rows)]

    def _room(self, prompt: Encoded, params: SamplingParams) -> int:
        if self.context_length is None:
            return params.max_tokens
        return min(params.max_tokens, self.context_length - len(prompt.ids))

    def _rows(self, prompt: Prompt, params: SamplingParams, seed: int, room: int) -> list[Row]:
        from rolltape.engines.decoding import Row

        return [Row(uniforms(seed, str(prompt.uid), index, room)) for index in range(params.n)]

    def _run(
        self, batch: list[Share], encoded: list[Encoded], rows: list[list[Row]], params: SamplingParams
    ) -> None:
        from rolltape.engines.decoding import decode
        from rolltape.engines.evaluating import evaluating
        from rolltape.engines.inputs import split_by_media
        from rolltape.engines.stopping import StopTexts

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

    def _answer(self, position: int, prompt: Encoded, rows: list[Row]) -> list[Completion] | Exception:
        for index, row in enumerate(rows):
            bad = next((at for at, value in enumerate(row.logprobs) if value != value), None)
            if bad is not None:
                return EngineError(
                    f"the log-prob of token {bad} of completion {index} of prompt {position} is not a number",
                    where=f"prompts[{position}]",
                    causes=["the weights hold NaN or infinity", "a half-precision overflow"],
                )
        return [self._completion(prompt, row) for row in rows]

    def _completion(self, prompt: Encoded, row: Row) -> Completion:
        text = row.text
        if text is None:
            text = (
                "" if self.tokenizer is None else self.tokenizer.decode(row.tokens, skip_special_tokens=True)
            )
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

        mine = dict(self.model.state_dict(keep_vars=True))
        names: dict[int, list[str]] = {}
        for name, parameter in mine.items():
            names.setdefault(id(parameter), []).append(name)
        tied = [group for group in names.values() if len(group) > 1]
        buffers = {name for name, _ in self.model.named_buffers()}
        check_weights(tensors, mine, tied=tied, optional=buffers)
        check_tied(tensors, tied)
        with torch.no_grad():
            for name, tensor in tensors.items():
                mine[name].copy_(tensor)


def _broken(position: int, error: Exception) -> EngineError:
    failure = EngineError(
        f"the model failed on the batch of prompt {position}: {type(error).__name__}: {error}",
        where=f"prompts[{position}]",
        causes=["out of memory"],
        hint="a smaller token_budget= for the engine",
    )
    failure.__cause__ = error
    return failure
