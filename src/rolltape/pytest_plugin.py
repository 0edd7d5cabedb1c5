"""Recorded rollouts as fixtures of a trainer's own test suite.

    def test_two_steps(rolltape_tape):
        train(rolltape_tape, steps=2)        # the first time: pytest --rolltape=record
        assert_matches_tape(rolltape_tape)   # from then on: replayed, and compared

Each test has a tape of its own, in ``tapes/`` beside its file. Stages that are declared ``replay=False`` run
in every replay; what they return is compared with what was recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import rolltape

MODES = ("replay", "record", "rewrite")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--rolltape`` and the setting ``rolltape_dir``."""
    parser.getgroup("rolltape").addoption(
        "--rolltape",
        choices=MODES,
        default="replay",
        help="replay: from tapes, and fail where one is missing (default); record: make those that are "
        "missing; rewrite: make all of them anew",
    )
    parser.getgroup("rolltape").addoption(
        "--rolltape-upstream", metavar="URL", help="the inference server that rolltape_serve records"
    )
    parser.addini("rolltape_dir", "where tapes are, from the folder of the test file", default="tapes")


@pytest.fixture  # type: ignore[untyped-decorator]
def rolltape_tape(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[rolltape.Tape]:
    """The tape of this test: replayed, or recorded where ``--rolltape`` asks for it."""
    import rolltape
    from rolltape.reader.listing import is_tape

    folder = tape_dir(request.node, request.config.getini("rolltape_dir"))
    mode = request.config.getoption("--rolltape")
    there = is_tape(folder)
    if mode == "replay" and not there:
        pytest.fail(f"there is no tape of this test in {folder}: run pytest --rolltape=record", pytrace=False)
    options: dict[str, Any] = {"mode": mode}
    if mode == "replay" or (mode == "record" and there):
        options = {"mode": "replay", "out": tmp_path / "rolltape-candidate"}
    with rolltape.Tape(folder, background=False, **options) as opened:
        yield opened


@pytest.fixture  # type: ignore[untyped-decorator]
def rolltape_serve(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An inference server that answers from the tape of this test: ``rolltape_serve.url`` is its address.

    ``pytest --rolltape=record --rolltape-upstream=URL`` records it from a real one.
    """
    import rolltape
    from rolltape.reader.listing import is_tape

    folder = tape_dir(request.node, request.config.getini("rolltape_dir"))
    mode = request.config.getoption("--rolltape")
    there = is_tape(folder)
    if mode == "replay" and not there:
        needed = "pytest --rolltape=record --rolltape-upstream=http://localhost:8000"
        pytest.fail(f"there is no tape of this test in {folder}: run {needed}", pytrace=False)
    upstream = request.config.getoption("--rolltape-upstream") or ()
    with rolltape.serve(folder, upstream, mode="replay" if mode == "record" and there else mode) as server:
        yield server


def tape_dir(item: Any, base: str) -> str:
    """Where the tape of a test is: named after its file and itself, parameters included."""
    from rolltape.storage import joined, placed

    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{item.path.stem}.{item.name}").strip("._")
    return joined(placed(base, str(item.path.parent)), name)


def assert_matches_tape(tape: rolltape.Tape, *, gate: Any = None, steps: Any = None) -> None:
    """Assert that what this run computed is what the tape has; while recording there is nothing to assert.

    ``gate`` is a gate as a mapping or the path of its file, ``steps`` as in ``"0-9"``.
    """
    __tracebackhide__ = True
    from rolltape.verify import compare

    if tape.out is None or tape.dir is None or tape.out.dir is None:
        return
    tape.flush()
    report = compare(tape.dir, tape.out.dir, gate=gate, steps=steps)
    if report.clean:
        return
    causes = [f"Looks like: {cause.text}." for cause in report.causes]
    lines = [report.sentence, *causes, f"Confidence: {report.confidence}.", f"See it: {report.view}"]
    lines += [f"  {finding.path}: {finding.text}" for finding in report.findings]
    pytest.fail("\n".join(lines), pytrace=False)
