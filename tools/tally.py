"""Sum the tests of all sessions of `make test` into the closing line `N passed, N failed[, N skipped]`.

    python3 tools/tally.py        exit code 1 if anything failed, or if nothing passed

Reads what pytest (one junit file per session) and nox (its report) wrote. A session that failed without a
failing test (lint, a crash, an install) counts as one failure: the line never reads better than the run was.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

RESULTS = Path(__file__).resolve().parent.parent / ".test-results"
"""Where the sessions leave `<session>.xml`, and nox leaves `sessions.json`."""


def count(junit: Path) -> Counter[str]:
    """Passed, failed and skipped tests of one junit file; none if there is no such file."""
    tests: Counter[str] = Counter()
    if not junit.exists():
        return tests
    for case in ElementTree.parse(junit).iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            tests["failed"] += 1
        else:
            tests["skipped" if "skipped" in outcomes else "passed"] += 1
    return tests


def line(tests: Counter[str]) -> str:
    skipped = f", {tests['skipped']} skipped" if tests["skipped"] else ""
    return f"{tests['passed']} passed, {tests['failed']} failed{skipped}"


def main() -> int:
    total: Counter[str] = Counter()
    report = RESULTS / "sessions.json"
    if not report.exists():
        total["failed"] += 1
        print(f"nox left no report at {report}")
    else:
        for session in json.loads(report.read_text())["sessions"]:
            tests = count(RESULTS / f"{session['name']}.xml")
            if session["result"] not in ("success", "skipped") and not tests["failed"]:
                tests["failed"] += 1
            print(f"{session['name']}: {session['result']}" + (f", {line(tests)}" if tests else ""))
            total += tests
    print(line(total))
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
