"""Finds the dumps under a path: which system wrote them, and the step, call and stage of each file.

Reads only names and the small ``meta.json`` files; no dump is opened here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolltape.errors import ConfigError, CorruptFileError, RolltapeError
from rolltape.importing.regular_file import read_regular
from rolltape.importing.standins import QueueBatch, RollProto, Tensors, VerlProto
from rolltape.steps import MAX_STEP, as_step


def as_recorded(value: Any, system: str, step: int | None) -> Any:
    """The value of a dump as its stage records it; an error if it is not what the system dumps.

    verl's and ROLL's batches and slime's dict stay as they are. A TransferQueue dump becomes what the
    integration records for a sampled batch.
    """
    if system == SLIME:
        return _slime(value, step)
    if system == TRANSFER_QUEUE:
        return _queue(value, step)
    if not isinstance(value, RollProto if system == ROLL else VerlProto):
        raise _other(value, system)
    return value


def _slime(value: Any, step: int | None) -> dict[str, Any]:
    held = value.get("samples") if type(value) is dict else None
    if type(held) is not list or type(value.get("rollout_id")) is not int:
        raise _other(value, SLIME)
    _same_step(step, value["rollout_id"])
    return dict(value)


def _queue(value: Any, step: int | None) -> dict[str, Any]:
    if type(value) is not dict or not isinstance(value.get("tensordict"), Tensors):
        raise _other(value, TRANSFER_QUEUE)
    keys: Any = value.get("keys")
    tags: Any = value.get("tags")
    fields = value["tensordict"]
    if not (_are(keys, str) and _are(tags, dict) and len(keys) == len(tags) == fields.batch_size[0]):
        raise CorruptFileError("its keys, tags and rows do not match")
    _same_step(step, value.get("global_steps"))
    # A key is uid_session_index; `asked` is the number of uids requested from the buffer.
    asked = len({key.split("_")[0] for key in keys})
    return {"batch": QueueBatch(keys, tags), "fields": fields, "metrics": {}, "asked": asked}


def _are(values: Any, kind: type) -> bool:
    return type(values) is list and all(type(value) is kind for value in values)


def _same_step(named: int | None, held: Any) -> None:
    if named is not None and named != held:
        raise CorruptFileError(f"its name says step {named}, but it holds step {held!r}")


def _other(value: Any, system: str) -> CorruptFileError:
    return CorruptFileError(f"it holds a {type(value).__name__}, which is not what {system} dumps")


V1 = "verl RolloutSkip V1"
V2 = "verl RolloutSkip V2"
SKIP_MANAGER = "verl SkipManager"
TRANSFER_QUEUE = "verl SkipManager (TransferQueue)"
ROLL = "ROLL rollout mock"
SLIME = "slime debug rollout data"

NEW_BATCH = "new_batch"
"""The stage with the batch that verl generated from: prompts, answers, uids."""

DEEPEST = 6
"""How many levels of folders below the path are searched."""

_V1_FILE = re.compile(r".*_GBS\d+__N\d+")
_ROLL_FILE = re.compile(r"step_(\d+)\.pkl")
_LARGEST_META = 2**20
_STEP_FILES = {"gen_batch.dp", "new_batch.dp", "tq_batch.pt"}


@dataclass(frozen=True, slots=True)
class Dump:
    """The files of one call of one step, one per stage; imported together or not at all."""

    files: dict[str, Path]
    """By stage; ``rollout`` comes last, so that when it is on the tape the others are too."""
    step: int | None
    """None if only the content of the file says it."""
    split: str = "train"
    call: int = 0
    order: int = 0
    """Its position among the dumps of one step."""
    problem: str | None = None
    """Why it cannot be imported, if that is known without opening it."""

    @property
    def path(self) -> Path:
        """The file to show for it in messages."""
        return self.files.get("rollout") or next(iter(self.files.values()))


@dataclass(frozen=True, slots=True)
class Found:
    """The dumps of one run."""

    system: str
    root: Path
    dumps: list[Dump]


def find_dumps(path: Path) -> Found | None:
    """The dumps under a path, ordered by split, step and call; None if there are none."""
    if not path.exists():
        raise ConfigError("there is no such file or directory", where=path)
    groups: dict[tuple[str, Path], list[Dump]] = {}
    for system, root, dump in _recognized(path):
        groups.setdefault((system, root), []).append(dump)
    if len(groups) > 1:
        raise ConfigError(
            f"there are dumps of {len(groups)} runs here, but a tape holds one run",
            where=path,
            causes=[f"{root} ({system})" for system, root in sorted(groups)],
            hint="import each of them into its own tape",
        )
    for (system, root), dumps in groups.items():
        return Found(system, root, _numbered(dumps))
    return None


def _recognized(path: Path) -> Iterator[tuple[str, Path, Dump]]:
    if path.is_file():
        found = _step_dir(path.parent) if path.name in _STEP_FILES else _file(path, alone=True)
        if found is not None:
            yield found
        return
    for folder, names in _walk(path):
        if _STEP_FILES.intersection(names):
            found = _step_dir(folder)
            if found is not None:
                yield found
            continue
        for name in names:
            found = _file(folder / name, alone=False)
            if found is not None:
                yield found


def _walk(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders and the names of their files, in order; hidden folders and links are skipped."""
    deepest = len(path.parts) + DEEPEST
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if f[0] != ".") if len(Path(folder).parts) < deepest else []
        yield Path(folder), sorted(name for name in names if name[0] != ".")


