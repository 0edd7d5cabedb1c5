"""Notes and tags that people put on samples. They are kept beside the tape, never on it.

``runs/base.notes.jsonl`` lies beside the folder ``runs/base``; those of a tape in a store are in a folder of
the user, by the id of the tape. ``ROLLTAPE_NOTES`` names another folder for all. A line is one change: the
last one of a sample counts, so that several people can write at once and nothing that was said is lost.

>>> import rolltape, tempfile
>>> folder = tempfile.mkdtemp() + "/base"
>>> with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
...     batch = tape.stage("rollout")(lambda: {"uid": ["a", "b"], "reward": [0.0, 1.0]})()
>>> notes = Notes(rolltape.open(folder))
>>> _ = notes.write(Marked("train", "rollout", 0, "b", 0), "how?", ["odd"])
>>> [(place.uid, note.text, note.tags) for place, note in notes.read().items()]
[('b', 'how?', ('odd',))]
"""

from __future__ import annotations

import datetime as dt
import getpass
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rolltape.errors import ConfigError, RolltapeError
from rolltape.reader.run import Run
from rolltape.storage import is_url

FOLDER = "ROLLTAPE_NOTES"
MOST_TEXT = 10_000
MOST_TAGS = 20
MOST_TAG = 60
MOST_BYTES = 64 * 1024 * 1024
"""What is read of a file of notes: people write less, and a file that somebody sent may be anything."""
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Marked:
    """A sample, by what it is called on the tape."""

    split: str
    stage: str
    step: int
    uid: str
    index: int


@dataclass(frozen=True, slots=True)
class Note:
    """What somebody says of a sample."""

    text: str
    tags: tuple[str, ...]
    when: str
    by: str

    @property
    def is_empty(self) -> bool:
        """Whether it was taken back."""
        return not self.text and not self.tags


def notes_path(run: Run) -> str:
    """The file that has the notes on a tape."""
    folder = os.environ.get(FOLDER)
    if not folder and not is_url(run.location):
        return run.location.rstrip(os.sep) + ".notes.jsonl"
    folder = folder or os.path.join(
        os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "rolltape", "notes"
    )
    name = (
        run.id
        if re.fullmatch(r"[A-Za-z0-9._-]{1,80}", run.id)
        else hashlib.sha256(run.id.encode()).hexdigest()
    )
    return os.path.join(os.path.abspath(folder), f"{name}.notes.jsonl")


class Notes:
    """The notes on one tape."""

    def __init__(self, run: Run, *, read_only: bool = False) -> None:
        self.path = notes_path(run)
        self._run = run
        self._read_only = read_only
        self._known: tuple[tuple[int, int, int], dict[Marked, Note]] | None = None

    def why_not(self) -> str:
        """Why nothing can be written; empty where it can."""
        if self._read_only:
            return "this viewer was started to read only"
        there = os.path.exists(self.path)
        near = os.path.dirname(self.path)
        while not os.path.exists(near) and os.path.dirname(near) != near:
            near = os.path.dirname(near)
        if os.path.islink(self.path) or (there and not os.path.isfile(self.path)):
            return f"{self.path} is no plain file"
        may = os.access(self.path, os.W_OK) if there else os.access(near, os.W_OK | os.X_OK)
        return "" if may else f"{self.path} may not be written"

    def read(self) -> dict[Marked, Note]:
        """Every note as it is now, in the order of steps. Lines that are none are passed over."""
        try:
            stat = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return {}
        state = stat.st_ino, stat.st_size, stat.st_mtime_ns
        if self._known is None or self._known[0] != state:
            self._known = state, self._parsed()
        return dict(self._known[1])

    def write(self, place: Marked, text: object, tags: object) -> Note:
        """Put a note on a sample; without text and tags the one that is there is taken back."""
        note = Note(checked_text(text), checked_tags(tags), _now(), _user())
        why = self.why_not()
        if why:
            raise ConfigError(
                f"notes cannot be written: {why}",
                where=self.path,
                hint=f"{FOLDER} names another folder for them",
            )
        line = {
            "tape": self._run.id, **as_json(place, note),
        }  # fmt: skip
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            _append(self.path, json.dumps(line).encode("ascii") + b"\n")
        except OSError as error:
            raise ConfigError(
                f"notes cannot be written: {error.strerror or error}", where=self.path
            ) from error
        return note

    def _parsed(self) -> dict[Marked, Note]:
        found: dict[Marked, Note] = {}
        with suppress(OSError), open(_opened(self.path, os.O_RDONLY), "rb") as file:
            for line in file.read(MOST_BYTES).split(b"\n"):
                one = _parse(line, self._run.ids)
                if one is not None:
                    found[one[0]] = one[1]
        kept = [(place, note) for place, note in found.items() if not note.is_empty]
        return dict(
            sorted(kept, key=lambda one: (one[0].split, one[0].stage, one[0].step, one[0].uid, one[0].index))
        )


def all_tags(notes: Mapping[Marked, Note]) -> list[str]:
    """The tags in use, sorted."""
    return sorted({tag for note in notes.values() for tag in note.tags})


def checked_text(text: object) -> str:
    """A text that may be a note."""
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ConfigError(f"a note is a text of at most {MOST_TEXT:,} characters")
    return text.replace("\r\n", "\n").strip()


def checked_tags(tags: object) -> tuple[str, ...]:
    """Tags as they are kept: without spaces around them, each once."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise ConfigError("tags are a list of texts")
    found = []
    for tag in tags:
        if not isinstance(tag, str) or len(tag) > MOST_TAG or "," in tag:
            raise ConfigError(f"a tag is a text of at most {MOST_TAG} characters, without a comma")
        found.append(_SPACE.sub(" ", tag).strip())
    kept = tuple(dict.fromkeys(tag for tag in found if tag))
    if len(kept) > MOST_TAGS:
        raise ConfigError(f"a sample has at most {MOST_TAGS} tags")
    return kept


def as_json(place: Marked, note: Note) -> dict[str, Any]:
    """A note for other programs."""
    return {
        "split": place.split, "stage": place.stage, "step": place.step, "uid": place.uid,
        "index": place.index, "note": note.text, "tags": list(note.tags), "when": note.when, "by": note.by,
    }  # fmt: skip


def _parse(line: bytes, ids: Sequence[str]) -> tuple[Marked, Note] | None:
    """What a line says; None where it is none of ours, or of another tape."""
    try:
        said = json.loads(line)
        step, index = said["step"], said["index"]
        texts = [said[name] for name in ("tape", "split", "stage", "uid", "note", "when", "by")]
        if type(step) is not int or type(index) is not int or not all(type(one) is str for one in texts):
            return None
        tape, split, stage, uid, text, when, by = texts
        if tape not in ids:
            return None
        return Marked(split, stage, step, uid, index), Note(
            checked_text(text), checked_tags(said["tags"]), when[:40], by[:80]
        )
    except (ValueError, KeyError, TypeError, RecursionError, RolltapeError):
        return None


def _opened(path: str, flags: int) -> int:
    """A plain file, never one that a link leads to, and never one that waits for somebody else."""
    more = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, flags | more, 0o644)


def _append(path: str, line: bytes) -> None:
    """Add a line in one go, after all that others have added; one that was cut short stays apart."""
    import fcntl

    handle = _opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(handle, line) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
