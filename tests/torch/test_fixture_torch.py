"""The torch tensors on the fixture tape of format 1 are read bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import rolltape
from tests.fixtures import content, content_torch
from tests.fixtures.exact import digest

TAPE = Path(__file__).parents[1] / "fixtures" / "format1-torch.tape"


@pytest.mark.parametrize("stage", content_torch.RECORDINGS)
def test_format_1_tensors(stage: str) -> None:
    tape = rolltape.Tape(
        TAPE, mode="replay", fingerprint=content.FINGERPRINT, match={"environment": "ignore"}
    )
    value = tape.recording(0, stage).value()
    expected = content_torch.RECORDINGS[stage]()
    assert list(value) == list(expected)
    for name, item in expected.items():
        assert digest(value[name]) == digest(item), name
