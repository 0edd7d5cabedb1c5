"""What a command says: data on stdout, messages on stderr, one exit code.

Strings are never read as rich markup here; whatever comes from a tape goes through ``visible`` first.
"""

from __future__ import annotations

import enum
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltape.rich_text import shown

PIPED_WIDTH = 10_000
"""Columns where there is no terminal: nothing is wrapped or cut for whoever reads the pipe."""


_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)
"""How a line begins that GitHub obeys."""

HELP = {"help_option_names": ["-h", "--help"]}
"""Context settings of a command that is also used by itself: click keeps the first help option it makes."""


class Exit(enum.IntEnum):
    """What the exit code of every command means."""

    CLEAN = 0
    FINDINGS = 1
    ERROR = 2
    """Wrong usage, or something failed."""
    NOTHING = 3
    """Nothing there that could be shown or checked."""
    NO_TAPE = 4
    """What ``run`` started ended well, and never opened the tape."""


class Screen(Console):
    """A rich console that leaves a closed pipe to ``app``."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        wide = not stream.isatty() and "COLUMNS" not in os.environ
        super().__init__(
            file=stream,
            width=PIPED_WIDTH if wide else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    @property
    def wraps(self) -> bool:
        """Whether long lines should be broken: somebody looks at them."""
        return self.width < PIPED_WIDTH

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def complain(message: str) -> None:
    """A message on stderr, as long as it is. No line of it is a command to the pipeline that shows it."""
    Screen(stderr=True).print(shown(no_command(message), lines=True), soft_wrap=True)


def no_command(text: str) -> str:
    """The text, with no line that the pipeline which shows it would obey.

    >>> no_command("  ::error::x")
    '  \\\\x3a:error::x'
    """
    return _COMMAND.sub(r"\1\\x3a:", text)


def print_json(document: Any) -> None:
    """One JSON document on stdout. Floats that JSON lacks are the texts ``nan``, ``inf`` and ``-inf``."""
    print(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def new_table(*columns: str, right: Sequence[str] = (), fold: Mapping[str, int] | None = None) -> Table:
    """An empty table. ``right`` are columns of numbers; ``fold`` are those that may be broken over lines,
    each with the width that it keeps in a narrow terminal.
    """
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold"
    )
    for name in columns:
        width = (fold or {}).get(name)
        table.add_column(
            Text(name),
            justify="right" if name in right else "left",
            overflow="ellipsis" if width is None else "fold",
            no_wrap=width is None,
            min_width=width,
        )
    return table
