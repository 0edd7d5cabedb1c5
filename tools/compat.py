"""The table of releases that `make compat` runs, and the page that it writes: docs/compatibility.md.

    make compat                          every release that `make test` has not; an hour
    make compat ONLY="verl-0.6.1 trl"    these; the rows of the others stay as they were seen last

A row is the tests of one release, over its stack as an overlay (tools/overlays.py). The release that the
stack itself has is in every `make test`; its row says so.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import envs
import overlays

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compatibility.md"
OWN_PROGRAM = "its own program and `fit()`, stand-in workers"


@dataclass(frozen=True)
class Row:
    """The tests of one release."""

    library: str
    release: str
    stack: str
    tests: tuple[str, ...]
    what: str
    """What was run, for the page."""
    python: str = "3.11"

    @property
    def name(self) -> str:
        return f"{self.library}-{self.release}"

    @property
    def overlay(self) -> str | None:
        return self.name if self.name in overlays.OVERLAYS else None

    @property
    def env(self) -> dict[str, str]:
        """Tests of verl's releases start processes over an overlay; all others run over it themselves."""
        return {"ROLLTAPE_COMPAT": self.name} if self.builds_its_own else {}

    @property
    def builds_its_own(self) -> bool:
        return self.tests == ("tests/verl/test_releases.py",)


def _verl(release: str) -> Row:
    return Row("verl", release, "verl", ("tests/verl/test_releases.py",), OWN_PROGRAM)


def _trl(release: str) -> Row:
    return Row("trl", release, "trl", ("tests/trl/test_replay.py",), "its real trainers, on CPU")


def _transformers(release: str) -> Row:
    tests = ("tests/engines/test_transformers_engine.py", "tests/engines/test_transformers_bad_input.py")
    return Row("transformers", release, "engines", tests, "generation and scoring with real models, on CPU")


def _ray(release: str) -> Row:
    tests = ("tests/engines/test_ray_engine.py",)
    return Row("ray", release, "engines", tests, "a real cluster of one machine")


def _vllm(release: str) -> Row:
    tests = ("tests/engines/test_vllm_engine.py",)
    return Row("vllm", release, "engines", tests, "its CPU build, with a real model")


def _httpx(release: str) -> Row:
    tests = ("tests/engines/test_sglang_engine.py",)
    return Row("httpx", release, "engines", tests, "an engine behind a server, with recorded answers")


def _aiohttp(release: str) -> Row:
    names = ("on_the_tape", "streams", "upstreams")
    tests = tuple(f"tests/serve/test_serve_{name}.py" for name in names)
    return Row("aiohttp", release, "serve", tests, "`rolltape serve`, its streams and its upstreams")


def _starlette(release: str, others: str) -> Row:
    tests = ("tests/viewer/test_guard.py",)
    return Row("starlette", release, "viewer", tests, f"`rolltape view` and its guard, with {others}")


def _textual(release: str) -> Row:
    return Row("textual", release, "viewer", ("tests/viewer/test_terminal.py",), "`rolltape browse`")


ROWS = (
    *map(_verl, ("0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0")),
    Row("verl", "0.9.1", "verl", ("tests/verl",), f"{OWN_PROGRAM}; its real workers too, V0 and V1, on CPU"),
    *map(_trl, ("1.0.0", "1.4.0", "1.8.0", "1.12.0", "1.15.0", "1.16.0")),
    *map(_transformers, ("5.0.0", "5.19.0")),
    *map(_ray, ("2.10.0", "2.60.0")),
    *map(_vllm, ("0.27.0", "0.32.0")),
    *map(_httpx, ("0.27.0", "0.28.1")),
    *map(_aiohttp, ("3.10.0", "3.14.5")),
    _starlette("0.40.0", "uvicorn 0.30.0 and Jinja2 3.1.0"),
    _starlette("1.10.0", "uvicorn 0.54.0 and Jinja2 3.1.6"),
    *map(_textual, ("1.0.0", "8.2.8")),
    Row("numpy", "1.24.0", "light", ("tests",), "everything without torch, with pyarrow 17.0.0", "3.10"),
    Row(
        "numpy",
        "2.5.4",
        "light",
        ("tests",),
        "everything without torch, with pyarrow 26.0.1",
        "3.12 and 3.13",
    ),
)


def stack_files(stack: str) -> tuple[str, ...]:
    """The requirement files of a row's stack."""
    return envs.STACKS[stack]


@dataclass(frozen=True)
class Seen:
    """What a row came to."""

    row: Row
    passed: int
    failed: int

    @property
    def result(self) -> str:
        if self.failed or not self.passed:
            return f"**{self.failed} failed**, {self.passed} passed"
        return f"{self.passed} passed"


def count(row: Row, junit: Path) -> Seen:
    """Read what pytest wrote down."""
    suites = list(xml.parse(junit).getroot().iter("testsuite")) if junit.exists() else []
    add = {
        key: sum(int(suite.get(key, 0)) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    }
    failed = add["failures"] + add["errors"] + (not suites)
    return Seen(row, add["tests"] - failed - add["skipped"] if suites else 0, failed)


def chosen(names: Iterable[str]) -> list[Row]:
    """The rows of these names, or of these libraries; all where none is named. Not those of `make test`."""
    wanted = list(names)
    rows = [row for row in ROWS if row.overlay is not None]
    return [row for row in rows if not wanted or row.name in wanted or row.library in wanted]


def write(seen: Iterable[Seen], page: Path = PAGE) -> None:
    """Put what was seen into the table of the page; other rows stay as they are."""
    text = page.read_text()
    rows = {_key(line): line for line in text.splitlines() if re.match(r"\| [a-z]+ \| \d", line)}
    results = {one.row: one.result for one in seen}
    results |= {row: "part of every `make test`" for row in ROWS if row.overlay is None}
    for row, result in results.items():
        line = f"| {row.library} | {row.release} | {row.python} | {row.what} | {result} |"
        rows[_key(line)] = line
    order = [f"{row.library} {row.release}" for row in ROWS]
    table = "\n".join(rows[key] for key in order if key in rows)
    head = "| library | release | Python | what was run | result |\n|---|---|---|---|---|\n"
    start, end = text.index("<!-- table -->"), text.index("<!-- end -->")
    page.write_text(f"{text[:start]}<!-- table -->\n{head}{table}\n{text[end:]}")


def _key(line: str) -> str:
    return " ".join(line.split(" | ")[:2]).removeprefix("| ")


def passed(page: Path = PAGE) -> dict[str, list[str]]:
    """The releases of each library that the page says passed, in its order."""
    found: dict[str, list[str]] = {}
    for library, release, result in re.findall(
        r"^\| ([a-z]+) \| (\d\S*) \|.*\| ([^|]+) \|$", page.read_text(), flags=re.M
    ):
        if "failed" not in result:
            found.setdefault(library, []).append(release)
    return found
