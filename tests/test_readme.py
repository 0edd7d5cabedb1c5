"""The README: what it says first works today, in a clone, without a release on a package index."""

from __future__ import annotations

import re

from tests.snippets import ROOT, snippets

BLOCKS = snippets("README.md")


def test_the_first_commands_need_nothing_but_a_clone() -> None:
    first = BLOCKS[0]
    assert first.language == "bash"
    targets = re.findall(r"^make (\w+)", "\n".join(first.commands), re.MULTILINE)
    assert targets == ["demo", "test"], "the two that show something come first"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_nothing_is_installed_from_an_index() -> None:
    installs = [command for block in BLOCKS for command in block.commands if "pip install" in command]
    assert installs
    for command in installs:
        named = [word.strip("\"'") for word in command.partition("pip install")[2].split()]
        assert all(word.startswith((".", "-", "git+")) for word in named), command


def test_the_five_lines_follow_and_can_be_steered_from_outside() -> None:
    five = next(block for block in BLOCKS if block.language == "python")
    assert BLOCKS.index(five) == 1
    assert "Tape.from_env()" in five.text
    assert "mode=" not in five.text
    assert [command.split()[:2] for command in BLOCKS[2].commands] == [["rolltape", "run"]] * 2
