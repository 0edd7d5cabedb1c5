"""The name of one recording, and the file name it has on every tape.

Pure: maps names to POSIX relative paths and back, and touches no file.

    train/rollout/step_000000.parquet              split / stage / step
    train/rollout/step_000000.c1.parquet           its second call
    train/rollout/step_000000.kreq%2F7.parquet     a call the caller named; the name is percent-quoted
    train/rollout/step_000000.c1.r2of8.parquet     the shard of rank 2 of 8
    train/rollout/step_000000.c1.in.parquet        the inputs of that call
    train/rollout/step_000000.c1.of8.commit        says that all 8 shards of that call are there
    train/rollout/step_000000.c1.of8.void          names shards that are being replaced
    train/metrics.jsonl                            what was logged, a line per step
    samples.index/train/rollout/….parquet          where the samples of which prompts are; made of recordings
    samples.open/train/rollout/….parquet           finished samples of a step that is not recorded yet

Names that differ only in case are different recordings here, but one file on a case-insensitive file system
(macOS and Windows by default): do not rely on case alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import quote, unquote

from rolltape.errors import KeyNameError
from rolltape.steps import as_step

__all__ = [
    "Key", "check_name", "index_folder", "is_of_index", "is_of_open_step", "metrics_path", "open_folder",
]  # fmt: skip

MAX_NAME = 100
MAX_CALL_BYTES = 200
MAX_FILE_NAME = 255
MAX_WORLD = 2**17
"""Ranks that a run can have: a name alone must not make anybody look for more."""

MORE = "more-"
"""How calls are named that added samples to prompts of which some were recorded before."""

_METRICS = "metrics.jsonl"
_INDEX = "samples.index"
_OPEN = "samples.open"
_TAKEN = {_METRICS, "tape.json", "segments.index", _INDEX, _OPEN}
_WINDOWS = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_PATH = re.compile(
    r"(?P<split>[^/]+)/(?P<stage>[^/]+)/step_(?P<step>[0-9]{6,19})"
    r"(?:\.c(?P<call>[0-9]{1,19})|\.k(?P<name>[^./]+))?"
    r"(?:\.r(?P<rank>[0-9]{1,19})of(?P<world>[0-9]{1,19}))?"
    r"(?P<inputs>\.in)?\.parquet"
)
_COMMIT = re.compile(
    r"(?P<stem>[^/]+/[^/]+/step_[0-9]{6,19}(?:\.c[0-9]{1,19})?)\.of(?P<world>[0-9]{1,19})\.(?:commit|void)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Names one recording. A key that exists is valid; anything else is a ``KeyNameError``.

    >>> Key(step=7, call=1, rank=2, world_size=8).path
    'train/rollout/step_000007.c1.r2of8.parquet'
    """

    split: str = "train"
    """``train``, ``val``, or any name."""

    stage: str = "rollout"
    """The recorded function of the training step."""

    step: int
    """What the trainer counts."""

    call: int | str = 0
    """Which call of the stage within the step: its number, or a text chosen by an asynchronous caller."""

    rank: int = 0
    """Which process of ``world_size`` recorded its shard."""

    world_size: int = 1
    """How many processes record a shard each."""

    inputs: bool = False
    """Whether this names the inputs of the call instead of its result."""

    def __post_init__(self) -> None:
        check_name("split", self.split)
        check_name("stage", self.stage)
        # Numpy integers become plain ones, so that a key reads and serializes the same wherever it came from.
        object.__setattr__(self, "step", as_step(self.step))
        object.__setattr__(self, "call", _check_call(self.call))
        object.__setattr__(self, "rank", as_step(self.rank, "rank"))
        object.__setattr__(self, "world_size", as_step(self.world_size, "world_size"))
        if self.world_size > MAX_WORLD:
            raise KeyNameError(f"world_size must be at most {MAX_WORLD:,}, not {self.world_size:,}")
        if self.rank >= self.world_size:
            raise KeyNameError(
                f"rank must be less than world_size {self.world_size}, not {self.rank}",
                hint="ranks go from 0 to world_size - 1",
            )
        if isinstance(self.call, str) and len(self._file) > MAX_FILE_NAME:
            raise KeyNameError(
                f"call {self.call!r} needs a file name of {len(self._file)} bytes, above {MAX_FILE_NAME}",
                causes=["each byte that is not an ASCII letter, digit, `_`, `-` or `~` takes three"],
                hint="choose a shorter text for the call",
            )

    @property
    def path(self) -> str:
        """The file of this recording, relative to the tape, with ``/`` between its parts."""
        return f"{self.split}/{self.stage}/{self._file}"

    @property
    def is_shard(self) -> bool:
        """Whether other ranks record a part of the same call. Of named calls each rank has its own."""
        return self.world_size > 1 and not isinstance(self.call, str)

    @property
    def commit(self) -> str:
        """The file that says that every shard of this call is there; for a shard only.

        >>> Key(step=7, call=1, rank=2, world_size=8).commit
        'train/rollout/step_000007.c1.of8.commit'
        """
        return f"{self._call_of_all}.commit"

    @property
    def void(self) -> str:
        """The file that names the shards of this call that a run is about to replace; for a shard only."""
        return f"{self._call_of_all}.void"

    @property
    def _call_of_all(self) -> str:
        call = f".c{self.call}" if self.call else ""
        return f"{self.split}/{self.stage}/step_{self.step:06d}{call}.of{self.world_size}"

    def shards(self) -> Iterator[Key]:
        """The keys of all ranks, in their order. A name can promise many: stop where one is missing."""
        return (replace(self, rank=rank) for rank in range(self.world_size))

    @property
    def _file(self) -> str:
        call = f".c{self.call}" if self.call else ""
        if isinstance(self.call, str):
            call = f".k{_quoted(self.call)}"
        shard = f".r{self.rank}of{self.world_size}" if self.world_size > 1 else ""
        return f"step_{self.step:06d}{call}{shard}{'.in' if self.inputs else ''}.parquet"

    @staticmethod
    def parse(path: str) -> Key | None:
        """The key whose ``path`` is exactly ``path``; ``None`` for any other file's name.

        >>> Key.parse("val/reward/step_000012.in.parquet")
        Key(split='val', stage='reward', step=12, call=0, rank=0, world_size=1, inputs=True)
        >>> Key.parse("train/metrics.jsonl") is None
        True
        """
        match = _PATH.fullmatch(path)
        if not match:
            return None
        try:
            key = Key(
                split=match["split"],
                stage=match["stage"],
                step=int(match["step"]),
                call=unquote(match["name"]) if match["name"] else int(match["call"] or 0),
                rank=int(match["rank"] or 0),
                world_size=int(match["world"] or 1),
                inputs=match["inputs"] is not None,
            )
        except KeyNameError:
            return None
        # Other spellings (`.c0`, `%2e`, a needless `.r0of1`) would give two files to one recording.
        return key if key.path == path else None

    @staticmethod
    def parse_commit(path: str) -> Key | None:
        """The key of rank 0 whose ``commit`` or ``void`` is exactly ``path``; ``None`` for any other name.

        >>> Key.parse_commit("train/rollout/step_000007.of8.commit")
        Key(split='train', stage='rollout', step=7, call=0, rank=0, world_size=8, inputs=False)
        """
        match = _COMMIT.fullmatch(path)
        key = Key.parse(f"{match['stem']}.r0of{match['world']}.parquet") if match else None
        return key if key is not None and key.is_shard and path in (key.commit, key.void) else None


