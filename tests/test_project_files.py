"""Files that have to agree: pinned tools, the pages of the reference, the notes of a release."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rolltape

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^([\w-]+)==([\w.]+)$", re.MULTILINE)


def pins(text: str) -> dict[str, str]:
    return dict(PIN.findall(text))


def test_a_commit_is_checked_with_the_tools_of_lint():
    lint = (ROOT / "requirements" / "lint.txt").read_text()
    hooks = re.findall(r'"([\w-]+)==([\w.]+)"', (ROOT / ".pre-commit-config.yaml").read_text())
    tools = {name: version for name, version in hooks if name != "pre-commit-hooks"}
    assert {"ruff", "mypy"} <= set(tools)
    for name, version in tools.items():
        assert re.search(rf"^{name}=={re.escape(version)}\b", lint, re.MULTILINE), f"{name}=={version}"


def test_the_site_formats_signatures_with_the_ruff_of_lint():
    docs, lint = ((ROOT / "requirements" / f"{name}.txt").read_text() for name in ("docs", "lint"))
    assert pins(docs)["ruff"] == pins(lint)["ruff"]


@pytest.mark.parametrize("module", ["rolltape", "rolltape.engines", "rolltape.verify", "rolltape.reader"])
def test_the_reference_has_every_public_name(module: str):
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = {entry.rsplit(".", 1)[-1] for entry in re.findall(r"^::: (rolltape\S*)$", pages, re.MULTILINE)}
    if "errors" in shown:  # a page for the whole module
        shown |= set(rolltape.errors.__all__)
    public = set(getattr(importlib.import_module(module), "__all__", ())) - {"__version__"}
    assert public <= shown, f"not on a page of docs/api: {sorted(public - shown)}"


def test_the_notes_of_a_release_are_its_section_of_the_changelog():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        release = importlib.import_module("release")
    finally:
        sys.path.pop(0)
    changelog = "# Changelog\n\n## [Unreleased]\n\n- Later.\n\n"
    changelog += "## [0.2.0] - 2027-01-31\n\n### Added\n\n- New.\n\n## [0.1.0]\n"
    assert release.notes(changelog, "0.2.0") == "### Added\n\n- New."
    assert release.notes(changelog, "0.1.0") == ""
    assert release.notes(changelog, "2.0") == ""


def test_a_tag_that_is_not_the_version_is_refused():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "release.py", "v999.0"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == f"the tag is v999.0, and src/rolltape/_version.py says {rolltape.__version__}\n"
