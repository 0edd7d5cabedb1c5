"""Tells two runs apart: whether they are the same, and if not, where the first difference is."""

from rolltape.verify.difference import Difference, measure
from rolltape.verify.entries import Comparison, Entry
from rolltape.verify.ladder import Limits, Verdict, judge
from rolltape.verify.tapes import compare_tapes

__all__ = ["Comparison", "Difference", "Entry", "Limits", "Verdict", "compare_tapes", "judge", "measure"]
