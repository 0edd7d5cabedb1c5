"""``VLLMEngine``: vLLM in this process. Token ids in, ids and log-probs out, weights from the trainer.

vLLM's scheduler and workers run in this process, so that an update is a copy and nothing else.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rolltape.engines.api.completion import Completion, Logprobs
from rolltape.engines.api.encoding import check_ids, check_stops, check_text_only, encode, render_with_media
from rolltape.engines.api.engine import Engine
from rolltape.engines.api.finishing import listener
from rolltape.engines.api.libraries import library
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.rollout import Rollout
from rolltape.engines.api.sampling import LogprobKind, SamplingParams, seed_for
from rolltape.engines.api.weights import Skeleton, check_fit
from rolltape.engines.vllm import vllm_limits
from rolltape.engines.vllm.vllm_outputs import completions, forced_tokens, forcing, given_tokens
from rolltape.errors import ConfigError, EngineError, PromptError
from rolltape.random_state import capture, restore
from rolltape.releases import unsupported

NEEDS = (
    "LLM.enqueue(prompts, sampling_params, use_tqdm, ...)", "LLM.wait_for_completion(use_tqdm, ...)",
    "LLM.collective_rpc(method, args, ...)", "LLM.reset_prefix_cache(...)",
    "SamplingParams(flat_logprobs, logprob_token_ids, ...)",
)  # fmt: skip
"""What is called of vLLM; all of it is there since 0.20, the last to come was ``logprob_token_ids``."""


class VLLMEngine(Engine):
    """Samples with vLLM. Options that are not named here go to ``vllm.LLM`` as they are."""

    name = "vllm"
    gives_routes = True
    _open: weakref.ref[VLLMEngine] | None = None
    """The one engine in this process: its process groups are shared, and closing one engine closes them."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        logprobs: LogprobKind | str = LogprobKind.RAW,
        weights_version: int = 0,
        max_staleness: int | None = None,
        **options: Any,
    ) -> None:
        """``model`` is a path or a name on the hub. ``logprobs``: the kind that this engine returns; vLLM
        computes one kind for all requests."""
        super().__init__(weights_version=weights_version, max_staleness=max_staleness)
        self._vllm = library("vllm", extra="vllm", for_what="VLLMEngine", needs=NEEDS)
        self._kind = LogprobKind.parse(logprobs)
        self.llm: Any = None
        if "logprobs_mode" in options:
            raise ConfigError(
                "use logprobs= instead of vLLM's logprobs_mode", hint='logprobs="raw" or "processed"'
            )
        self._refuse_second()
        with _in_process():
            self.llm = self._vllm.LLM(
                os.fspath(model),
                logprobs_mode=f"{self._kind}_logprobs",
                **vllm_limits.with_whole_prompts(options),
            )
        self.version = str(self._vllm.__version__)
        self.tokenizer = self.llm.get_tokenizer()
        config = self.llm.model_config
        self.vocab_size = int(config.get_vocab_size())
        self.context_length = int(config.max_model_len)
        self._skeleton: Skeleton | None = None
        self._broken: Exception | None = None
        VLLMEngine._open = weakref.ref(self)

    @classmethod
    def for_scoring(cls, model: str | os.PathLike[str], **options: Any) -> VLLMEngine:
        """An engine that scores by forced decoding where this vLLM can, and by reading prompts where not."""
        if not vllm_limits.may_force_tokens():
            return cls(model, **vllm_limits.uncompiled(options))
        try:
            return cls(model, enable_trace_replay=True, **options)
        except ValueError as error:  # known only when it has chosen how it runs the model
            if "trace replay" not in str(error):
                raise
            return cls(model, **options)

    @property
    def forces_tokens(self) -> bool:
        """Whether it scores by forced decoding: the numbers are those of sampling, step by step."""
        self._refuse_broken()
        return bool(getattr(self.llm.model_config, "enable_trace_replay", False))

    def score(
        self, rollout: Rollout, *, temperature: float = 1.0, token_budget: int | None = None
    ) -> list[Logprobs]:
        """The log-probs of the response tokens under the engine's current weights.

        With ``enable_trace_replay=True`` (vLLM 0.32, not on CPU) the tokens are forced, one step each, and
        the numbers are those that sampling would have given; else they are read as prompts. vLLM uses its
        own token budget, ``max_num_batched_tokens``. It can score only at temperature 1.
        """
        if temperature != 1:
            raise EngineError(
                f"vLLM scores at temperature 1 only, not at {temperature}", hint="score with the model itself"
            )
        check_text_only(rollout.prompts, "scoring with vLLM")
        self._refuse_broken()
        rows = [row for row in range(len(rollout)) if len(rollout.response_ids[row])]
        scored = [np.empty(0, np.float32)] * len(rollout)
        read = self._forced if self.forces_tokens else self._read
        for row, found in zip(rows, read(rollout, rows) if rows else [], strict=True):
            scored[row] = found
        return scored

    def _forced(self, rollout: Rollout, rows: list[int]) -> list[Logprobs]:
        wanted = [[int(one) for one in rollout.response_ids[row]] for row in rows]
        asked = [self._vllm.SamplingParams(**forcing(ids)) for ids in wanted]
        prompts = [{"prompt_token_ids": np.asarray(rollout.prompt_ids[row]).tolist()} for row in rows]
        outputs = self.llm.generate(prompts, asked, use_tqdm=False)
        return [forced_tokens(output, ids) for output, ids in zip(outputs, wanted, strict=True)]

    def _read(self, rollout: Rollout, rows: list[int]) -> list[Logprobs]:
        whole = [
            np.concatenate([rollout.prompt_ids[row], rollout.response_ids[row]]).tolist() for row in rows
        ]
        # The last token is requested as the next token: a response may fill the whole context.
        asked = [
            self._vllm.SamplingParams(
                max_tokens=1, prompt_logprobs=0, logprobs=1, logprob_token_ids=[ids[-1]],
                flat_logprobs=True, detokenize=False,
            )
            for ids in whole
        ]  # fmt: skip
        outputs = self.llm.generate([{"prompt_token_ids": ids[:-1]} for ids in whole], asked, use_tqdm=False)
        return [
            given_tokens(output, ids)[len(rollout.prompt_ids[row]) - 1 :]
            for row, ids, output in zip(rows, whole, outputs, strict=True)
        ]

    def close(self) -> None:
        """Stop vLLM and free its memory."""
        if self.llm is not None:
            self.llm.llm_engine.engine_core.shutdown()
            self.llm = None

    # -- generation ------------------------------------------------------------------------------------

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        self._refuse_broken()
        self._check(prompts, params)
        inputs = [self._input(prompt, position) for position, prompt in enumerate(prompts)]
        ids = self._enqueue(inputs, [self._params(prompt, params) for prompt in prompts])
        try:
            with self._telling(ids, params):
                outputs = self.llm.wait_for_completion(use_tqdm=False)
        except Exception as error:  # it is unknown which prompt failed: all of the step is lost
            self._broken = error
            return [_failed(position, error) for position in range(len(prompts))]
        return [
            completions(output, params, position, self.tokenizer, self.weights_version)
            for position, output in enumerate(outputs)
        ]

    def _check(self, prompts: list[Prompt], params: SamplingParams) -> None:
        config = self.llm.model_config
        check_stops(params, self.vocab_size)
        if not config.is_multimodal_model:
            check_text_only(prompts, f"the model {config.model}")
        if params.logprobs is not self._kind and not (params.is_plain or params.is_greedy):
            raise EngineError(
                f"this engine returns {self._kind} log-probs, but {params.logprobs} ones were asked for",
                where="SamplingParams.logprobs",
                hint=f'create VLLMEngine(…, logprobs="{params.logprobs}")',
            )
        vllm_limits.refuse_coldest(params)
        whole = self.llm.llm_engine.vllm_config
        vllm_limits.refuse_cut_prompts(
            params,
            whole.device_config.device_type,
            whole.scheduler_config.enable_chunked_prefill,
            "create VLLMEngine(…) without enable_chunked_prefill=True, or omit the seed",
        )
        if params.routes and not hasattr(whole, "aux_output_config"):
            raise unsupported(
                "vllm", "has no aux_output_config, by which it returns the experts of each token"
            )
        if params.routes and not whole.aux_output_config.enabled:
            raise EngineError(
                "this engine was created without support for returning the experts of each token",
                where="SamplingParams.routes",
                hint="VLLMEngine(…, enable_return_routed_experts=True), with a mixture of experts on a GPU",
            )
        if params.top_logprobs > config.max_logprobs >= 0:
            raise EngineError(
                f"top_logprobs must be at most {config.max_logprobs} here, not {params.top_logprobs}",
                where="SamplingParams.top_logprobs",
                hint=f"create VLLMEngine(…, max_logprobs={params.top_logprobs})",
            )

    def _input(self, prompt: Prompt, position: int) -> dict[str, Any]:
        media = {
            kind: list(given) for kind, given in (("image", prompt.images), ("video", prompt.videos)) if given
        }
        if media:
            text = render_with_media(prompt, self._processor(), position)
            ids = list(self.tokenizer(text, add_special_tokens=prompt.messages is None)["input_ids"])
        else:
            ids = encode(prompt, self.tokenizer, position)
        check_ids(ids, position, vocab_size=self.vocab_size, context=self.context_length)
        return {"prompt_token_ids": ids, **({"multi_modal_data": media} if media else {})}

    def _processor(self) -> Any:
        """The model's processor, from vLLM: it knows the placeholder for an image."""
        processors = library("vllm.transformers_utils.processor", extra="vllm", for_what="VLLMEngine")
        return processors.cached_processor_from_config(self.llm.model_config)

    def _params(self, prompt: Prompt, params: SamplingParams) -> Any:
        return self._vllm.SamplingParams(
            n=params.n,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            stop=list(params.stop),
            stop_token_ids=list(params.stop_token_ids),
            ignore_eos=params.ignore_eos,
            seed=None if params.seed is None else seed_for(params.seed, str(prompt.uid)) + prompt.first,
            logprobs=params.top_logprobs,
            flat_logprobs=True,
            detokenize=bool(params.stop),  # otherwise all tokens become text at once, which is faster
        )

    @contextmanager
    def _telling(self, ids: Sequence[str], params: SamplingParams) -> Iterator[None]:
        """Tell the completions of a prompt as soon as vLLM has them all, while it works on the others."""
        told, engine = listener(), self.llm.llm_engine
        if told is None:
            yield
            return
        # Its own name of a request is ours with something behind it.
        positions = {request.partition("-")[0]: position for position, request in enumerate(ids)}
        step = engine.step

        def stepped() -> Any:
            outputs = step()
            for output in outputs:
                position = positions.get(str(output.request_id))
                if position is not None and output.finished:
                    rows = completions(output, params, position, self.tokenizer, self.weights_version)
                    if not isinstance(rows, Exception):
                        told(position, 0, rows)
            return outputs

        engine.step = stepped
        try:
            yield
        finally:
            del engine.step

    def _enqueue(self, inputs: list[dict[str, Any]], params: list[Any]) -> list[str]:
        """Queue all prompts or none: only here vLLM finds out how long a prompt with images is."""
        added: list[str] = []
        for position, (prompt, how) in enumerate(zip(inputs, params, strict=True)):
            try:
                added += self.llm.enqueue(prompt, how, use_tqdm=False)
            except Exception as error:  # of several types, all about this prompt
                self.llm.llm_engine.abort_request(added, internal=True)
                media = prompt.get("multi_modal_data", {})
                raise PromptError(
                    f"vLLM refuses prompt {position}: {error}",
                    where=f"prompts[{position}]" + (f".{next(iter(media))}s" if media else ""),
                ) from error
        return added

    def _refuse_second(self) -> None:
        other = None if VLLMEngine._open is None else VLLMEngine._open()
        if other is not None and other.llm is not None:
            raise EngineError(
                "this process already has a VLLMEngine, and vLLM supports only one per process",
                hint="close() the other one, or run them as replicas with RayEngine",
            )

    def _refuse_broken(self) -> None:
        if self.llm is None:
            raise EngineError("the engine is closed")
        if self._broken is not None:
            raise EngineError(
                f"vLLM failed before and cannot continue: {type(self._broken).__name__}: {self._broken}",
                hint="create a new engine",
            ) from self._broken

    # -- weights ---------------------------------------------------------------------------------------

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        self._refuse_broken()
        config = self.llm.model_config
        if config.quantization:
            raise EngineError(
                f"the engine's model is quantized ({config.quantization}) and cannot load plain weights"
            )
        if self._skeleton is None:
            self._skeleton = Skeleton(config.hf_config, config.dtype, extra="vllm")
        check_fit(tensors, self._skeleton.model)
        vllm_limits.refuse_experts(self._skeleton, self.llm.llm_engine.vllm_config.device_config.device_type)
        try:
            self.llm.collective_rpc(_reload, args=(self._skeleton.as_saved(tensors),))
            self.llm.reset_prefix_cache()
            self.llm.llm_engine.reset_mm_cache()
            self.llm.llm_engine.reset_encoder_cache()  # the scheduler must know that it was cleared
        except Exception as error:  # some layers may have new weights and some old ones
            self._broken = error
            raise EngineError(
                f"vLLM failed to load valid weights: {error}", hint="create a new engine"
            ) from error


def _reload(worker: Any, tensors: dict[str, Any]) -> None:
    worker.reload_weights(weights_iterator=iter(tensors.items()))


def _failed(position: int, error: Exception) -> EngineError:
    failure = EngineError(
        f"vLLM failed while prompt {position} was running: {type(error).__name__}: {error}",
        where=f"prompts[{position}]",
        hint="create a new engine",
    )
    failure.__cause__ = error
    return failure


@contextmanager
def _in_process() -> Iterator[None]:
    """Only an environment variable tells vLLM not to start its own process. In this one, which is the
    trainer's, it seeds the random generators: they are put back."""
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before, state = os.environ.get(name), capture()
    os.environ[name] = "0"
    try:
        yield
    finally:
        restore(state)
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
