"""What an index says of the samples of one recording: one row each, made of the recording alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from rolltape.batch import registry
from rolltape.batch.batch import Batch
from rolltape.batch.columns import Column, ObjectColumn, RaggedColumn
from rolltape.batch.digest import Digest
from rolltape.batch.json_values import is_tensor
from rolltape.batch.roles import columns_with
from rolltape.batch.tree import Dismantled
from rolltape.cached import cached_property
from rolltape.codec.file import decoding
from rolltape.errors import (
    CorruptFileError,
    MemoryLimitError,
    MissingDependencyError,
    StepMissingError,
    UnknownAdapterError,
    UnsupportedValueError,
)
from rolltape.index.prompt_key import SIZE, canonical, prompt_digest, sampling_digest, uid_digest
from rolltape.reader.samples import Samples
from rolltape.reader.wording import written
from rolltape.storage import Storage
from rolltape.tape.call_arguments import Arguments, Naming, read_arguments
from rolltape.tape.recording import Recording

SCHEMA = pa.schema(
    [
        pa.field("prompt", pa.binary(SIZE), nullable=False),
        pa.field("sampling", pa.binary(SIZE), nullable=False),
        pa.field("version", pa.int64()),
        pa.field("uid", pa.string(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("file", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("reward", pa.float64()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("response_tokens", pa.int32()),
        pa.field("finish", pa.string()),
    ]
)
"""The columns of an index. ``file`` is the place of the recording in the list that a part of it has."""

NO_SAMPLING = bytes(SIZE)
"""Stands for the sampling of a recording that does not say how it was sampled."""
_ROLES = ("prompt_ids", "prompt_text", "prompt_wording")


@dataclass(frozen=True, slots=True)
class Declared:
    """Which arguments of a stage say what, as it was declared; kept with its recordings."""

    prompts: tuple[str, ...]
    """The arguments that hold what makes up a prompt, one entry each."""
    n: str | int | None = None
    """How many samples a prompt gets: a number, or the argument that says it."""
    sampling: tuple[str, ...] | None = None
    """The arguments that say how samples are drawn; None for all others."""
    weights: str | None = None
    """The argument that says which version of the policy draws."""
    first: str | None = None
    """The argument that is told the number of the first sample of each prompt."""

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "prompts": list(self.prompts), "n": self.n, "weights": self.weights, "first": self.first,
            "sampling": None if self.sampling is None else list(self.sampling),
        }  # fmt: skip

    @classmethod
    def from_json(cls, node: Any) -> Declared | None:
        """The inverse; None where a recording says nothing that can be read."""
        if not isinstance(node, Mapping) or not isinstance(node.get("prompts"), list):
            return None
        sampling = node.get("sampling")
        names = None if not isinstance(sampling, list) else tuple(map(str, sampling))
        n, weights, first = (node.get(name) for name in ("n", "weights", "first"))
        return cls(
            tuple(map(str, node["prompts"])),
            n if isinstance(n, (str, int)) else None,
            names,
            weights if isinstance(weights, str) else None,
            first if isinstance(first, str) else None,
        )

    def is_of_sampling(self, name: str) -> bool:
        """Whether an argument says how samples are drawn."""
        if self.sampling is not None and name not in self.sampling:
            return False
        return name not in (*self.prompts, self.n, self.weights, self.first)

    def sampling_of(self, digests: Mapping[str, Digest | None]) -> bytes:
        """What stands for how a call with these arguments draws samples."""
        drawn = {name: one for name, one in digests.items() if self.is_of_sampling(name)}
        return sampling_digest(drawn, {self.n} if isinstance(self.n, str) else ())


def prompt_rows(value: Any) -> list[Any]:
    """The prompts that an argument holds, one entry each; an ``UnsupportedValueError`` for anything else."""
    if isinstance(value, Batch):
        value = value.columns
    if isinstance(value, Mapping) and len(value):
        columns = {written(name): prompt_rows(column) for name, column in value.items()}
        if len({len(column) for column in columns.values()}) == 1:
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            return [_without_padding(row) for row in rows]
    if isinstance(value, (list, tuple)):
        return list(value)
    if (isinstance(value, np.ndarray) or is_tensor(value)) and value.ndim:
        return list(value)
    adapter = registry.adapter_for(value)
    if adapter is not None and adapter.prompts is not None:
        return adapter.prompts(value)
    raise UnsupportedValueError(
        f"prompts must be a list with one entry for each, not a {type(value).__name__}",
        hint="name the argument that holds them: tape.stage(…, by='prompt', prompts='…')",
    )


def _without_padding(row: dict[str, Any]) -> Any:
    """A prompt of token ids and a mask, as far as the mask is on: it is the same however it is padded."""
    ids = columns_with(row, "prompt_ids", "token_ids")
    masks = columns_with(row, "prompt_mask", "attention_mask")
    if not ids or not masks or set(row) != {ids[0], masks[0]}:
        return row
    on, tokens = (np.asarray(row[name]) for name in (masks[0], ids[0]))
    return tokens[on != 0] if on.shape == tokens.shape else row


def zipped(values: Sequence[Any]) -> list[Any]:
    """The prompts that several arguments make up together."""
    rows = [prompt_rows(value) for value in values]
    if len(rows) == 1:
        return rows[0]
    if len({len(each) for each in rows}) > 1:
        counts = " and ".join(str(len(each)) for each in rows)
        raise UnsupportedValueError(f"the arguments that make up prompts have {counts} entries")
    return [list(each) for each in zip(*rows, strict=True)]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the samples of a recording to who has just made it, and need not be read from it."""

    uids: list[str]
    index: np.ndarray
    digests: list[bytes]
    """Of the prompt of each sample."""
    tokens: tuple[np.ndarray | None, np.ndarray | None] | None
    """How many its prompt and its response have; None where only masks tell."""

    @classmethod
    def of(
        cls, contents: Sequence[bytes], parts: Dismantled, uids: list[str], index: np.ndarray
    ) -> Known | None:
        """Of what a call with these prompts returned; None where it does not say whose each sample is."""
        if not contents or parts.samples % len(contents):
            return None
        each, digests = parts.samples // len(contents), [prompt_digest(content) for content in contents]
        every = [digest for digest in digests for _ in range(each)]
        stored = [uid.encode("utf-8", "replace").decode() for uid in uids]  # as the recording has them
        return cls(stored, index, every, _lengths(parts.columns))


