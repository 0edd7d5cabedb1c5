"""Every code block of docs/reading-with-other-tools.md runs, and finds something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "reading-with-other-tools.md"
ROWS = [2, 6, 16, 3, 4]
"""How many rows each query of the guide gives."""


def test_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "guide"}
    rows, printed = [], []
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE):
        if language == "sql":
            rows.append(duckdb.sql(code).fetchall())
        else:
            assert language == "python", f"what is a block of {language}?"
            exec(compile(code, str(GUIDE), "exec"), namespace)
            printed.append(capsys.readouterr().out)
    assert [len(found) for found in rows] == ROWS
    assert rows[0] == [("a", 6, 4.0, 0.5), ("b", 6, 4.0, 1.0)]
    assert rows[1][0] == (0, "2 + 2?", 1.0)
    assert all(token > 0 and log_prob < 0 for _, _, token, log_prob in rows[2])
    assert rows[3] == [(0, 0.75, 1.5), (1, 0.75, 2.5), (2, 0.75, 3.5)]
    assert not printed[0], "recording is silent"
    assert len(printed) == 4
    assert all(printed[1:])
