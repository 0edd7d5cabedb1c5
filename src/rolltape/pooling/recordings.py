"""The recordings of a pool, each opened when a row of it is used, and compared with what its index said."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rolltape.cached import cached_property
from rolltape.codec.file import RecordingFile
from rolltape.errors import CorruptFileError, FileReplacedError, StepMissingError
from rolltape.exporting.parquet import Schema, arrow_rows
from rolltape.exporting.table import PIECE, Table
from rolltape.index.index_rows import RecordedSamples
from rolltape.pooling.sample_facts import FACTS, SourceFile
from rolltape.reader.given_prompts import given_prompt, is_rollout
from rolltape.reader.sample_fields import choose_fields
from rolltape.reader.samples import Samples
from rolltape.reader.stored_file import StoredFile

KEPT_BYTES = 256 * 1024 * 1024
"""What the columns of recordings that are kept open may take, about."""
KEPT_FILES = 64
_COMPARED = ("uid", "index", "version", "prompt_tokens", "response_tokens", "finish")


class Opened:
    """One recording of a pool, open."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.recording = source.run.recording(source.key)
        self.samples = Samples([self.recording])
        try:
            self.stored: StoredFile = self.samples.files[0]
        except StepMissingError:
            raise _changed(source, "is gone") from None
        if self.recording.revision != source.revision:
            raise _changed(source, "was replaced")
        self.table = Table(self.recording, None, FACTS.names)

    @property
    def file(self) -> RecordingFile:
        """Its file."""
        return self.stored.file

    @cached_property
    def told(self) -> pa.Table:
        """What the recording itself says of its samples."""
        return self._recorded.table()

    @cached_property
    def _recorded(self) -> RecordedSamples:
        return RecordedSamples(self.source.run.storage, self.recording)

    def prompt(self, row: int) -> Any:
        """The prompt of a sample: as text or a chat where the recording has it, else as the stage got it."""
        if is_rollout(self.samples):
            return given_prompt(self.samples, row, ("text", "messages", "token_ids"))
        text = self._text_column("prompt")
        if text is not None:
            return self.samples.cell(text, row)
        return None if self._prompts is None else self._prompts[row]

    @cached_property
    def _prompts(self) -> list[Any] | None:
        return self._recorded.prompts()

    def response(self, row: int) -> str | None:
        """The response of a sample as text; None where the recording has none."""
        name = self._text_column("response")
        found = None if name is None else self.samples.cell(name, row)
        return found if isinstance(found, str) else None

    def _text_column(self, label: str) -> str | None:
        fields = (one for one in choose_fields(self.samples.stored) if one.kind == "text")
        return next((one.column for one in fields if one.label == label), None)

    def check(self, facts: pa.Table) -> None:
        """Raise an error where a stored index says something else of these rows than the recording does."""
        if not self.source.stored:
            return
        rows = facts["_row"].to_numpy()
        same = not len(rows) or (rows.max() < len(self.told) and rows.min() >= 0)
        names = [*_COMPARED, *(["reward"] if self.source.own_reward else [])]
        if same:
            told = self.told.take(pa.array(rows))
            same = all(told[name].cast(facts[name].type).equals(facts[name]) for name in names)
            same = same and told["prompt"].equals(facts["_digest"])
        if not same:
            raise CorruptFileError(
                "the index of samples says something else of these samples than their recording does",
                where=self.recording.where,
                causes=["files of the index were altered, or are of another tape"],
                hint=f"`rolltape index check {self.source.run.path}` tells; delete samples.index there, "
                "and it is made anew",
            )

    def schema(self) -> Schema:
        """The recorded columns, as they are exported."""
        found = Schema(())
        found.add(self.table)
        return found

    def arrow(self, rows: np.ndarray, schema: pa.Schema) -> pa.Table:
        """The columns of a schema for some rows, in this order."""
        starts = np.unique(rows // PIECE) * PIECE
        pieces = [
            arrow_rows(self.table.piece(self.stored, int(at), schema.names), schema, ()) for at in starts
        ]
        offsets = np.searchsorted(starts, rows - rows % PIECE) * PIECE + rows % PIECE
        return pa.concat_tables(pieces).take(pa.array(offsets)) if pieces else schema.empty_table()


def _changed(source: SourceFile, what: str) -> FileReplacedError:
    return FileReplacedError(
        f"a recording {what} since the pool was made",
        where=f"{source.run.location}/{source.key.path}",
        causes=["a run in mode rewrite, a repair or a prune works on this tape"],
        hint="make the pool anew: rolltape.pool(…)",
    )


class Recordings:
    """The recordings of a pool; those used last are kept open, as far as memory allows."""

    def __init__(self, sources: Sequence[SourceFile]) -> None:
        self.sources = sources
        self._open: OrderedDict[int, Opened] = OrderedDict()
        self._checked: set[tuple[int, bytes]] = set()
        self.opened = 0
        """How many times one was opened."""

    def __getstate__(self) -> dict[str, Any]:
        """What another process is given: nothing that is open."""
        return {"sources": self.sources}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Recordings.__init__(self, state["sources"])

    def of(self, number: int) -> Opened:
        """One of them, opened if it is not."""
        found = self._open.pop(number, None)
        if found is None:
            found = Opened(self.sources[number])
            self.opened += 1
        self._open[number] = found
        kept = sum(one.file.dense_bytes for one in self._open.values())
        while len(self._open) > KEPT_FILES or (len(self._open) > 1 and kept > KEPT_BYTES):
            _, left = self._open.popitem(last=False)
            kept -= left.file.dense_bytes
        return found

    def each(self, facts: pa.Table, *, check: bool = True) -> Iterator[tuple[Opened, np.ndarray]]:
        """The recordings of these rows, one after the other, with the places of their rows among these."""
        files = facts["_file"].to_numpy()
        for number in np.unique(files):
            at = np.flatnonzero(files == number)
            opened = self.of(int(number))
            if check:
                opened.check(facts.take(pa.array(at)))
            yield opened, at

    def schema(self, files: Collection[int]) -> pa.Schema:
        """One schema for what these recordings have."""
        found = Schema(())
        for number in sorted(files):
            found.join(self.of(number).schema())
        return found.arrow()
