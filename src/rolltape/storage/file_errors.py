"""The errors about a file of a tape that every storage raises."""

from __future__ import annotations

from rolltape.errors import CorruptFileError, FileReplacedError, StepExistsError, StepMissingError


def missing(where: str) -> StepMissingError:
    """There is no such file."""
    return StepMissingError("there is no such file on the tape", where=where)


def taken(where: str) -> StepExistsError:
    """There is such a file already."""
    return StepExistsError(
        "this file is already on the tape, and is not replaced",
        where=where,
        causes=["the step was recorded earlier", "another process records the same step to the same tape"],
        hint="record to a new tape, or set mode to rewrite",
    )


def cut_short(where: str, wanted: int, size: int) -> CorruptFileError:
    """The file is shorter than what is asked of it."""
    return CorruptFileError(
        f"the file ends too early: expected {wanted} bytes, but it has {size}",
        where=where,
        causes=["a copy of the tape did not finish", "its disk, network share or store failed"],
        hint="`rolltape repair TAPE --from COPY` fetches it from a copy of the tape; `--drop` drops the step",
    )


def replaced(where: str) -> FileReplacedError:
    """Another file has taken the place of the one that is being read."""
    return FileReplacedError(
        "the recording was replaced while it was read",
        where=where,
        causes=["a run in mode rewrite writes this step now"],
        hint="read it again",
    )
