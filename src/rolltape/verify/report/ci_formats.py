"""A comparison in the words of continuous integration: JUnit XML, and the annotations of GitHub."""

from __future__ import annotations

from xml.etree import ElementTree as xml

from rolltape.reader.visible import visible
from rolltape.verify.comparison import worst_of
from rolltape.verify.report.report import Report

MOST_ANNOTATIONS = 10
"""GitHub shows no more of a kind for a step."""


def junit(report: Report) -> str:
    """A test suite with a case for every thing compared; findings are failures."""
    wrong = {finding.path: finding for finding in report.findings}
    kept = {entries[0].path: worst_of(entries) for entries in report.comparison.by_key().values()}
    paths = [*kept, *(path for path in wrong if path not in kept)]
    suite = xml.Element(
        "testsuite", name="rolltape diff", tests=str(len(paths)), failures=str(len(wrong)), errors="0"
    )
    answer = _legal("\n".join(_answer(report)))
    for at, path in enumerate(paths):
        case = xml.SubElement(suite, "testcase", classname="rolltape", name=_legal(path))
        if path in wrong:
            failure = xml.SubElement(case, "failure", message=_legal(wrong[path].text), type="divergence")
            failure.text = answer
        elif not wrong and not at:
            xml.SubElement(case, "system-out").text = answer
    xml.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(suite, encoding="unicode") + "\n"


def workflow_commands(report: Report, *, shadow: bool) -> list[str]:
    """Workflow commands that GitHub shows beside a run: warnings where findings do not fail it."""
    level = "warning" if shadow else "error"
    answer = _escaped("\n".join(_answer(report)))
    if not report.findings:
        return [f"::notice title=rolltape::{answer}"]
    found = [answer, *(_escaped(finding.text) for finding in report.findings)]
    return [f"::{level} title=rolltape::{line}" for line in found[:MOST_ANNOTATIONS]]


def summary(report: Report) -> str:
    """The report as the Markdown of a step summary."""
    head = "### rolltape: " + (f"{len(report.findings)} findings" if report.findings else "no findings")
    lines = [head, "", _cell(report.sentence), ""]
    lines += [f"Looks like: {_cell(cause.text)}." for cause in report.causes]
    lines += [_cell(str(one)) for one in report.attributions]
    lines += [
        f"Confidence: {_cell(str(report.confidence))}.",
        "",
        f"`{visible(report.view).replace('`', '')}`",
    ]
    lines += ["", "| stage | what | verdict | first at | max abs |", "|---|---|---|---:|---:|"]
    for link in report.chain:
        first = "–" if link.first is None else str(link.first.step)
        error = link.worst.note or f"{link.worst.error:.3g}"
        cells = (link.stage, link.name, str(link.worst.verdict), first, error)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    if report.findings:
        lines += ["", *(f"- {_cell(finding.path)}: {_cell(finding.text)}" for finding in report.findings)]
    return "\n".join(lines) + "\n"


def _answer(report: Report) -> list[str]:
    """The answer, how sure it is, and where to look: each in a line of its own."""
    lines = report.sentence, f"Confidence: {report.confidence}.", f"See it: {report.view}"
    return [visible(line) for line in lines]


def _escaped(text: str) -> str:
    """A message of a workflow command: it must not end the command, nor begin another."""
    return visible(text, keep="\n").replace("%", "%25").replace("\n", "%0A")


def _cell(text: str) -> str:
    """Text that is only text in Markdown: no table ends, no HTML, no link."""
    text = visible(" ".join(text.split()))
    return text.translate({ord(char): f"&#{ord(char)};" for char in "&\\|<>[]*#"})


def _legal(text: str) -> str:
    """Text that XML can hold, with what is not seen written out."""
    return visible(text, keep="\n\t")
