"""Page-locked memory for what a replay returns, so that a copy to a device overlaps with the trainer's work.

torch allocates it and uses it again itself, and only when copies to a device that are under way have ended.
It has to know the tensors for that, so those of a batch are made of the very tensors that it allocated
(:func:`rolltape.batch.arrays.rebuild`).
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from rolltape.batch.arrays import import_torch
from rolltape.codec.recycled import RECYCLE_FROM

log = logging.getLogger("rolltape")


class PinnedMemory:
    """Arrays in page-locked memory; in plain memory, which is said once, where there is no device."""

    def __init__(self) -> None:
        self._torch = import_torch()
        self._refused = False

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        size = math.prod(shape) * dtype.itemsize
        if size < RECYCLE_FROM or self._refused:
            return None
        try:
            pinned = self._pinned(size)
        except (
            RuntimeError,
            AssertionError,
            NotImplementedError,
        ) as error:  # what torch says depends on its build
            self._refused = True
            why = str(error).partition("\n")[0]
            log.warning("pin: memory cannot be page-locked here (%s); batches are in plain memory", why)
            return None
        array: np.ndarray = pinned.numpy().view(dtype).reshape(shape)
        return array

    def close(self) -> None:
        """Nothing is kept here."""

    def _pinned(self, size: int) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)
