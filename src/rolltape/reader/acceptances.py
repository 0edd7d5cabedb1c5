"""Who accepted which change of a baseline, and why: ``accepted.jsonl``, a line each."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from rolltape.errors import CorruptFileError, StepMissingError
from rolltape.storage import Storage
from rolltape.tape.checked_lines import parse_line
from rolltape.tape.place import check_note

NAME = "accepted.jsonl"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One change of a baseline."""

    author: str
    reason: str
    before: str
    """The id that the baseline had."""
    candidate: str
    """The id of the tape that was accepted."""
    verdict: str
    """What the comparison of the two said."""
    when: str = ""
    tape: str = ""
    """The id that the baseline has since; empty in lines of older versions."""


def acceptances(storage: Storage) -> list[Acceptance]:
    """Every acceptance of a tape, oldest first."""
    try:
        lines = bytes(storage.read(NAME)).decode("utf-8", "replace").splitlines()
    except StepMissingError:
        return []
    try:
        found = [(number, _read_line(line)) for number, line in enumerate(lines, 1) if line.strip()]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"a line about an acceptance cannot be read: {error!s:.200}",
            where=f"{storage.location}/{NAME}",
            hint="remove that line; the recordings beside it are untouched",
        ) from None
    for number, one in found:
        check_note(storage, {"tape": one.tape or None}, f"{storage.location}/{NAME}, line {number}")
    return [one for _, one in found]


def _read_line(line: str) -> Acceptance:
    found = Acceptance(**parse_line(line))
    if not all(type(value) is str for value in astuple(found)):
        raise TypeError("it is not made of texts")
    return found
