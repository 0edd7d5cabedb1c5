"""``rolltape doctor``: whether this machine and this directory are fit to record and replay."""

from __future__ import annotations

import os
from dataclasses import asdict
from itertools import groupby

import click

from rolltape.cli import machine_facts as probe
from rolltape.cli.arguments import TapePath, json_option
from rolltape.cli.output import Exit, Screen, print_json
from rolltape.reader.wording import counted
from rolltape.rich_text import shown


@click.command("doctor", short_help="Versions, disk, flags: is all fit to record?")
@click.argument("tape", required=False, type=TapePath())
@json_option
def command(tape: str | None, as_json: bool) -> Exit:
    """Report versions, CPU, disk space, writability, settings and determinism flags for TAPE.

    Without TAPE: the directory that ROLLTAPE_DIR names, or the current one. Exits with 1 if something needs
    attention. Nothing is imported; where torch is installed, a short process of its own tries whether it can
    multiply on this CPU. Nothing is left behind.
    """
    environ = os.environ
    directory = tape or environ.get("ROLLTAPE_DIR") or "."
    facts = [
        *probe.versions(),
        *probe.processor(environ),
        *probe.place(directory),
        *probe.spooled(environ),
        *probe.settings(environ),
        *probe.determinism(environ, directory),
    ]
    troubled = [fact for fact in facts if fact.attention]
    if as_json:
        print_json({"attention": len(troubled), "facts": [asdict(fact) for fact in facts]})
    else:
        _print_facts(facts)
        _print_verdict(troubled)
    return Exit.FINDINGS if troubled else Exit.CLEAN


def _print_facts(facts: list[probe.Fact]) -> None:
    screen = Screen()
    for number, (topic, group) in enumerate(groupby(facts, key=lambda fact: fact.topic)):
        screen.print(shown(f"\n{topic}" if number else topic, "bold cyan", lines=True))
        listed = list(group)
        width = max(len(fact.name) for fact in listed)
        for fact in listed:
            line = shown(f"  {fact.name:<{width}}  ") + shown(fact.value, "red" if fact.attention else "")
            note = shown(fact.note, "dim")
            if line.cell_len + 2 + note.cell_len <= screen.width:
                screen.print(line + shown("  " if fact.note else "") + note, soft_wrap=True)
            else:
                screen.print(line, soft_wrap=True)
                screen.print(shown("      ") + note)


def _print_verdict(troubled: list[probe.Fact]) -> None:
    screen = Screen()
    if not troubled:
        screen.print(shown("\nall is well", "bold green", lines=True))
        return
    title = f"\n{counted(len(troubled), 'thing needs', 'things need')} attention"
    screen.print(shown(title, "bold red", lines=True))
    for fact in troubled:
        screen.print(shown(f"  {fact.name}: {fact.attention}", "red"))
