"""Tells two runs apart: whether they are the same, and if not, where the first difference is."""

from rolltape.verify.comparing import compare, compare_tapes
from rolltape.verify.comparison import Comparison, Entry
from rolltape.verify.measure.difference import Difference, measure
from rolltape.verify.measure.limits import Limits
from rolltape.verify.measure.verdict import Verdict, judge
from rolltape.verify.report.report import Finding, Report
from rolltape.verify.rules.gate import Gate

__all__ = [
    "Comparison", "Difference", "Entry", "Finding", "Gate", "Limits", "Report", "Verdict",
    "compare", "compare_tapes", "judge", "measure",
]  # fmt: skip
