"""``rolltape.pool``: samples over steps and tapes as one lazy table.

>>> import rolltape, tempfile
>>> folder = tempfile.mkdtemp() + "/base"
>>> tape = rolltape.Tape(folder, mode="record")
>>> @tape.stage("rollout")
... def generate():
...     return {"prompt": ["a", "a", "b", "b"], "response": list("wxyz"), "reward": [0.0, 1.0, 0.0, 0.0]}
>>> for step in range(3):
...     with tape.step(step):
...         batch = generate()
>>> _ = tape.close()
>>> pool = rolltape.pool(folder, where="0 < pass_rate < 1 and step > 0")
>>> len(pool), pool[1]["response"], pool[1]["reward"], pool[1]["pass_rate"]
(4, 'x', 1.0, 0.5)
>>> [len(batch) for batch in pool.batches(2, seed=0)]
[2, 2]
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rolltape.batch.roles import columns_with
from rolltape.errors import BatchError, ConfigError, StepMissingError
from rolltape.index.assembling import Piece, put_together
from rolltape.index.pass_rates import PASSED
from rolltape.index.prompt_key import canonical
from rolltape.pooling.batch_order import batch_rows, first_of_each
from rolltape.pooling.recordings import Opened, Recordings
from rolltape.pooling.sample_facts import FACTS, Facts, Selection, gather, tokenizer_of
from rolltape.pooling.training import TokenRows, Training, token_rows
from rolltape.reader.run import Run, looking, open
from rolltape.reader.sample_filter import Filter, parse_filter, sieve, unknown_column
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.tape import Tape

log = logging.getLogger("rolltape")

TOGETHER = ("group", "prompt")
UNIQUE = ("prompt", "response")


def pool(
    tapes: str | os.PathLike[str] | Run | Tape | Sequence[str | os.PathLike[str] | Run | Tape],
    where: str | pc.Expression | None = None,
    *,
    stage: str = "rollout",
    split: str | None = None,
    steps: object = None,
    passed: float = PASSED,
) -> Pool:
    """The samples of a stage over all steps of one tape or several, as a lazy table.

    What is known of samples is read from the index of samples, which is made in memory where there is none.
    Recordings are opened for rows that are used.

    Args:
        tapes: A tape, by its path or URL, as a run or a tape; or several.
        where: Only samples for which this is true, as in ``"reward > 0.9 and not truncated"``; see
            docs/pools.md for the columns. An expression of pyarrow will do, too.
        stage: The stage whose samples they are.
        split: Only this split.
        steps: Only these steps, as in ``"0-9,20"``.
        passed: The reward from which on a sample has passed, for ``pass_rate``. That is, for each sample,
            the share of passed ones among all samples of the same prompt that have a reward, over all these
            tapes, splits and steps, whatever ``where`` says.
    """
    runs = _opened(tapes)
    chosen = ALL_STEPS if steps is None else StepSelector.parse(steps)
    with looking():
        facts = gather(runs, Selection(stage, split, chosen, passed))
    if not facts.files:
        of = f" of split {split!r}" if split is not None else ""
        raise StepMissingError(
            f"stage {stage!r}{of} has no readable recording among these steps",
            where=", ".join(run.location for run in runs),
            causes=[f"{name} cannot be read: {why}" for name, why in list(facts.unreadable.items())[:3]],
            hint=f"rolltape ls {runs[0].path} shows what there is",
        )
    found = Pool(facts.table, Recordings(facts.files), runs, facts)
    return found if where is None else found.where(where)


def _opened(tapes: Any) -> list[Run]:
    several = isinstance(tapes, Sequence) and not isinstance(tapes, (str, bytes))
    runs = [_run(one) for one in (tapes if several else [tapes])]
    if not runs:
        raise ConfigError("a pool takes at least one tape", hint='rolltape.pool("runs/base")')
    known: dict[str, Run] = {}
    for run in runs:
        other = known.setdefault(run.id, run)
        if other is not run:
            raise ConfigError(
                f"these are the same tape: every sample would come twice: {other.path} and {run.path}",
                where=run.location,
                causes=["the tape is named twice", "one is a copy of the other"],
                hint="name each tape once",
            )
    return runs


def _run(tape: Any) -> Run:
    if isinstance(tape, Run):
        return tape
    if isinstance(tape, (str, os.PathLike)):
        return open(tape)
    if not isinstance(tape, Tape) or tape.dir is None:
        raise ConfigError(f"a {type(tape).__name__} is no tape", hint='rolltape.pool("runs/base")')
    tape.flush()
    return open(tape.dir)


class PoolRow(Mapping[str, Any]):
    """One sample: what is known of it, and its recorded columns, read when they are asked for."""

    def __init__(self, pool: Pool, at: int) -> None:
        self._pool = pool
        self._at = at

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of it without opening its recording."""
        found: dict[str, Any] = self._pool.facts.slice(self._at, 1).to_pylist()[0]
        return found

    def _opened(self) -> tuple[Opened, int]:
        one = self._pool._table.slice(self._at, 1)
        opened, _ = next(self._pool._recordings.each(one))
        return opened, int(one["_row"][0].as_py())

    def __getitem__(self, name: str) -> Any:
        if name in FACTS.names:
            return self._pool._table[name][self._at].as_py()
        opened, row = self._opened()
        recorded = {public: own for own, public in opened.table.names.items()}
        if name not in recorded:
            raise KeyError(f"{name!r} is not a column; there are: {', '.join([*FACTS.names, *recorded])}")
        return opened.samples.cell(recorded[name], row)

    def __iter__(self) -> Iterator[str]:
        yield from FACTS.names
        yield from self._opened()[0].table.names.values()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        facts = self.facts
        return f"PoolRow({', '.join(f'{name}={facts[name]!r}' for name in ('tape', 'step', 'uid', 'index'))})"


