"""Worlds and layouts that rows of the table share."""

from __future__ import annotations

from tests.faults.layout import Layout
from tests.faults.world import World

RIGHT, LEFT, RAGGED = Layout(), Layout(pad="left"), Layout(pad="none", mask=None)
TWO_RANKS, THREE_CALLS = Layout(ranks=2, whole=False), Layout(calls=3, whole=False)
STRIDED = Layout(ranks=2, strided=True, whole=False)
LAYOUTS = {
    "padded right": RIGHT,
    "padded left": LEFT,
    "ragged": RAGGED,
    "two ranks": TWO_RANKS,
    "three calls": THREE_CALLS,
    "int uids": Layout(uid="int"),
    "no uids": Layout(uid="none"),
    "shuffled": Layout(order=3),
    "loss_mask": Layout(mask="loss_mask", wider=3),
}
DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
LOSS, NEW, REF, ADV, REW = (
    "loss/token_losses",
    "loss/log_probs",
    "ref_logprob/ref_log_probs",
    "advantage/advantage",
    "reward/reward",
)
SIX = World(prompts=6, n=3)
EVEN = World(shortest=8, longest=8)
TOOLS = World(tools=True, shortest=6)
MANY = World(prompts=8, n=4, shortest=20, longest=40, steps=2)
"""Enough tokens for a small bias to be seen."""
