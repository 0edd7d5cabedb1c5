"""The random state a live stage leaves behind: taken after recording, put back after replay.

A skipped stage draws no random numbers. Without this, shuffles, dropout and sampling after it would differ
from the recorded run. Covers the global generators of Python, numpy and torch (CPU and devices that are in
use); generators that a program creates for itself are not covered.
"""

from __future__ import annotations

import base64
import random
import sys
from typing import Any

import numpy as np

from rolltape.batch.json_values import Json
from rolltape.errors import CorruptFileError


def capture() -> dict[str, Json]:
    """The state of every global generator in use, as JSON. Draws nothing."""
    version, words, gauss = random.getstate()
    found: dict[str, Json] = {"python": [version, _text(np.array(words, np.uint32)), _float(gauss)]}
    if "numpy.random" in sys.modules:  # numpy loads it when it is first used
        legacy: Any = np.random.get_state(legacy=True)
        kind, keys, position, has_gauss, cached = legacy
        found["numpy"] = [str(kind), _text(np.asarray(keys)), int(position), int(has_gauss), _float(cached)]
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = _text(torch.get_rng_state().numpy())
        found |= {name: [_text(s.cpu().numpy()) for s in states] for name, states in _devices(torch).items()}
    return found


def restore(found: dict[str, Json]) -> None:
    """Put the generators back into a captured state; those that were not in use then are left alone."""
    try:
        version, words, gauss = found["python"]
        random.setstate((version, tuple(_array(words, np.uint32).tolist()), _unfloat(gauss)))
        if "numpy" in found:
            kind, keys, position, has_gauss, cached = found["numpy"]
            legacy: Any = (kind, _array(keys, np.uint32), position, has_gauss, _unfloat(cached))
            np.random.set_state(legacy)
        _restore_torch(found)
    except (KeyError, ValueError, TypeError, RuntimeError, OverflowError, AttributeError) as error:
        raise CorruptFileError(f"the recorded random state cannot be restored: {error!r}") from None


def _restore_torch(found: dict[str, Json]) -> None:
    torch = sys.modules.get("torch")
    if torch is None or "torch" not in found:
        return
    torch.set_rng_state(torch.from_numpy(_array(found["torch"], np.uint8)))
    for name, states in _devices(torch).items():
        recorded = found.get(name, [])
        for device, state in zip(range(len(states)), recorded, strict=False):
            getattr(torch, name).set_rng_state(torch.from_numpy(_array(state, np.uint8)), device)


def _devices(torch: Any) -> dict[str, list[Any]]:
    """The states of the accelerators that this process already uses; asking must not initialize one."""
    found = {}
    for name in ("cuda", "npu", "xpu"):
        module = getattr(torch, name, None)
        if module is not None and getattr(module, "is_initialized", lambda: False)():
            found[name] = list(module.get_rng_state_all())
    return found


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _array(text: str, dtype: Any) -> np.ndarray:
    return np.frombuffer(bytearray(base64.b64decode(text)), dtype)


def _float(value: float | None) -> Json:
    return None if value is None else float(value).hex()


def _unfloat(text: str | None) -> float | None:
    return None if text is None else float.fromhex(text)
