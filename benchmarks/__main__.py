"""Runs the benchmarks, prints one report, and exits with 1 if a promise is not kept.

make bench                      all parts that the stack `core` can run
make bench ONLY=large           one part, in the environment that it needs
python -m benchmarks --rounds 15 --json results.json

The promises are in promises.py.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.report import Part, as_json, console, show

CORE = ("large", "small", "replay", "write", "arguments", "growth", "compact", "verify")
"""What runs unless one part is asked for; the others need the environments of their stacks."""


def large(folder: Path, rounds: int) -> Part:
    from benchmarks import batches, comparison

    return comparison.section("large", batches.LARGE, folder, rounds)


def small(folder: Path, rounds: int) -> Part:
    from benchmarks import batches, comparison

    # Milliseconds each: in many rounds each format meets a quiet moment.
    return comparison.section("small", batches.SMALL, folder, 8 * rounds)


def replay(folder: Path, rounds: int) -> Part:
    from benchmarks import replay

    return replay.section(folder, rounds)


def write(folder: Path, rounds: int) -> Part:
    from benchmarks import write

    return write.section(folder, rounds)


def arguments(folder: Path, rounds: int) -> Part:
    from benchmarks import arguments

    return arguments.section(folder, rounds)


def growth(folder: Path, rounds: int) -> Part:
    from benchmarks import growth

    return growth.section(folder)


def compact(folder: Path, rounds: int) -> Part:
    from benchmarks import compact

    return compact.section(folder, rounds)


def index(folder: Path, rounds: int) -> Part:
    from benchmarks import index

    return index.section(folder, rounds)


def verify(folder: Path, rounds: int) -> Part:
    from benchmarks import verify

    return verify.section(folder)


def viewer(folder: Path, rounds: int) -> Part:
    from benchmarks import viewer

    return viewer.section(folder, min(rounds, 5))


def many_runs(folder: Path, rounds: int) -> Part:
    from benchmarks import many_runs

    return many_runs.section(folder, min(rounds, 5))


def trl(folder: Path, rounds: int) -> Part:
    from benchmarks import trl

    return trl.section(folder, rounds)


def generation(folder: Path, rounds: int) -> Part:
    from benchmarks import generation

    return generation.section(folder, rounds)


def serve(folder: Path, rounds: int) -> Part:
    from benchmarks import serve

    return serve.section(folder, rounds)


def store(folder: Path, rounds: int) -> Part:
    from benchmarks import store

    return store.section(folder, min(rounds, 5))


def ray_data(folder: Path, rounds: int) -> Part:
    from benchmarks import ray_data

    return ray_data.section(folder, min(rounds, 5))


PARTS: dict[str, Callable[[Path, int], Part]] = {
    part.__name__: part
    for part in (
        large,
        small,
        replay,
        write,
        arguments,
        growth,
        compact,
        index,
        verify,
        viewer,
        many_runs,
        trl,
        generation,
        serve,
        store,
        ray_data,
    )
}


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=list(PARTS))
    options = parser.parse_args(args)
    results, verdicts = {}, []
    for name in [options.only] if options.only else CORE:
        folder = Path(tempfile.mkdtemp(prefix="rolltape-bench-"))
        try:
            part = PARTS[name](folder, options.rounds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        judged = show(name, part)
        results[name] = as_json(part, judged)
        verdicts += judged
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    missed = [verdict for verdict in verdicts if not verdict.kept]
    for verdict in missed:
        console.print(f"missed: {verdict}", style="red", markup=False, highlight=False, soft_wrap=True)
    if not missed:
        console.print(f"all {len(verdicts)} promises kept", style="green")
    return 1 if missed else 0


if __name__ == "__main__":
    logging.disable(logging.INFO)  # the report is all there is to read
    sys.exit(main())
