"""Which dumps lie under a path: of which system, and to which step, call and stage each file belongs.

Looks at names and the small ``meta.json`` files only; no dump is opened here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rolltape.errors import ConfigError, RolltapeError

V1 = "verl RolloutSkip V1"
V2 = "verl RolloutSkip V2"
SKIP_MANAGER = "verl SkipManager"
TRANSFER_QUEUE = "verl SkipManager (TransferQueue)"
ROLL = "ROLL rollout mock"
SLIME = "slime debug rollout data"

NEW_BATCH = "new_batch"
"""The stage that holds what verl generated from: prompts, answers, uids."""

DEEPEST = 6
"""Folders below the path that are looked into."""

_V1_FILE = re.compile(r".*_GBS\d+__N\d+")
_ROLL_FILE = re.compile(r"step_(\d+)\.pkl")
_STEP_FILES = {"gen_batch.dp", "new_batch.dp", "tq_batch.pt"}


@dataclass(frozen=True, slots=True)
class Dump:
    """What belongs to one call of one step: a file for each stage, to be imported together or not at all."""

    files: dict[str, Path]
    """By stage; ``rollout`` comes last, so that where it is on the tape the others are too."""
    step: int | None
    """None where only the file itself says it."""
    split: str = "train"
    call: int = 0
    order: int = 0
    """Among the dumps of one step."""
    problem: str | None = None
    """Why it cannot be imported, where its name tells."""

    @property
    def path(self) -> Path:
        """The file that it is named by."""
        return self.files.get("rollout") or next(iter(self.files.values()))


@dataclass(frozen=True, slots=True)
class Found:
    """The dumps of one run."""

    system: str
    root: Path
    dumps: list[Dump]


def find_dumps(path: Path) -> Found | None:
    """The dumps under a path, ordered by split, step and call; None where there are none."""
    if not path.exists():
        raise ConfigError("there is no such file or directory", where=path)
    groups: dict[tuple[str, Path], list[Dump]] = {}
    for system, root, dump in _recognized(path):
        groups.setdefault((system, root), []).append(dump)
    if len(groups) > 1:
        raise ConfigError(
            f"there are dumps of {len(groups)} runs here, and a tape holds one",
            where=path,
            causes=[f"{root} ({system})" for system, root in sorted(groups)],
            hint="import each of these into a tape of its own",
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
    """Folders and the names of their files, in order; hidden folders and links are passed by."""
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
            dump = replace(dump, problem=f"it is incomplete: there is no {' and no '.join(missing)}")
        return V2, folder.parent, _with_meta(dump, folder)
    if "rollout" not in there:
        return None
    return SKIP_MANAGER, folder.parent, _with_meta(Dump(there, _number(folder.name)), folder)


def _with_meta(dump: Dump, folder: Path) -> Dump:
    """What ``meta.json``, which verl writes last, says of the step."""
    if dump.problem:
        return dump
    try:
        meta = json.loads((folder / "meta.json").read_text())
        step = meta["global_steps"]
        if type(step) is not int or step < 0:
            raise ValueError(f"global_steps is {step!r}")
    except FileNotFoundError:
        return replace(dump, problem="it is incomplete: there is no meta.json, which verl writes last")
    except (ValueError, KeyError, TypeError, OSError) as error:
        return replace(dump, problem=f"its meta.json cannot be read: {error!r}")
    if dump.step is not None and dump.step != step:
        return replace(dump, problem=f"its folder says step {dump.step}, its meta.json says {step}")
    return replace(dump, step=step)


def _file(file: Path, *, alone: bool) -> tuple[str, Path, Dump] | None:
    """A dump in a file of its own; of one the user named, less is expected of its name."""
    file = file.absolute()
    roll = _ROLL_FILE.fullmatch(file.name)
    if roll:
        split = file.parent.name if file.parent.name in ("train", "val") else "train"
        root = file.parent.parent if file.parent.name == split else file.parent
        return ROLL, root, Dump({"rollout": file}, int(roll[1]), split)
    if file.suffix == ".pt":
        digits = re.search(r"\d{1,18}$", file.stem)
        evaluation = re.search(r"(?:^|[^a-zA-Z])eval_\d+$", file.stem)
        step = int(digits[0]) if digits else None
        return SLIME, file.parent, Dump({"rollout": file}, step, "val" if evaluation else "train")
    if alone or _V1_FILE.fullmatch(file.name):
        # V1 keeps one generation and plays it at every step; verl counts from 1.
        return V1, file, Dump({"rollout": file}, 1)
    return None


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
    """The dumps with the split that was asked for in place of their own."""
    if split is None:
        return found
    if len({dump.split for dump in found.dumps}) > 1:
        raise RolltapeError(
            "there are dumps of two splits, and one was asked for",
            where=found.root,
            hint="leave out --split, or import each folder with a --split of its own",
        )
    return replace(found, dumps=[replace(dump, split=split) for dump in found.dumps])
