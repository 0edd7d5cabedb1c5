"""Every error Rolltape raises on purpose, in one tree.

    RolltapeError
    ├── ConfigError            (ValueError)          an option has an invalid value
    ├── KeyNameError           (ValueError)          an invalid step, split, stage or call
    ├── StageError             (ValueError)          a stage name is used twice, or cannot be used
    ├── NoStepError            (RuntimeError)        a stage was called outside ``with tape.step(...)``
    ├── TapeClosedError        (RuntimeError)        the tape was used after ``close()``
    ├── TapeNotFoundError      (FileNotFoundError)   there is no tape at this path
    ├── NotATapeError          (NotADirectoryError)  the path exists, but it is not a tape
    ├── StepMissingError       (FileNotFoundError)   the step is not on the tape and ``on_miss`` is ``error``
    ├── StepExistsError        (FileExistsError)     the step is already on the tape
    ├── StorageError           (OSError)             reading or writing the tape's files failed
    │   ├── TapeReadOnlyError  (PermissionError)     the tape cannot be written
    │   ├── StoreUnreachableError (ConnectionError)  an object store does not answer, or throttles
    │   ├── FileReplacedError                        another file took the place of the one being read
    │   └── DiskFullError                            no space left; says how much was needed
    ├── CorruptFileError       (ValueError)          a file is truncated, altered, or not written by Rolltape
    │   └── MisplacedFileError                       a recording lies where another one belongs
    ├── MemoryLimitError       (MemoryError)         a file asks for more memory than it may take
    ├── FormatVersionError     (ValueError)          the tape was written by a newer Rolltape
    ├── BatchError             (ValueError)          columns that do not form a batch
    ├── UnsupportedValueError  (TypeError)           a value no adapter can store; names the field
    ├── UnknownAdapterError    (LookupError)         the file names an adapter or class not registered here
    ├── ExpectationError       (TypeError)           a column does not have the dtype the stage expects
    ├── MismatchError          (ValueError)          fingerprint parts differ between recording and replay
    ├── RecordError            (RuntimeError)        a recording failed in the background
    ├── TooLateError           (RuntimeError)        it is too late to make this process deterministic
    ├── PromptError            (ValueError)          an invalid prompt; names its position and the field
    ├── EngineError            (RuntimeError)        an engine or its server failed, or cannot do this
    │   └── EngineUnreachableError (ConnectionError) its server is down, too slow, or dropped the connection
    ├── GenerationError        (RuntimeError)        some prompts failed; has the completions of the others
    ├── WeightsError           (ValueError)          weights that do not fit the engine; names the tensor
    ├── UnsupportedReleaseError (RuntimeError)       a release of a framework that cannot be hooked
    ├── StaleWeightsError      (RuntimeError)        the engine's weights are older than allowed
    └── MissingDependencyError (ImportError)         an optional package is needed; says which extra

Each also inherits the built-in error that fits. A message says what happened, where,
the likely causes, and what to do next.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "BatchError", "ConfigError", "CorruptFileError", "DiskFullError", "EngineError",
    "EngineUnreachableError", "ExpectationError", "FileReplacedError", "FormatVersionError",
    "GenerationError",
    "KeyNameError", "MemoryLimitError", "MismatchError", "MisplacedFileError", "MissingDependencyError",
    "NoStepError", "NotATapeError",
    "PromptError", "RecordError", "RolltapeError", "StageError", "StaleWeightsError",
    "StepExistsError", "StepMissingError", "StorageError", "StoreUnreachableError", "TapeClosedError",
    "TapeNotFoundError",
    "TapeReadOnlyError", "TooLateError", "UnknownAdapterError", "UnsupportedReleaseError",
    "UnsupportedValueError", "WeightsError",
]  # fmt: skip


class RolltapeError(Exception):
    """Base of every error Rolltape raises on purpose."""

    def __init__(
        self, what: str, *, where: object = None, causes: Sequence[str] = (), hint: str | None = None
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.causes = tuple(causes)
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {_one_line(self.where)}")
        if len(self.causes) == 1:
            lines.append(f"  likely cause: {self.causes[0]}")
        elif self.causes:
            lines.append("  likely causes:")
            lines += [f"    {number}. {cause}" for number, cause in enumerate(self.causes, 1)]
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)


def _one_line(text: str) -> str:
    """A path with a line end in its name must not begin a line of its own."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


class ConfigError(RolltapeError, ValueError):
    """An option has an invalid value."""


class KeyNameError(RolltapeError, ValueError):
    """A step, split, stage or call is not valid in the name of a recording."""


class StageError(RolltapeError, ValueError):
    """Two stages share a name, or a function cannot be a stage."""


