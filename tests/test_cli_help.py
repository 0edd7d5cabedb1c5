"""The help texts in docs/cli.md are what the commands print.

PYTHONPATH=src python tests/test_cli_help.py      writes them anew
"""

import re
from pathlib import Path

from click.testing import CliRunner

from rolltape.cli import main
from rolltape.cli.app import COMMANDS

DOC = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
_BLOCK = re.compile(r"<!-- help: rolltape ?(?P<name>\w*) -->\n```text\n(?P<text>.*?)```\n", re.DOTALL)


def help_text(name: str) -> str:
    """What `rolltape NAME --help` prints at 80 columns."""
    words = [*([name] if name else []), "--help"]
    done = CliRunner().invoke(main, words, prog_name="rolltape", terminal_width=80)
    assert done.exit_code == 0, done.output
    return done.output


def written_anew(text: str) -> str:
    def block(match: re.Match) -> str:
        head = f"<!-- help: rolltape {match['name']}".rstrip()
        return f"{head} -->\n```text\n{help_text(match['name'])}```\n"

    return _BLOCK.sub(block, text)


def test_the_documented_help_is_the_real_one():
    text = DOC.read_text(encoding="utf-8")
    assert written_anew(text) == text, "run: PYTHONPATH=src python tests/test_cli_help.py"


def test_every_command_is_documented():
    names = [match["name"] for match in _BLOCK.finditer(DOC.read_text(encoding="utf-8"))]
    assert sorted(names) == sorted(["", *COMMANDS])


def test_every_command_says_in_a_line_what_it_does():
    listed = help_text("")
    assert all(
        re.search(rf"^  {name} +[A-Z].*\.|^  {name} +[A-Z].*\?", listed, re.MULTILINE) for name in COMMANDS
    )


if __name__ == "__main__":
    DOC.write_text(written_anew(DOC.read_text(encoding="utf-8")), encoding="utf-8")