def _step_dir(folder: Path) -> tuple[str, Path, Dump] | None:
    """verl's folder of one generation: ``genstep_000001/``, ``17/``, or ``17/0/`` with TransferQueue."""
    folder = folder.absolute()
    if (folder / "tq_batch.pt").is_file():
        dump = Dump(
            {"rollout": folder / "tq_batch.pt"}, _number(folder.parent.name), order=_number(folder.name) or 0
        )
        return TRANSFER_QUEUE, folder.parent.parent, _with_meta(dump, folder)
    files = {NEW_BATCH: folder / "new_batch.dp", "rollout": folder / "gen_batch.dp"}
    there = {stage: file for stage, file in files.items() if file.is_file()}
    if folder.name.startswith("genstep_"):
        dump = Dump(there, None, order=_number(folder.name.removeprefix("genstep_")) or 0)
        missing = sorted(file.name for stage, file in files.items() if stage not in there)
        if missing:
            dump = replace(dump, problem=f"it is incomplete: it has no {' and no '.join(missing)}")
        return V2, folder.parent, _with_meta(dump, folder)
    if "rollout" not in there:
        return None
    return SKIP_MANAGER, folder.parent, _with_meta(Dump(there, _number(folder.name)), folder)


def _with_meta(dump: Dump, folder: Path) -> Dump:
    """The dump with the step that ``meta.json`` gives; verl writes that file last."""
    if dump.problem:
        return dump
    try:
        meta = json.loads(read_regular(folder / "meta.json", _LARGEST_META))
        step = as_step(meta["global_steps"], "global_steps")
    except FileNotFoundError:
        return replace(dump, problem="it is incomplete: it has no meta.json, which verl writes last")
    except RolltapeError as error:
        return replace(dump, problem=f"its meta.json cannot be read: {error.what}")
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        return replace(dump, problem=f"its meta.json cannot be read: {error!r:.200}")
    if dump.step is not None and dump.step != step:
        return replace(dump, problem=f"its folder says step {dump.step}, but its meta.json says {step}")
    return replace(dump, step=step)


def _file(file: Path, *, alone: bool) -> tuple[str, Path, Dump] | None:
    """A dump in a single file; a file that the user named explicitly may have any name."""
    file = file.absolute()
    roll = _ROLL_FILE.fullmatch(file.name)
    if roll:
        split = file.parent.name if file.parent.name in ("train", "val") else "train"
        root = file.parent.parent if file.parent.name == split else file.parent
        return ROLL, root, _named_step(Dump({"rollout": file}, None, split), roll[1])
    if file.suffix == ".pt":
        digits = re.search(r"\d+$", file.stem)
        evaluation = re.search(r"(?:^|[^a-zA-Z])eval_\d+$", file.stem)
        dump = Dump({"rollout": file}, None, "val" if evaluation else "train")
        return SLIME, file.parent, _named_step(dump, digits[0]) if digits else dump
    if alone or _V1_FILE.fullmatch(file.name):
        # V1 keeps one generation and plays it at every step; verl counts from 1.
        return V1, file, Dump({"rollout": file}, 1)
    return None


def _named_step(dump: Dump, digits: str) -> Dump:
    """The dump with the step that its name gives, or with what is wrong with that."""
    number = int(digits) if len(digits) < 20 else None
    if number is None or number > MAX_STEP:
        return replace(dump, problem=f"its name says step {digits:.30}, above the highest, {MAX_STEP}")
    return replace(dump, step=number)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None


def _numbered(dumps: list[Dump]) -> list[Dump]:
    """In order, with the calls of each step numbered as they were generated."""
    dumps = sorted(dumps, key=lambda d: (d.split, -1 if d.step is None else d.step, d.order, d.path))
    calls: dict[tuple[str, int], int] = {}
    numbered = []
    for dump in dumps:
        if dump.step is None:
            numbered.append(dump)
            continue
        call = calls.get((dump.split, dump.step), 0)
        calls[dump.split, dump.step] = call + 1
        numbered.append(replace(dump, call=call))
    return numbered


def check_split(found: Found, split: str | None) -> Found:
    """The dumps with the given split instead of their own."""
    if split is None:
        return found
    if len({dump.split for dump in found.dumps}) > 1:
        raise RolltapeError(
            "--split names one split, but these dumps have two",
            where=found.root,
            hint="omit --split, or import each folder with its own --split",
        )
    return replace(found, dumps=[replace(dump, split=split) for dump in found.dumps])
