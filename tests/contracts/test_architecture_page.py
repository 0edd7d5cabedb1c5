"""The page about the architecture names rooms that exist, and one function for each question."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ANSWERS = re.findall(r"^\| [^|`]+\? \| `(rolltape[\w.]+)` \|$", PAGE, re.MULTILINE)


def find(path: str) -> object:
    """What a dotted path leads to."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if not path.startswith(str(error.name)):
                raise
            continue
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


def test_there_are_twenty_questions_at_least() -> None:
    assert len(ANSWERS) == len(set(ANSWERS)) >= 20
    assert len(re.findall(r"^\| [^|]+\? \|", PAGE, re.MULTILINE)) == len(ANSWERS)


@pytest.mark.parametrize("path", ANSWERS)
def test_the_function_that_answers_is_there(path: str) -> None:
    found = find(path)
    assert callable(found) or hasattr(found, "__get__")
    assert found.__doc__


def test_every_file_and_folder_that_is_named_is_there() -> None:
    for name in re.findall(r"`((?:\w+/)+\w+\.\w+)`", PAGE):
        assert (
            (ROOT / "src" / "rolltape" / name).exists()
            or (ROOT / name).exists()
            or name.startswith("rolltape/")
        ), name
    rooms = re.search(r"\| room \|.*?\n\n", PAGE, re.DOTALL)[0]
    for line in rooms.strip().splitlines()[2:]:
        for name in re.findall(r"`([\w.]+)`", line.split("|")[1]):
            place = ROOT / "src" / "rolltape" / name
            assert place.exists() or place.with_suffix(".py").exists(), name


def test_every_room_is_on_the_page() -> None:
    source = ROOT / "src" / "rolltape"
    rooms = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    assert {room for room in rooms if f"`{room}`" not in PAGE} == set()