def _lengths(columns: Mapping[str, Column]) -> tuple[np.ndarray | None, np.ndarray | None] | None:
    """The tokens of prompts and responses where all of them are lists: then lengths are all there is."""
    if columns_with(columns, "token_ids", "prompt_length", "response_length"):
        return None
    found: list[np.ndarray | None] = []
    for role in ("prompt_ids", "response_ids"):
        listed = [columns[name] for name in columns_with(columns, role)]
        if not all(isinstance(one, RaggedColumn) and one.values.ndim == 1 for one in listed):
            return None
        found.append(listed[0].lengths if listed and isinstance(listed[0], RaggedColumn) else None)
    return found[0], found[1]


class RecordedSamples:
    """The samples of one recording: who they are, what they were asked, how they were drawn."""

    def __init__(self, storage: Storage, recording: Recording, known: Known | None = None) -> None:
        self._storage = storage
        self._known = known
        self.recording = recording
        self.samples = Samples([recording])
        self.declared = Declared.from_json(recording.about.get("by"))

    @cached_property
    def _inputs(self) -> dict[str, Any] | None:
        """The recorded arguments, where they are those of this very call."""
        return self._read_inputs()

    @contextmanager
    def located(self) -> Iterator[None]:
        """What goes wrong with what a recording says is an error of ours, and names it."""
        try:
            with decoding():
                yield
        except (CorruptFileError, MemoryLimitError) as error:
            error.where = error.where or self.recording.where
            raise

    def prompts(self) -> list[Any] | None:
        """The prompt of every sample; None where the recording has none."""
        count = len(self.samples)
        names = self._prompt_arguments()
        if self.declared is None and (told := self._adapted_prompts()) is not None:
            return told
        if names and self._inputs is not None:
            try:
                given = zipped([self._inputs[name] for name in names])
            except UnsupportedValueError:
                given = []
            if given and count and count % len(given) == 0:
                each = count // len(given)
                return [prompt for prompt in given for _ in range(each)]
        return next(self._prompt_columns(), None)

    def arguments_for(self, rows: Sequence[int]) -> dict[str, Any] | None:
        """The recorded arguments with a prompt for each of these samples; None where they have no prompts."""
        names = self._prompt_arguments()
        if not names or self._inputs is None:
            return None
        try:
            given = {name: prompt_rows(self._inputs[name]) for name in names}
        except UnsupportedValueError:
            return None
        counts = {len(one) for one in given.values()}
        if len(counts) != 1 or not (count := counts.pop()) or len(self.samples) % count:
            return None
        each = len(self.samples) // count
        return self._inputs | {name: [one[row // each] for row in rows] for name, one in given.items()}

    def contents(self) -> list[bytes] | None:
        """All that each prompt is; samples of one prompt share it."""
        found = self.prompts()
        if found is None:
            return None
        known: dict[int, bytes] = {}
        try:
            for prompt in found:
                if id(prompt) not in known:
                    known[id(prompt)] = canonical(prompt)
        except UnsupportedValueError:  # a value that nothing can ask for
            return None
        return [known[id(prompt)] for prompt in found]

    def sampling(self) -> bytes:
        """What stands for how the samples were drawn."""
        said = self.recording.about.get("by")
        if isinstance(said, Mapping) and isinstance(said.get("sampled"), str):
            sampled = bytes.fromhex(said["sampled"])
            if len(sampled) != SIZE:
                raise CorruptFileError("what it says of its sampling is no digest")
            return sampled
        digests = self._digests()
        if digests is None:
            return NO_SAMPLING
        if self.declared is not None:
            return self.declared.sampling_of(digests)
        return sampling_digest(digests, self._prompt_arguments())

    @property
    def told_version(self) -> int | None:
        """The version that the call was told, where it was noted."""
        said = self.recording.about.get("by")
        noted = said.get("version") if isinstance(said, Mapping) else None
        return noted if isinstance(noted, int) and -(2**63) <= noted < 2**63 else None

    def table(self) -> pa.Table:
        """The rows of an index; ``file`` is 0."""
        with self.located():
            return self._table()

    def _table(self) -> pa.Table:
        samples, count = self.samples, len(self.samples)
        lengths: tuple[np.ndarray | None, np.ndarray | None] | None = None
        index: np.ndarray | list[int]
        if self._known is not None:
            uids, index = self._known.uids, self._known.index
            digests, lengths = self._known.digests, self._known.tokens
        else:
            uids, index = self.recording.identity()
            digests = self._prompt_digests(uids)
        prompt_tokens, response_tokens = lengths or samples.token_counts
        columns = {
            "prompt": pa.array(digests, pa.binary(SIZE)),
            "sampling": pa.array([self.sampling()] * count, pa.binary(SIZE)),
            "version": self.versions(),
            "uid": pa.array(uids, pa.string()),
            "index": pa.array(index, pa.int32()),
            "step": pa.array(np.full(count, self.recording.key.step, np.int64)),
            "file": pa.array(np.zeros(count, np.int32)),
            "row": pa.array(np.arange(count, dtype=np.int32)),
            "reward": self._rewards(),
            "prompt_tokens": _counts(prompt_tokens, count),
            "response_tokens": _counts(response_tokens, count),
            "finish": self._finish(),
        }
        return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    # -- parts -----------------------------------------------------------------------------------------

    def _prompt_digests(self, uids: Sequence[str]) -> list[bytes]:
        """What stands for the prompt of each sample; for its uid where nothing tells the prompt."""
        contents = self.contents()
        if contents is None:
            return [uid_digest(uid) for uid in uids]
        known: dict[int, bytes] = {}
        for content in contents:
            if id(content) not in known:
                known[id(content)] = prompt_digest(content)
        return [known[id(content)] for content in contents]

    def _read_inputs(self) -> dict[str, Any] | None:
        about = self.recording.about
        if about.inputs is None:
            return None
        kept = Recording(self._storage, replace(self.recording.key, inputs=True))
        try:
            value = kept.value() if kept.about.inputs == about.inputs else None
        except (StepMissingError, CorruptFileError, UnknownAdapterError, MissingDependencyError):
            return None  # a check tells; what the result itself says of its prompts is good enough
        return value if isinstance(value, dict) else None

    def _prompt_arguments(self) -> tuple[str, ...]:
        if self.declared is not None:
            return self.declared.prompts if self._has(self.declared.prompts) else ()
        named = list(self._inputs or self._digests() or ())
        return tuple(columns_with(named, *_ROLES)[:1])

    def _has(self, names: Sequence[str]) -> bool:
        return self._inputs is None or all(name in self._inputs for name in names)

    def _digests(self) -> Mapping[str, Digest | None] | None:
        about = self.recording.about
        if self._inputs is not None:
            return Arguments.of(self._inputs, Naming(None)).digests
        if about.arguments is not None:
            return read_arguments(about.arguments, self.recording.where)
        return None

    def _prompt_columns(self) -> Iterator[list[Any]]:
        """The prompts that the result itself has, without padding where a mask says where that is."""
        samples = self.samples
        for name in columns_with(samples.stored, *_ROLES):
            column = samples.columns[name]
            if isinstance(column, ObjectColumn):
                yield column.values
                continue
            rows = column.rows()
            kept = samples.kept(name)
            if kept is not None and kept.proven:
                rows = [row[part] for row, part in zip(rows, kept.parts, strict=True)]
            yield rows

    def _adapted_prompts(self) -> list[Any] | None:
        """The prompts as the type of another library tells them that the result holds."""
        if self._inputs is None:
            return None
        for node in self.recording.file.tree.adapted():
            try:
                told = registry.adapter_named(node.adapter or "").sample_prompts
                if told is not None:
                    return told(self.recording.value, self._inputs)
            except (UnknownAdapterError, MissingDependencyError):
                continue
        return None

    def _column(self, *roles: str) -> str | None:
        stored = self.samples.stored
        found = (name for name in columns_with(stored, *roles) if stored[name].is_number)
        return next(found, None)

    def _rewards(self) -> pa.Array:
        name = self._column("reward")
        if name is None:
            return pa.nulls(len(self.samples), pa.float64())
        numbers = self.samples.numbers(name)
        return pa.array(numbers, pa.float64(), mask=np.isnan(numbers))

    def versions(self) -> pa.Array:
        """The version that each says it was drawn with; none where that is the step's."""
        name = self._column("weights_version")
        if name is not None and not self.samples.stored[name].shape:
            numbers = self.samples.numbers(name)
            whole = np.isfinite(numbers) & (np.abs(numbers) < 2.0**63)
            return pa.array(np.where(whole, numbers, 0).astype(np.int64), mask=~whole)
        if (told := self.told_version) is not None:
            return pa.array(np.full(len(self.samples), told, np.int64))
        declared = self.declared.weights if self.declared else None
        given = self._inputs.get(declared) if declared and self._inputs is not None else None
        if isinstance(given, (int, np.integer)) and -(2**63) <= given < 2**63:
            return pa.array(np.full(len(self.samples), int(given), np.int64))
        return pa.nulls(len(self.samples), pa.int64())

    def _finish(self) -> pa.Array:
        name = next(iter(columns_with(self.samples.stored, "finish")), None)
        column = self.samples.columns[name] if name is not None else None
        if not isinstance(column, ObjectColumn):
            return pa.nulls(len(self.samples), pa.string())
        return pa.array([value if _is_text(value) else None for value in column.values], pa.string())


def _is_text(value: Any) -> bool:
    """Whether a value is a text that Arrow holds: halves of a pair of surrogates are none."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _counts(found: np.ndarray | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int32()) if found is None else pa.array(found.astype(np.int32))
