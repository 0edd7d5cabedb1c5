"""JSON Lines: one line per sample."""

from __future__ import annotations

import json
from typing import IO, Any

from rolltape.exporting.table import Piece, Table


class JsonLines:
    """A file of lines, to which recordings are added one by one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, table: Table) -> int:
        """Write every sample as one line; returns how many."""
        count = 0
        for piece in table.pieces():
            for sample in range(len(piece.uid)):
                line = json.dumps(_line(piece, sample), ensure_ascii=False, allow_nan=False)
                self._file.write(line.encode("utf-8", "backslashreplace") + b"\n")
            count += len(piece.uid)
        return count


def _line(piece: Piece, sample: int) -> dict[str, Any]:
    key = piece.recording.key
    own = {"step": key.step, "uid": piece.uid[sample], "index": piece.index[sample]}
    own |= {"split": key.split, "stage": key.stage, "call": key.call}
    return own | {name: rows.of(sample) for name, rows in piece.columns.items()}
