"""Rows of differing lengths without their padding: values end to end, and where each row begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.batch import arrays


@dataclass(frozen=True, slots=True)
class Jagged:
    """A padded column without its padding.

    Row ``i`` of the padded column has ``values[offsets[i]:offsets[i + 1]]`` from place ``starts[i]`` on, and
    padding elsewhere.

    >>> column = Jagged(np.array([5, 6, 7]), np.array([0, 2, 3]), np.array([0, 1]))
    >>> len(column), column.row(1)
    (2, array([7]))
    """

    values: Any
    """A numpy array or a tensor, as the column was; its first axis are the elements of all rows."""
    offsets: np.ndarray
    """Where each row begins in ``values``, and where the last one ends."""
    starts: np.ndarray
    """How many elements of padding stand before each row."""

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, index: int) -> Any:
        """What one sample has."""
        at = range(len(self))[index]
        return self.values[int(self.offsets[at]) : int(self.offsets[at + 1])]

    def nested(self) -> Any:
        """The same as a nested tensor of torch in the jagged layout, which shares its memory."""
        torch = arrays.import_torch()
        values = torch.from_numpy(self.values) if isinstance(self.values, np.ndarray) else self.values
        return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(self.offsets))
