"""What ``push``, ``pull`` and ``sync`` have in common: they carry plans out, and say what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from rolltape.cli.output import Exit, Screen, complain, new_table, print_json
from rolltape.cli.progress import step_bar
from rolltape.copying import Done, Plan, carry_out
from rolltape.errors import RolltapeError
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted
from rolltape.rich_text import shown
from rolltape.tape.summary import amount

dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be copied, and copy nothing.")
rewrite_option = click.option(
    "--rewrite", is_flag=True, help="Replace what differs over there by what is here, instead of naming it."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One direction: what was planned, and what was done (None: it was a dry run)."""

    plan: Plan
    done: Done | None


def copy_tapes(plans: Sequence[Plan], *, dry_run: bool, as_json: bool) -> Exit:
    """Carry these plans out, and say what was copied and what was not."""
    outcomes = [Outcome(plan, None if dry_run else _carried(plan)) for plan in plans]
    conflicts = list(dict.fromkeys(conflict for plan in plans for conflict in plan.conflicts))
    damaged = [one for outcome in outcomes if outcome.done for one in outcome.done.damaged]
    if as_json:
        findings = {"conflicts": conflicts, "damaged": damaged}
        document = {name: [asdict(one) for one in found] for name, found in findings.items()}
        print_json({"copies": [_as_json(outcome) for outcome in outcomes], **document})
    else:
        for outcome in outcomes:
            _tell(outcome)
    if (conflicts or damaged) and not as_json:
        table = new_table("finding", "file", "what", fold={"file": 24, "what": 24})
        for kind, found in (("conflict", conflicts), ("damaged", damaged)):
            for one in found:
                table.add_row(shown(kind, "red"), shown(one.file), shown(one.what))
        Screen().print(table)
    if conflicts:
        complain(
            f"{counted(len(conflicts), 'file')} on both sides differ, and neither was changed\n"
            "  next: look at both with `rolltape diff`; `push --rewrite` or `pull --rewrite` takes one side"
        )
    if damaged:
        complain(
            f"{counted(len(damaged), 'damaged file')} not copied\n"
            "  next: `rolltape repair TAPE --from COPY` mends a tape from a copy of it"
        )
    return Exit.FINDINGS if conflicts or damaged else Exit.CLEAN


def _carried(plan: Plan) -> Done:
    total, copied = plan.bytes, 0

    def tick(done: int) -> None:
        nonlocal copied
        copied = done
        told(done, total)

    with step_bar(f"{plan.source.location} → {plan.target.location}") as told:
        try:
            return carry_out(plan, tick)
        except (RolltapeError, KeyboardInterrupt):
            if copied:
                complain(f"{amount(copied)} were copied; the same command goes on from there")
            raise


def _tell(outcome: Outcome) -> None:
    plan, done = outcome.plan, outcome.done
    way = f"{visible(plan.source.location)} → {visible(plan.target.location)}"
    files, size, lines = (
        (len(plan.missing), plan.bytes, plan.added_lines)
        if done is None
        else (len(done.files), done.bytes, done.lines)
    )
    said = [f"{counted(files, 'file')} ({amount(size)})"] if files or not lines else []
    said += [counted(lines, "line")] if lines else []
    verb = "would copy" if done is None else "copied"
    complain(f"{way}: {verb} {' and '.join(said)}; {plan.same:,} were there already")
    if plan.dropped:
        files_there = counted(len(plan.dropped), "file")
        complain(f"note: {files_there} left out that were dropped over there on purpose")
    if plan.foreign:
        complain(f"note: {counted(len(plan.foreign), 'file')} left out that are no part of a tape")


def _as_json(outcome: Outcome) -> dict[str, object]:
    plan, done = outcome.plan, outcome.done
    return {
        "from": plan.source.location,
        "to": plan.target.location,
        "dry_run": done is None,
        "files": [stat.name for stat in plan.missing] if done is None else done.files,
        "bytes": plan.bytes if done is None else done.bytes,
        "lines": plan.added_lines if done is None else done.lines,
        "same": plan.same,
        "dropped": plan.dropped,
        "foreign": plan.foreign,
    }