def metrics_path(split: str) -> str:
    """The file with the metrics of a split, relative to the tape.

    >>> metrics_path("train")
    'train/metrics.jsonl'
    """
    return f"{check_name('split', split)}/{_METRICS}"


def index_folder(split: str, stage: str) -> str:
    """Where the index of the samples of a stage is.

    >>> index_folder("train", "rollout")
    'samples.index/train/rollout/'
    """
    return f"{_INDEX}/{check_name('split', split)}/{check_name('stage', stage)}/"


def is_of_index(name: str) -> bool:
    """Whether a file is part of the index of samples: made of recordings, and not one of them."""
    return name.startswith(f"{_INDEX}/") and name.endswith(".parquet") and name.count("/") == 3


def open_folder(split: str, stage: str) -> str:
    """Where finished samples of a stage are while their step is not recorded.

    >>> open_folder("train", "rollout")
    'samples.open/train/rollout/'
    """
    return f"{_OPEN}/{check_name('split', split)}/{check_name('stage', stage)}/"


def is_of_open_step(name: str) -> bool:
    """Whether a file holds finished samples of a step that was not recorded yet: no recording."""
    return name.startswith(f"{_OPEN}/") and name.endswith(".parquet") and name.count("/") == 3


def check_name(kind: str, name: object) -> str:
    """Return ``name`` if it is valid for a split or stage; else raise ``KeyNameError`` with a suggestion.

    >>> check_name("stage", "ref_logprob")
    'ref_logprob'
    """
    if type(name) is str and _is_allowed(name):
        return name
    problem = _problem(name)
    if problem is None:
        return str(name)
    cleaned = _cleaned(name) if isinstance(name, str) else None
    shown = repr(name) if len(repr(name)) <= MAX_NAME else repr(name)[: MAX_NAME - 3] + "..."
    advice = "use letters, digits, `_`, `-` and `.`, as in 'ref_logprob'"
    hint = f"name it {cleaned!r}" if cleaned else advice
    raise KeyNameError(f"{kind} name {shown} {problem}", hint=hint)


