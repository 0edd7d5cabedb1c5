"""A tape is data: whatever a file says, reading it imports nothing and calls nothing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.batch import dismantle
from rolltape.batch.tree import Dismantled
from rolltape.codec.file import encode
from rolltape.codec.pack import pack
from tests.exact import open_bytes

EVIL = [
    {"$dataclass": "subprocess.Popen", "fields": {"args": ["touch", "x"]}},
    {"$namedtuple": "os.system", "fields": {"command": "true"}},
    {"$enum": "colorsys.rgb_to_hsv", "member": "x"},
    {"$adapted": "colorsys.rgb_to_hsv", "parts": [1, 2, 3]},
    {"$adapted": "builtins.eval", "parts": "1"},
    {"$records": "colorsys.Popen", "fields": {}, "groups": None},
    {"$reduce": ["os.system", "true"]},
    {"$torch.device.__class__": "cpu"},
]


@pytest.mark.parametrize("node", EVIL, ids=lambda node: str(next(iter(node.items()))))
def test_a_file_cannot_make_us_import_or_call_anything(node: Any) -> None:
    sys.modules.pop("colorsys", None)
    data = b"".join(bytes(piece) for piece in encode(pack(Dismantled(0, {"a": node}))))
    before = set(sys.modules)
    with pytest.raises((rolltape.UnknownAdapterError, rolltape.CorruptFileError)):
        open_bytes(data).value()
    assert "colorsys" not in sys.modules
    assert set(sys.modules) == before


@pytest.mark.parametrize("dtype", ["numpy:O", "numpy:|O", "numpy:i4,O"])
def test_a_file_cannot_make_pointers_of_bytes(dtype: str) -> None:
    parts = dismantle({"uid": ["x", "y"], "a": np.arange(6, dtype=">i8").reshape(2, 3)})
    packed = pack(parts)
    packed.header["columns"]["a"]["dtype"] = dtype
    with pytest.raises(rolltape.CorruptFileError):
        open_bytes(b"".join(bytes(piece) for piece in encode(packed))).value()
