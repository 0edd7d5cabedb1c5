"""``rolltape index``: the index of samples by the content of their prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from rolltape.cli.arguments import json_option, split_filter, stage_filter, tape_argument
from rolltape.cli.output import Exit, Screen, complain, new_table, print_json
from rolltape.cli.progress import step_bar
from rolltape.cli.spreading import SpreadCommand, ray_option, spread_by
from rolltape.index.index_building import build_index, check_index
from rolltape.index.sample_index import SampleIndex
from rolltape.key import index_folder
from rolltape.reader.run import Run, open
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted
from rolltape.rich_text import shown
from rolltape.spread import Spread
from rolltape.tape.summary import amount


@click.command("index", cls=SpreadCommand, short_help="Index samples by prompt: build, check or show it.")
@click.argument("action", type=click.Choice(["build", "check", "show"]))
@tape_argument
@split_filter
@stage_filter
@ray_option
@json_option
def command(
    action: str, tape: str, split: str | None, stage: str | None, ray: str | None, as_json: bool
) -> Exit:
    """Make, check or show the index that says where on TAPE the samples of a prompt are.

    `build` reads the recordings that are not in it yet, and merges its parts. `check` makes it anew of every
    recording, and compares. `show` says what there is. The index is made of recordings and can be made again
    at any time; what it leads to is compared before it is used. Recordings are never changed.
    """
    run = open(tape)
    places = list(_places(run, split, stage))
    if not places:
        complain(f"nothing to index: no recordings in {visible(tape)}")
        return Exit.NOTHING
    if action == "show":
        return _show(run, places, as_json)
    with spread_by(ray) as spread:
        return (_build if action == "build" else _check)(run, places, spread, as_json)


def _places(run: Run, split: str | None, stage: str | None) -> Iterator[tuple[str, str]]:
    for each in run.splits if split is None else [split]:
        for name in run.stages(each):
            if stage in (None, name):
                yield each, name


def _build(run: Run, places: list[tuple[str, str]], spread: Spread, as_json: bool) -> Exit:
    found: dict[str, Any] = {}
    damaged = False
    for split, stage in places:
        with step_bar(f"{split}/{stage}") as told:
            done = build_index(run, stage, split, spread=spread, tick=told)
        found[f"{split}/{stage}"] = asdict(done)
        damaged = damaged or bool(done.unreadable)
        if not as_json:
            samples, files = counted(done.samples, "sample"), counted(done.recordings, "recording")
            complain(f"{split}/{stage}: {samples} of {files}, {amount(done.bytes)} ({done.read} read)")
            for name, why in done.unreadable.items():
                complain(f"left out, because it cannot be read: {visible(name)}: {why}")
    if as_json:
        print_json({"stages": found})
    return Exit.FINDINGS if damaged else Exit.CLEAN


def _check(run: Run, places: list[tuple[str, str]], spread: Spread, as_json: bool) -> Exit:
    faults = []
    for split, stage in places:
        with step_bar(f"{split}/{stage}") as told:
            faults += check_index(run, stage, split, spread=spread, tick=told)
    if as_json:
        print_json({"findings": [asdict(fault) for fault in faults]})
    elif faults:
        table = new_table("finding", "file", "what", fold={"file": 24, "what": 24})
        for fault in faults:
            table.add_row(shown(fault.kind, "yellow"), shown(fault.name), shown(fault.what))
        Screen().print(table)
        first = "delete samples.index there, and " if any(one.kind == "differs" for one in faults) else ""
        complain(
            f"next: {first}`rolltape index build` makes it anew; no recording is harmed by what is wrong here"
        )
    else:
        complain("clean: the index says of every sample what its recording says")
    return Exit.FINDINGS if faults else Exit.CLEAN


def _show(run: Run, places: list[tuple[str, str]], as_json: bool) -> Exit:
    table = new_table(
        "stage", "recordings", "indexed", "samples", "parts", "size",
        right=("recordings", "indexed", "samples", "parts", "size"),
    )  # fmt: skip
    found: dict[str, Any] = {}
    for split, stage in places:
        index = SampleIndex(run, stage, split, read=False)
        index.read_through()
        stored = list(run.storage.entries(index_folder(split, stage)))
        size, there = sum(stat.size for stat in stored), len(index.indexed) + len(index.unindexed())
        found[f"{split}/{stage}"] = {
            "recordings": there, "indexed": len(index.indexed), "samples": len(index),
            "parts": len(stored), "bytes": size, "faults": [asdict(one) for one in index.faults],
        }  # fmt: skip
        counts = (there, len(index.indexed), len(index), len(stored))
        table.add_row(shown(f"{split}/{stage}"), *(f"{count:,}" for count in counts), amount(size))
        for fault in index.faults:
            complain(f"{fault.kind}: {visible(fault.name)}: {fault.what}")
    if as_json:
        print_json({"stages": found})
    else:
        Screen().print(table)
    return Exit.CLEAN
