"""The page of compatibility, `rolltape doctor` and the ranges of pyproject.toml say the same."""

import re
from pathlib import Path

import pytest

from rolltape.integrations.releases import LIBRARIES, Library, check_needs, standing
from tools import compat, overlays

ROOT = Path(__file__).resolve().parents[2]
TESTED = {library.name: library.tested for library in LIBRARIES if library.tested}
PINNED = ("numpy", "pyarrow")
"""Tested on the oldest and the newest by requirements/light.txt."""


def floors(name):
    """What pyproject.toml asks of a library, everywhere it does."""
    return set(re.findall(rf'"{name}>=([\d.]+)"', (ROOT / "pyproject.toml").read_text()))


@pytest.mark.parametrize("name", TESTED)
def test_the_range_begins_with_the_oldest_release_that_is_tested(name):
    (floor,) = floors(name)
    parts = floor.split(".")
    assert ".".join([*parts, *["0"] * (3 - len(parts))]) == TESTED[name][0]


@pytest.mark.parametrize("name", [name for name in TESTED if name not in PINNED])
def test_what_is_called_tested_passed_on_the_page(name):
    assert list(TESTED[name]) == compat.passed()[name]


@pytest.mark.parametrize("name", PINNED)
def test_the_light_stack_has_the_oldest_and_the_newest(name):
    pins = re.findall(rf"^{name}==([\d.]+);", (ROOT / "requirements/light.txt").read_text(), flags=re.M)
    assert set(TESTED[name]) <= set(pins)


def test_every_row_is_over_a_stack_or_is_its_release():
    for row in compat.ROWS:
        if row.overlay is not None:
            assert f"{row.library}=={row.release}" in overlays.OVERLAYS[row.overlay]
            continue
        files = [ROOT / f"requirements/{name}.txt" for name in compat.stack_files(row.stack)]
        pinned = "\n".join(file.read_text() for file in files)
        assert re.search(rf"^{row.library}(-cpu)?=={re.escape(row.release)}\b", pinned, flags=re.M), row.name


def test_every_overlay_is_run():
    assert set(overlays.OVERLAYS) == {row.overlay for row in compat.ROWS if row.overlay}


def test_what_make_test_has_is_not_run_again():
    assert all(row.overlay for row in compat.chosen([]))
    assert [row.name for row in compat.chosen(["trl-1.0.0", "transformers"])] == [
        "trl-1.0.0",
        "transformers-5.0.0",
    ]


def test_a_row_that_was_seen_takes_the_place_of_the_old_one(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- table -->\n<!-- end -->\n\nrest\n")
    first, second = compat.ROWS[0], compat.ROWS[1]
    compat.write([compat.Seen(second, 3, 1)], page)
    compat.write([compat.Seen(first, 7, 0)], page)
    newest = [row.release for row in compat.ROWS if row.library == first.library and row.overlay is None]
    assert compat.passed(page)[first.library] == [first.release, *newest]
    compat.write([compat.Seen(second, 4, 0)], page)
    assert compat.passed(page)[first.library] == [first.release, second.release, *newest]
    assert page.read_text().startswith("# Page\n")
    assert page.read_text().endswith("<!-- end -->\n\nrest\n")


def test_tests_that_never_ran_have_not_passed(tmp_path):
    assert compat.count(compat.ROWS[0], tmp_path / "nothing.xml").failed == 1
    assert "failed" in compat.Seen(compat.ROWS[0], 0, 0).result


@pytest.mark.parametrize(
    ("version", "word"),
    [
        ("0.6.1", "tested"),
        ("0.7.2", "expected to work"),
        ("0.10.0", "expected to work"),
        ("1.0.0rc1", "expected to work"),
        ("0.5.0", "refused"),
        ("0.5.0.post1", "refused"),
    ],
)
def test_what_is_said_of_a_release(version, word):
    said = standing("verl", version)
    assert said is not None
    assert said[0] == word


def test_only_what_is_hooked_is_refused_for_its_age():
    """A verl of 0.6 needs a transformers and a Ray that are older than those the engines are tested with."""
    words = {library.name: standing(library.name, "0.0.1") for library in LIBRARIES if library.tested}
    assert {name for name, said in words.items() if said and said[0] == "refused"} == {"verl", "trl"}
    assert standing("transformers", "4.57.1") == ("not tested", "the oldest release that is tested is 5.0.0")


def test_a_library_that_is_not_listed_has_no_standing():
    assert standing("pandas", "1.0") is None
    assert Library("x", ()) not in LIBRARIES
    with pytest.raises(Exception, match="has no"):
        check_needs("verl", re, ("compile(pattern)", "gone"))
