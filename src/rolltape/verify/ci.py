"""A comparison in the words of continuous integration: JUnit XML, and the annotations of GitHub."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as xml

from rolltape.verify.entries import worst_of
from rolltape.verify.gate import Finding
from rolltape.verify.report import Report

MOST_ANNOTATIONS = 10
"""GitHub shows no more of a kind for a step."""


def junit(report: Report, findings: Sequence[Finding]) -> str:
    """A test suite with a case for every thing compared; findings are failures."""
    wrong = {finding.path: finding for finding in findings}
    kept = {entries[0].path: worst_of(entries) for entries in report.comparison.by_key().values()}
    paths = [*kept, *(path for path in wrong if path not in kept)]
    suite = xml.Element(
        "testsuite", name="rolltape diff", tests=str(len(paths)), failures=str(len(wrong)), errors="0"
    )
    for path in paths:
        case = xml.SubElement(suite, "testcase", classname="rolltape", name=_legal(path))
        if path in wrong:
            failure = xml.SubElement(case, "failure", message=_legal(wrong[path].text), type="divergence")
            failure.text = _legal(report.sentence)
    xml.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(suite, encoding="unicode") + "\n"


def workflow_commands(report: Report, findings: Sequence[Finding], *, shadow: bool) -> list[str]:
    """Workflow commands that GitHub shows beside a run: warnings where findings do not fail it."""
    level = "warning" if shadow else "error"
    if not findings:
        return [f"::notice title=rolltape::{_escaped(report.sentence)}"]
    lines = [report.sentence, *(finding.text for finding in findings)]
    return [f"::{level} title=rolltape::{_escaped(line)}" for line in lines[:MOST_ANNOTATIONS]]


def summary(report: Report, findings: Sequence[Finding]) -> str:
    """The report as the Markdown of a step summary."""
    head = "### rolltape: " + ("no findings" if not findings else f"{len(findings)} findings")
    lines = [head, "", _cell(report.sentence), ""]
    lines += [f"Looks like: {_cell(cause.text)}." for cause in report.causes]
    lines += ["", "| stage | what | verdict | first at | max abs |", "|---|---|---|---:|---:|"]
    for link in report.chain:
        first = "–" if link.first is None else str(link.first.step)
        error = link.worst.note or f"{link.worst.error:.3g}"
        cells = (link.stage, link.name, str(link.worst.verdict), first, error)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    if findings:
        lines += ["", *(f"- {_cell(finding.path)}: {_cell(finding.text)}" for finding in findings)]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """A message of a workflow command: it must not end the command, nor begin another."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _cell(text: str) -> str:
    """Text that is only text in Markdown: no table ends, no HTML, no link."""
    text = text.translate({ord(char): f"&#{ord(char)};" for char in "&\\|<>[]*#"})
    return " ".join(text.split())


def _legal(text: str) -> str:
    """Text that XML can hold."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
