"""The page of compatibility, `rolltape doctor` and the ranges of pyproject.toml say the same."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rolltape import releases
from rolltape.engines import VLLMEngine
from rolltape.errors import UnsupportedReleaseError
from rolltape.releases import LIBRARIES, Library, check_needs, standing
from tools import compat, overlays

ROOT = Path(__file__).resolve().parents[2]
TESTED = {library.name: library.tested for library in LIBRARIES if library.tested}
PINNED = ("numpy", "pyarrow")
"""Tested on the oldest and the newest by requirements/light.txt."""
NOT_RUN = ("torch", "obstore")
"""Their oldest releases are not run: of torch there is one build for the CPU here, as the page says."""


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


def test_every_range_begins_with_a_release_that_is_run():
    pins = {pin.lower() for packages in overlays.OVERLAYS.values() for pin in packages}
    pins |= set(re.findall(r"^\S+?==[\d.]+", (ROOT / "requirements/light.txt").read_text(), flags=re.M))
    pins = {pin.replace("-cpu==", "==") for pin in pins}
    project = (ROOT / "pyproject.toml").read_text().partition("[dependency-groups]")[0]
    for name, floor in set(re.findall(r'"([\w-]+)>=([\d.]+)"', project)):
        if name not in NOT_RUN and name != "setuptools":
            whole = ".".join([*floor.split("."), "0", "0"][:3])
            assert f"{name.lower()}=={whole}" in pins, name


@pytest.mark.parametrize("name", PINNED)
def test_the_light_stack_has_the_oldest_and_the_newest(name):
    pins = re.findall(rf"^{name}==([\d.]+);", (ROOT / "requirements/light.txt").read_text(), flags=re.M)
    assert set(TESTED[name]) <= set(pins)


def test_every_row_is_over_a_stack_or_is_its_release():
    for row in compat.ROWS:
        if row.overlay is not None:
            pins = [pin.replace("-cpu==", "==") for pin in overlays.OVERLAYS[row.overlay]]
            assert f"{row.library}=={row.release}" in pins
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


def test_what_is_too_old_is_refused_and_by_whom():
    """A verl of 0.6 brings a transformers that is too old for an engine: that alone is said of it."""
    for library in LIBRARIES:
        if library.tested:
            word, why = standing(library.name, "0.0.1")
            assert word == "refused"
            assert why.startswith(f"by {library.engine}: " if library.engine else "the oldest release")
            assert why.endswith(library.tested[0])
    assert {one.name for one in LIBRARIES if one.engine} == {"transformers", "vllm", "ray"}


def test_an_engine_refuses_a_release_that_is_too_old(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.26.0", raising=False)
    monkeypatch.setattr(releases.metadata, "version", none_is_installed)
    with pytest.raises(UnsupportedReleaseError, match=r"vllm 0\.26\.0 is older than the oldest") as caught:
        VLLMEngine("model")
    assert "0.32.0" in str(caught.value)
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "99.0.0")
    with pytest.raises(UnsupportedReleaseError, match=r"vllm 99\.0\.0 has no vllm\.LLM\.enqueue"):
        VLLMEngine("model")


def none_is_installed(name):
    raise releases.metadata.PackageNotFoundError(name)


def test_a_library_that_is_not_listed_has_no_standing():
    assert standing("pandas", "1.0") is None
    assert Library("x", ()) not in LIBRARIES
    with pytest.raises(Exception, match="has no"):
        check_needs("verl", re, ("compile(pattern)", "gone"))