@lru_cache(maxsize=256)
def _is_allowed(name: str) -> bool:
    """The same few names are checked with every key."""
    return _problem(name) is None


def _problem(name: object) -> str | None:
    """What is wrong with a name, as the end of a sentence; positions count from 1."""
    if not isinstance(name, str):
        return f"must be text, not {type(name).__name__}"
    if not name:
        return "is empty"
    if wrong := re.search(r"[^A-Za-z0-9_.-]", name):
        return f"has {wrong[0]!r} at position {wrong.start() + 1}; use ASCII letters, digits and `_-.` only"
    if len(name) > MAX_NAME:
        return f"has {len(name)} characters; at most {MAX_NAME} are allowed"
    if name[0] in ".-":
        return f"has {name[0]!r} at position 1; it must start with a letter, a digit or `_`"
    if ".." in name:
        return f"has '..' at position {name.index('..') + 1}"
    if name[-1] == ".":
        return f"has '.' at position {len(name)}, at its end; Windows drops a dot there"
    if _WINDOWS.fullmatch(name):
        return "is reserved by Windows"
    if name.lower() in _TAKEN or name.lower().endswith(".parquet"):
        return "looks like one of the tape's own files"
    return None


def _cleaned(name: str) -> str | None:
    """The nearest name that is allowed, if there is one."""
    text = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
    text = re.sub(r"\.+", ".", text)
    text = re.sub(r"(\.parquet)+$", "", text, flags=re.IGNORECASE)
    text = text.lstrip(".-")[:MAX_NAME].rstrip(".")
    for candidate in (text, "_" + text):
        if candidate.strip("_") and _problem(candidate) is None:
            return candidate
    return None


def _check_call(call: object) -> int | str:
    if not isinstance(call, str):
        return as_step(call, "call")
    if not call:
        raise KeyNameError(
            "call must not be an empty text", hint="number the calls 0, 1, … or give each its own text"
        )
    try:
        size = len(call.encode())
    except UnicodeEncodeError as error:
        raise KeyNameError(
            f"call {call!r} has {call[error.start]!r} at position {error.start + 1}, a lone surrogate",
            hint="decode the text properly before it names a call",
        ) from None
    if size > MAX_CALL_BYTES:
        raise KeyNameError(
            f"call {call[:40]!r}... has {size} UTF-8 bytes; at most {MAX_CALL_BYTES} are allowed",
            hint="choose a shorter text for the call, a request id or a hash",
        )
    # A str subclass (an enum, say) may print as something else.
    return str.__str__(call)


def _quoted(call: str) -> str:
    # quote() leaves dots alone, and a dot is what separates the parts of a file name here.
    return quote(call, safe="").replace(".", "%2E")
