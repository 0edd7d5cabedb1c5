"""``Rollout``: the result of ``generate``, one entry per completion, in the same form for every engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from rolltape.batch import register_adapter
from rolltape.engines.api.completion import Completion, FinishReason, Ids, Logprobs
from rolltape.engines.api.libraries import library
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.sampling import LogprobKind, SamplingParams
from rolltape.errors import BatchError


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """One row per completion, as torch tensors or numpy arrays."""

    prompts: Any
    """Token ids, int64, padded on the left."""
    responses: Any
    """Token ids, int64, padded on the right."""
    input_ids: Any
    """Both side by side."""
    attention_mask: Any
    """int64: 1 where there is a token."""
    position_ids: Any
    """int64: counts tokens from 0, without the padding."""
    response_mask: Any
    """int64, as wide as the responses."""
    rollout_log_probs: Any
    """float32, as wide as the responses, 0 in the padding."""

    def columns(self) -> dict[str, Any]:
        """The columns by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """Completions as columns: groups in the order of the prompts, and within a group by index.

    A stage may return one: it is replayed exactly, also in a process without any engine.
    """

    prompts: list[Prompt]
    """The prompt of each group as it was given, with its uid, images and videos."""
    group: np.ndarray
    """Per completion: the position of its prompt in ``prompts``."""
    index: np.ndarray
    """Per completion: its number within the group."""
    prompt_ids: list[Ids]
    response_ids: list[Ids]
    texts: list[str]
    logprobs: list[Logprobs]
    finish_reasons: list[FinishReason]
    weights_versions: np.ndarray
    logprob_kind: LogprobKind
    """Which distribution ``logprobs`` and ``top_logprobs`` belong to: the model's own, or the sampled one."""
    sampling: SamplingParams
    """How it was sampled."""
    engine: str
    engine_version: str
    top_ids: list[Ids] | None = None
    top_logprobs: list[Logprobs] | None = None
    routes: list[np.ndarray] | None = None

    @classmethod
    def of(
        cls,
        prompts: Sequence[Prompt],
        groups: Sequence[Sequence[Completion]],
        *,
        logprob_kind: LogprobKind,
        sampling: SamplingParams,
        engine: str,
        engine_version: str,
    ) -> Rollout:
        """A rollout from the completions of each prompt."""
        rows = [row for group in groups for row in group]
        sizes = [len(group) for group in groups]
        return cls(
            prompts=list(prompts),
            group=np.repeat(np.arange(len(groups), dtype=np.int64), sizes),
            index=np.array(
                [
                    prompt.first + at
                    for prompt, size in zip(prompts, sizes, strict=True)
                    for at in range(size)
                ],
                np.int64,
            ),
            prompt_ids=[row.prompt_ids for row in rows],
            response_ids=[row.response_ids for row in rows],
            texts=[row.text for row in rows],
            logprobs=[row.logprobs for row in rows],
            finish_reasons=[FinishReason(row.finish_reason) for row in rows],
            weights_versions=np.array([row.weights_version for row in rows], np.int64),
            logprob_kind=logprob_kind,
            sampling=sampling,
            engine=engine,
            engine_version=engine_version,
            **{name: _optional([getattr(row, name) for row in rows]) for name in _OPTIONAL},
        )

    @classmethod
    def join(cls, rollouts: Sequence[Rollout]) -> Rollout:
        """Several rollouts of one engine as one, group after group: the finished part and a retry, say."""
        first = rollouts[0]
        for other in rollouts:
            for name in SHARED:
                if getattr(other, name) != getattr(first, name):
                    raise BatchError(
                        f"rollouts with a different {name} cannot be joined: "
                        f"{getattr(first, name)!s} and {getattr(other, name)!s}"
                    )
        uids = [prompt.uid for rollout in rollouts for prompt in rollout.prompts]
        if len(set(uids)) < len(uids):
            raise BatchError("two of the rollouts have a prompt with the same uid")
        starts = np.cumsum([0, *(len(rollout.prompts) for rollout in rollouts)])
        joined: dict[str, Any] = {
            name: [x for r in rollouts for x in getattr(r, name)] for name in ("prompts", *_RAGGED)
        }
        for name in _OPTIONAL:
            columns = [getattr(rollout, name) for rollout in rollouts]
            joined[name] = None if None in columns else [x for column in columns for x in column]
        shifted = [rollout.group + start for rollout, start in zip(rollouts, starts, strict=False)]
        return replace(
            first,
            group=np.concatenate(shifted),
            index=np.concatenate([rollout.index for rollout in rollouts]),
            weights_versions=np.concatenate([rollout.weights_versions for rollout in rollouts]),
            **joined,
        )

    def __len__(self) -> int:
        """The number of completions."""
        return len(self.response_ids)

    def __getitem__(self, row: int) -> Completion:
        columns = {name: getattr(self, name) for name in _OPTIONAL}
        return Completion(
            prompt_ids=self.prompt_ids[row],
            response_ids=self.response_ids[row],
            text=self.texts[row],
            logprobs=self.logprobs[row],
            finish_reason=self.finish_reasons[row],
            weights_version=int(self.weights_versions[row]),
            **{name: None if column is None else column[row] for name, column in columns.items()},
        )

    def __iter__(self) -> Iterator[Completion]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        tokens = sum(map(len, self.response_ids))
        return (
            f"Rollout({len(self)} completions of {len(self.prompts)} prompts, {tokens} tokens, {self.engine})"
        )

    @property
    def uid(self) -> list[str]:
        """Per completion: the uid of its prompt, which is the id of its group."""
        return [str(self.prompts[at].uid) for at in self.group]

    def groups(self) -> list[range]:
        """The rows of each prompt."""
        sizes = np.bincount(self.group, minlength=len(self.prompts))
        ends = np.cumsum(sizes)
        return [range(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]

    def to_padded(
        self,
        pad_token_id: int,
        *,
        prompt_length: int | None = None,
        response_length: int | None = None,
        torch: bool = True,
    ) -> Padded:
        """The rectangular arrays trainers use: prompts padded on the left, responses on the right, masks.

        Lengths default to the longest row; a row that does not fit is an error: nothing is cut.
        """
        left = _width("prompt", self.prompt_ids, prompt_length)
        right = _width("response", self.response_ids, response_length)
        prompts = np.full((len(self), left), pad_token_id, np.int64)
        responses = np.full((len(self), right), pad_token_id, np.int64)
        mask = np.zeros((len(self), left + right), np.int64)
        logprobs = np.zeros((len(self), right), np.float32)
        for row, (asked, answered) in enumerate(zip(self.prompt_ids, self.response_ids, strict=True)):
            prompts[row, left - len(asked) :] = asked
            responses[row, : len(answered)] = answered
            mask[row, left - len(asked) : left + len(answered)] = 1
            logprobs[row, : len(answered)] = self.logprobs[row]
        padded = Padded(
            prompts=prompts,
            responses=responses,
            input_ids=np.concatenate([prompts, responses], 1),
            attention_mask=mask,
            position_ids=np.maximum(mask.cumsum(1) - 1, 0),
            response_mask=mask[:, left:].copy(),
            rollout_log_probs=logprobs,
        )
        if not torch:
            return padded
        tensor = library("torch", extra="torch", for_what="to_padded").from_numpy
        return Padded(**{name: tensor(column) for name, column in padded.columns().items()})

    def to_dataproto(
        self, pad_token_id: int, *, prompt_length: int | None = None, response_length: int | None = None
    ) -> Any:
        """The same as verl's ``DataProto``, with the names that verl's trainer expects."""
        protocol = library("verl.protocol", extra="verl", for_what="to_dataproto")
        padded = self.to_padded(pad_token_id, prompt_length=prompt_length, response_length=response_length)
        return protocol.DataProto.from_dict(
            tensors=padded.columns(),
            non_tensors={
                "uid": np.array(self.uid, object),
                "index": self.index.astype(object),
                "response_text": np.array(self.texts, object),
                "finish_reason": np.array([str(reason) for reason in self.finish_reasons], object),
            },
            meta_info={
                "temperature": self.sampling.temperature,
                "logprob_kind": str(self.logprob_kind),
                "engine": self.engine,
                "engine_version": self.engine_version,
            },
        )


SHARED = ("engine", "engine_version", "logprob_kind", "sampling")
"""What all completions of a rollout have in common."""
_RAGGED = ("prompt_ids", "response_ids", "texts", "logprobs", "finish_reasons")
_OPTIONAL = ("top_ids", "top_logprobs", "routes")


def _width(what: str, rows: Sequence[np.ndarray], length: int | None) -> int:
    longest = max(map(len, rows), default=0)
    if length is None:
        return longest
    if longest > length:
        row = next(row for row, ids in enumerate(rows) if len(ids) > length)
        raise BatchError(
            f"the {what} of completion {row} has {len(rows[row])} tokens, but {what}_length is {length}",
            where=f"rollout.{what}_ids[{row}]",
            hint=f"set a larger {what}_length; it is not cut, to train only on what was sampled",
        )
    return length


def _optional(column: list[Any]) -> list[Any] | None:
    """The column if every completion has it, else None."""
    return None if not column or any(value is None for value in column) else column


def _to_parts(rollout: Rollout) -> dict[str, Any]:
    """As columns under the names that the tape knows; prompt ids are in their column and nowhere else."""
    rows = rollout.groups()
    prompts = [
        replace(prompt, token_ids=[])
        if prompt.token_ids is not None
        and rows[at]
        and prompt.token_ids == rollout.prompt_ids[rows[at][0]].tolist()
        else prompt
        for at, prompt in enumerate(rollout.prompts)
    ]
    return {
        "uid": rollout.uid,
        "index": rollout.index,
        "prompt_ids": rollout.prompt_ids,
        "response_ids": rollout.response_ids,
        "response": rollout.texts,
        "logprobs": rollout.logprobs,
        "finish_reason": [str(reason) for reason in rollout.finish_reasons],
        "weights_version": rollout.weights_versions,
        "group": rollout.group,
        **{name: getattr(rollout, name) for name in _OPTIONAL},
        "prompts": {"given": prompts},
        "logprob_kind": str(rollout.logprob_kind),
        "sampling": rollout.sampling,
        "engine": rollout.engine,
        "engine_version": rollout.engine_version,
    }


def _from_parts(parts: Mapping[str, Any]) -> Rollout:
    group, prompt_ids = parts["group"], parts["prompt_ids"]
    first = {int(at): row for row, at in reversed(list(enumerate(group)))}
    prompts = [
        replace(prompt, token_ids=prompt_ids[first[at]].tolist()) if prompt.token_ids == [] else prompt
        for at, prompt in enumerate(parts["prompts"]["given"])
    ]
    return Rollout(
        prompts=prompts,
        group=group,
        index=parts["index"],
        prompt_ids=prompt_ids,
        response_ids=parts["response_ids"],
        texts=parts["response"],
        logprobs=parts["logprobs"],
        finish_reasons=[FinishReason(reason) for reason in parts["finish_reason"]],
        weights_versions=parts["weights_version"],
        logprob_kind=LogprobKind(parts["logprob_kind"]),
        sampling=parts["sampling"],
        engine=parts["engine"],
        engine_version=parts["engine_version"],
        **{name: parts[name] for name in _OPTIONAL},
    )


register_adapter(Rollout, name="engines.rollout", to_parts=_to_parts, from_parts=_from_parts)