class Pool(Sequence[PoolRow]):
    """Samples of one or several tapes. Made by :func:`rolltape.pool`; narrowing it makes another."""

    def __init__(self, table: pa.Table, recordings: Recordings, tapes: Sequence[Run], facts: Facts) -> None:
        self._table = table
        self._recordings = recordings
        self._facts = facts
        self.tapes = list(tapes)
        """The tapes, open."""

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return self.take(range(*at.indices(len(self))))
        return PoolRow(self, range(len(self))[at])

    def __repr__(self) -> str:
        return f"Pool({len(self)} samples of {len(set(self._table['_file'].to_pylist()))} recordings)"

    @property
    def facts(self) -> pa.Table:
        """What is known of each sample without opening a recording, as an Arrow table."""
        return self._table.select(FACTS.names)

    @property
    def unreadable(self) -> dict[str, str]:
        """Recordings that cannot be read, and why: their samples are not in the pool."""
        return dict(self._facts.unreadable)

    @property
    def opened(self) -> int:
        """How many times a recording was opened for this pool and those made of it."""
        return self._recordings.opened

    # -- fewer of them -------------------------------------------------------------------------------------

    def where(self, where: str | pc.Expression) -> Pool:
        """Only samples for which this is true; pass rates stay those over all samples."""
        if not isinstance(where, str):
            return self._taken(self._by_arrow(where))
        first, rest = parse_filter(where).split(frozenset(FACTS.names))
        found = self if first is None else self._taken(first.sieve(FACTS).rows(self._table))
        return found if rest is None else found._by_recorded(rest)

    def _by_arrow(self, where: pc.Expression) -> np.ndarray:
        try:
            return sieve(where, FACTS).rows(self._table)
        except ConfigError:  # it names recorded columns
            schema = self.schema
            needs = sieve(where, schema).needs
            return sieve(where, schema).rows(self.arrow(sorted(needs)))

    def _by_recorded(self, where: Filter) -> Pool:
        """What takes recorded columns, for the rows that are left."""
        if not len(self):
            for name in where.names() - set(FACTS.names):
                if name not in (
                    known := Pool(self._facts.table, self._recordings, [], self._facts).schema.names
                ):
                    raise unknown_column(name, known, where.text)
            return self
        found = where.sieve(self.schema)
        return self._taken(found.rows(self.arrow(sorted(found.needs))))

    def take(self, rows: Sequence[int] | np.ndarray) -> Pool:
        """Some samples, by their places, in this order; one may come several times."""
        at = np.asarray(rows, np.int64).reshape(-1)
        if len(at) and (at.min() < 0 or at.max() >= len(self)):
            raise IndexError(f"a place is not in 0 to {len(self) - 1}")
        return self._taken(at)

    def _taken(self, rows: np.ndarray) -> Pool:
        taken = self._table.take(pa.array(rows, pa.int64()))
        return Pool(taken, self._recordings, self.tapes, self._facts)

    def unique(self, by: str = "prompt") -> Pool:
        """The first sample of each prompt, or with ``by="response"`` of each prompt and response."""
        if by not in UNIQUE:
            raise ConfigError(f"by={by!r} is not one of {', '.join(UNIQUE)}")
        prompts = self._table["_prompt"].to_numpy()
        keys = [prompts] if by == "prompt" else [prompts, self._response_numbers()]
        return self._taken(first_of_each(*keys))

    def _response_numbers(self) -> np.ndarray:
        """A number for each response; the same for responses that are the same."""
        digests: list[bytes] = [b""] * len(self)
        for opened, at in self._recordings.each(self._table):
            rows = self._table["_row"].take(pa.array(at)).to_pylist()
            for place, response in zip(at, _responses(opened, rows), strict=True):
                digests[place] = hashlib.blake2b(canonical(response), digest_size=32).digest()
        known: dict[bytes, int] = {}
        return np.array([known.setdefault(digest, len(known)) for digest in digests], np.int64)

    # -- as other things -----------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The columns of :meth:`arrow`: the facts, and what the recordings of these samples have."""
        files = set(self._table["_file"].unique().to_pylist())
        return pa.schema([*FACTS, *self._recordings.schema(files)])

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """An Arrow table: a row for each sample, facts and recorded columns, without padding.

        Columns are as ``rolltape export`` writes them; one that has different types in different recordings
        gets one that holds both. A recorded column that a fact is named after is ``recorded_…``.
        """
        wanted = None if columns is None else list(dict.fromkeys(columns))
        if wanted is not None and set(wanted) <= set(FACTS.names):
            return self._table.select(wanted)
        schema = self.schema
        for name in wanted or ():
            if name not in schema.names:
                raise unknown_column(name, schema.names, "columns")
        names = schema.names if wanted is None else wanted
        recorded = pa.schema([schema.field(name) for name in names if name not in FACTS.names])
        pieces, places = [recorded.empty_table()], [np.zeros(0, np.int64)]
        for opened, at in self._recordings.each(self._table):
            rows = self._table["_row"].to_numpy()[at]
            pieces.append(opened.arrow(rows, recorded))
            places.append(at)
        order = np.argsort(np.concatenate(places), kind="stable")
        found = pa.concat_tables(pieces).take(pa.array(order))
        return pa.table({name: self._table[name] if name in FACTS.names else found[name] for name in names})

    def recorded(self, pad: int | None = None) -> Any:
        """These samples as the object that the stage returned, a ``DataProto`` say: each row bit for bit.

        Batches that were padded to other widths are padded to the widest; ``pad`` is the padding where no
        mask shows it. What belongs to no sample is that of the first recording.
        """
        self._refuse_empty()
        self._refuse_other_tokenizers()
        pieces: list[Piece] = []
        order = np.empty(len(self), np.int64)
        for opened, at in self._recordings.each(self._table):
            order[at] = np.arange(len(at)) + sum(len(piece.rows) for piece in pieces)
            rows = self._table["_row"].to_numpy()[at].tolist()
            pieces.append(Piece(opened.file, rows, opened.recording.where))
        try:
            found, differ = put_together(pieces, order.tolist(), 0, pad)
        except BatchError as error:
            error.where = error.where or ", ".join(run.location for run in self.tapes)
            error.causes = error.causes or ("the recordings have other columns, or columns of other dtypes",)
            error.hint = error.hint or 'narrow the pool, where="step >= 10" say, or use pool.arrow()'
            raise
        if differ:
            log.warning("pool: %s differ between recordings; those of the first are taken", ", ".join(differ))
        return found

    def training(self) -> Training:
        """What a trainer needs: token ids, log-probs of the policy that drew them, rewards, versions."""
        self._refuse_empty()
        self._refuse_other_tokenizers()
        found: list[Any] = [None] * len(self)
        scored = []
        for opened, at in self._recordings.each(self._table):
            rows = self._table["_row"].to_numpy()[at].tolist()
            tokens = token_rows(opened, rows)
            scored.append(tokens.logprobs is not None)
            for place, one in enumerate(at):
                found[one] = _one(tokens, place)
        if any(scored) and not all(scored):
            raise BatchError(
                f"{scored.count(False)} of {len(scored)} recordings have no log-probs, and the others have",
                where=", ".join(run.location for run in self.tapes),
                hint="take tapes that were recorded alike, or only those that have log-probs",
            )
        rewards = self._table["reward"].to_numpy(zero_copy_only=False).astype(np.float64)
        return Training(
            prompt_ids=[one[0] for one in found],
            response_ids=[one[1] for one in found],
            response_mask=[one[2] for one in found],
            logprobs=[one[3] for one in found] if all(scored) else None,
            reward=rewards,
            version=self._table["policy"].to_numpy(),
            group=self._table["_group"].to_numpy(),
            uid=self._table["uid"].to_pylist(),
            index=self._table["index"].to_numpy(),
            step=self._table["step"].to_numpy(),
        )

    def batches(
        self, size: int, *, seed: int | None = None, together: str | None = "group", drop_last: bool = False
    ) -> Iterator[Pool]:
        """The samples in batches of up to ``size``, each a pool; in order, or shuffled by a seed.

        ``together`` keeps samples in one batch that belong together: those of a ``group`` that was drawn
        together (the uid of a step), all of a ``prompt``, or None for none. A group that is larger than a
        batch is a batch of its own.
        """
        for rows in self._batches(size, seed, together, drop_last):
            yield self._taken(rows)

    def _batches(
        self, size: int, seed: int | None, together: str | None, drop_last: bool
    ) -> Iterator[np.ndarray]:
        if type(size) is not int or size < 1:
            raise ConfigError(f"a batch has at least 1 sample, not {size!r}")
        if together is not None and together not in TOGETHER:
            raise ConfigError(f"together={together!r} is not one of {', '.join(TOGETHER)}, None")
        groups = np.arange(len(self)) if together is None else self._table[f"_{together}"].to_numpy()
        return batch_rows(groups, size, seed, drop_last=drop_last)

    def prompts(self) -> list[Any]:
        """The prompt of each sample: text or a chat where that is recorded, else what the stage was given."""
        return self._of_each(lambda opened, row: opened.prompt(row))

    def responses(self) -> list[str | None]:
        """The response of each sample as text; None where its recording has none."""
        return self._of_each(lambda opened, row: opened.response(row))

    def _of_each(self, ask: Callable[[Opened, int], Any]) -> list[Any]:
        found: list[Any] = [None] * len(self)
        rows = self._table["_row"].to_pylist()
        for opened, at in self._recordings.each(self._table):
            for one in at.tolist():
                found[one] = ask(opened, rows[one])
        return found

    def polars(self, columns: Sequence[str] | None = None) -> Any:
        """The same as :meth:`arrow`, as a Polars frame."""
        from rolltape.pooling.frameworks import polars_frame

        return polars_frame(self, columns)

    def dataset(self, columns: Sequence[str] | None = None) -> Any:
        """The same as :meth:`arrow`, as a ``datasets.Dataset`` of Hugging Face."""
        from rolltape.pooling.frameworks import hugging_face_dataset

        return hugging_face_dataset(self, columns)

    def torch(self) -> Any:
        """A PyTorch ``Dataset`` with an item for each sample; ``collate`` of it pads items to a batch."""
        from rolltape.pooling.frameworks import torch_dataset

        return torch_dataset(self)

    def torch_batches(
        self, size: int, *, seed: int | None = None, together: str | None = "group", drop_last: bool = False,
        pad: int = 0,
    ) -> Any:  # fmt: skip
        """A PyTorch ``IterableDataset`` of padded batches, as :meth:`batches` makes them; shuffled anew in
        each epoch that ``set_epoch`` names, and divided among the workers of a loader."""
        from rolltape.pooling.frameworks import torch_batches

        self._batches(size, seed, together, drop_last)
        return torch_batches(self, size, seed, together, drop_last, pad)

    def data_proto(self, pad: int = 0) -> Any:
        """A ``DataProto`` of verl: tokens, masks, ``rollout_log_probs``, ``rm_scores``, uid and version."""
        from rolltape.pooling.frameworks import data_proto

        return data_proto(self, pad)

    def trl(self) -> dict[str, list[Any]]:
        """Columns by the names that TRL has: prompt, completion, their ids, logprobs and reward."""
        from rolltape.pooling.frameworks import trl_columns

        return trl_columns(self)

    # -- parts ---------------------------------------------------------------------------------------------

    def _refuse_empty(self) -> None:
        if not len(self):
            raise BatchError(
                "the pool is empty: there is nothing to make a batch of",
                where=", ".join(run.location for run in self.tapes),
                hint="ask for less in where=; pool.facts shows what there is",
            )

    def _refuse_other_tokenizers(self) -> None:
        used = {self._recordings.sources[number].tape for number in self._table["_file"].unique().to_pylist()}
        said = {at: tokenizer for at in used if (tokenizer := tokenizer_of(self.tapes[at])) is not None}
        if len(set(said.values())) > 1:
            told = ", ".join(f"{self.tapes[at].path}: {said[at]}" for at in sorted(said))
            raise BatchError(
                f"tokens of different tokenizers cannot be in one batch: {told}",
                hint="make a pool of each tape; pool.arrow() and pool.where() work over all of them",
            )


def _one(tokens: TokenRows, at: int) -> tuple[Any, ...]:
    logprobs = None if tokens.logprobs is None else tokens.logprobs[at]
    return tokens.prompt_ids[at], tokens.response_ids[at], tokens.response_mask[at], logprobs


def _responses(opened: Opened, rows: Sequence[int]) -> list[Any]:
    """What tells the responses of some samples apart: their tokens, else their text."""
    stored = opened.file.stored_columns
    if columns_with(stored, "response_ids", "token_ids"):
        try:
            return list(token_rows(opened, rows).response_ids)
        except BatchError:  # its log-probs or masks do not fit, or it is text
            pass
    name = next(
        iter(columns_with(stored, "response_text", "response_message", "response_ids", "token_ids")), None
    )
    if name is None:
        raise BatchError(
            "this recording has no responses to compare",
            where=opened.recording.where,
            hint=f"columns: {', '.join(stored)}; rolltape.register_role names yours",
        )
    return [opened.samples.cell(name, row) for row in rows]
