"""A tape as a datasource of Ray Data: some files for each task, in the order of the tape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rolltape.ray.cluster_spread import pieces
from rolltape.ray.ray_library import ray_library
from rolltape.ray.sample_rows import FileFacts, ReadRows

_datasource = ray_library("ray.data.datasource", "rolltape.ray")
_block = ray_library("ray.data.block", "rolltape.ray")
_Datasource: Any = _datasource.Datasource


class TapeSource(_Datasource):  # type: ignore[misc]
    """The rows of some recordings."""

    def __init__(self, files: Sequence[FileFacts], rows: ReadRows) -> None:
        super().__init__()
        self._files, self._rows = list(files), rows

    def get_name(self) -> str:
        """What Ray's progress bar calls it."""
        return "Tape"

    def estimate_inmemory_data_size(self) -> int:
        """About what the rows take in memory."""
        return sum(file.bytes for file in self._files)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        """Tasks of neighbouring files, about as many as Ray asks for."""
        return [self._task(files, per_task_row_limit) for files in pieces(self._files, max(1, parallelism))]

    def _task(self, files: Sequence[FileFacts], limit: int | None) -> Any:
        rows = replace(self._rows, keys=tuple(file.key for file in files))
        location = rows.run.location
        metadata = _block.BlockMetadata(
            num_rows=sum(file.samples for file in files) if rows.sieve is None else None,
            size_bytes=sum(file.bytes for file in files),
            exec_stats=None,
            input_files=[f"{location}/{key.path}" for key in rows.keys],
        )
        schema = rows.schema.empty_table().select(rows.wanted).schema
        return _datasource.ReadTask(rows, metadata, schema, limit)
