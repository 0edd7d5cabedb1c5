"""Tapes from one place to another, between directories and object stores: only what is missing, verified."""

from rolltape.copying.carrying import Done, carry_out
from rolltape.copying.planning import Plan, plan_copy

__all__ = ["Done", "Plan", "carry_out", "plan_copy"]