class NoStepError(RolltapeError, RuntimeError):
    """A stage was called outside ``with tape.step(...)``."""


class TapeClosedError(RolltapeError, RuntimeError):
    """The tape was used after ``close()``."""


class _OSErrorMixin(RolltapeError):
    """Sets the ``errno`` of an error that is also an ``OSError``."""

    code = errno.EIO
    errno: int | None
    strerror: str | None
    filename: Any

    def __init__(self, what: str, **about: Any) -> None:
        super().__init__(what, **about)
        self.errno = self.code
        self.filename = self.where
        self.strerror = what


class TapeNotFoundError(_OSErrorMixin, FileNotFoundError):
    """There is no tape at this path."""

    code = errno.ENOENT


class NotATapeError(_OSErrorMixin, NotADirectoryError):
    """The path exists, but it is not a tape."""

    code = errno.ENOTDIR


class StepMissingError(_OSErrorMixin, FileNotFoundError):
    """The step is not on the tape and ``on_miss`` is ``error``."""

    code = errno.ENOENT


class StepExistsError(_OSErrorMixin, FileExistsError):
    """The step is already on the tape, and ``overwrite`` is neither ``keep`` nor ``rewrite``."""

    code = errno.EEXIST


class StorageError(_OSErrorMixin, OSError):
    """Reading or writing the tape's files failed."""


class TapeReadOnlyError(StorageError, PermissionError):
    """The tape cannot be written."""

    code = errno.EACCES


class StoreUnreachableError(StorageError, ConnectionError):
    """An object store does not answer, or answers that it is too busy; it was asked until the deadline."""


class FileReplacedError(StorageError):
    """Another file has taken the place of the one that is being read."""


class DiskFullError(StorageError):
    """No space is left; the message says how much was needed."""

    code = errno.ENOSPC


class CorruptFileError(RolltapeError, ValueError):
    """A file is truncated, altered, or not written by Rolltape."""


class MisplacedFileError(CorruptFileError):
    """A recording lies where another one belongs: renamed, swapped, or copied from another tape."""


class MemoryLimitError(RolltapeError, MemoryError):
    """A file asks for more memory than it may take; the message has the limit and how to raise it."""


class FormatVersionError(RolltapeError, ValueError):
    """The tape was written by a newer Rolltape."""


class BatchError(RolltapeError, ValueError):
    """Columns do not form a batch."""


class UnsupportedValueError(RolltapeError, TypeError):
    """No adapter can store a value; the message names the field and the type."""


class UnknownAdapterError(RolltapeError, LookupError):
    """A file names an adapter or class that is not registered in this process."""


class ExpectationError(RolltapeError, TypeError):
    """A column does not have the dtype that the stage expects."""


class MismatchError(RolltapeError, ValueError):
    """Fingerprint parts differ between the recording and this run."""


class RecordError(RolltapeError, RuntimeError):
    """A recording failed in the background; the cause is chained."""


class TooLateError(RolltapeError, RuntimeError):
    """A library has already read its settings; changing them now would have no effect."""


class PromptError(RolltapeError, ValueError):
    """A prompt is invalid; the message names its position and the field."""


class EngineError(RolltapeError, RuntimeError):
    """An engine, or the server behind it, failed or cannot do what was asked."""


class EngineUnreachableError(EngineError, ConnectionError):
    """The server behind an engine is down, too slow, or dropped the connection."""


class GenerationError(RolltapeError, RuntimeError):
    """Some prompts failed. ``rollout`` has the completions of the others, so only the rest must run again."""

    def __init__(
        self,
        what: str,
        *,
        rollout: Any = None,
        failures: Mapping[int, Exception] | None = None,
        prompts: Sequence[Any] = (),
        **about: Any,
    ) -> None:
        super().__init__(what, **about)
        self.rollout = rollout
        """The completions of every prompt that did not fail: a ``Rollout``."""
        self.failures = dict(failures or {})
        """The error of each prompt that failed, by its position."""
        self.prompts = list(prompts)
        """The prompts that failed, with their uids: generate with them again, then ``Rollout.join``."""


class WeightsError(RolltapeError, ValueError):
    """Weights do not fit the engine's model; the message names the tensor. Nothing was changed."""


class StaleWeightsError(RolltapeError, RuntimeError):
    """The engine's weights are more versions behind the trainer's than ``max_staleness`` allows."""


class UnsupportedReleaseError(RolltapeError, RuntimeError):
    """A release of a framework lacks what a hook needs; the message names it and the releases that work."""


class MissingDependencyError(RolltapeError, ImportError):
    """An optional package is needed; the message has the ``pip install`` line."""
