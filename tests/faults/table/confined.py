"""Samples and tokens that are wrong, while others are right."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults import edits as e
from tests.faults.case import Case
from tests.faults.layout import Layout
from tests.faults.table.worlds import ADV, LEFT, LOSS, NEW, RAGGED, REW, RIGHT, SIX, STRIDED, TOOLS, TWO_RANKS
from tests.faults.world import World


def confined() -> Iterator[Case]:
    """Some samples or places are wrong."""
    yield Case(
        "last micro-batch scaled",
        NEW,
        e.on(NEW, e.some(range(10, 16), lambda r: 1.5 * r)),
        cause="last rows only",
        also=("scaled",),
        sample=10,
    )
    yield Case(
        "last rank's rewards off",
        REW,
        e.on(REW, e.some(range(8, 16), lambda r: r + 1)),
        cause="last rows only",
        also=("offset",),
        sample=8,
        base=TWO_RANKS,
    )
    yield Case(
        "last micro-batch of noise",
        NEW,
        e.on(NEW, e.some(range(12, 18), lambda r: r**2)),
        cause="last rows only",
        world=SIX,
        sample=12,
    )
    yield Case("last group", NEW, e.on(NEW, e.some(range(12, 16), lambda r: r**2)), sample=12)
    for group in (0, 1, 2):
        rows = range(4 * group, 4 * group + 4)
        yield Case(
            f"group {group} squared",
            NEW,
            e.on(NEW, e.some(rows, lambda r: r**2)),
            cause="one group only",
            sample=4 * group,
        )
        yield Case(
            f"advantages of group {group}",
            ADV,
            e.on(ADV, e.some(rows, lambda r: r**2 + 1)),
            cause="one group only",
            base=Layout(uid="int", order=4),
        )
    for k, start in ((2, 1), (4, 2), (3, 0)):
        yield Case(
            f"every {k}th sample from {start}",
            NEW,
            e.on(NEW, e.some(range(start, 16, k), lambda r: r**2 + r)),
            sample=start,
            cause="every k-th row",
        )
    yield Case(
        "one rank of two, strided",
        LOSS,
        sample=1,
        cause="every k-th row",
        also=("scaled",),
        fault=e.on(LOSS, e.some(range(1, 16, 2), lambda r: 3.0 * r)),
    )
    yield Case(
        "one shard of two, strided shards",
        LOSS,
        base=STRIDED,
        cause="last rows only",
        also=("scaled",),
        fault=e.on(LOSS, e.some(range(1, 16, 2), lambda r: 3.0 * r)),
    )
    for sample in (0, 5, 15):
        yield Case(
            f"sample {sample} scaled",
            NEW,
            e.on(NEW, e.some([sample], lambda r: r * 1.2)),
            sample=sample,
            token=0,
            cause="one sample only",
            also=("scaled",),
        )
    yield Case(
        "one sample plus 0.5",
        LOSS,
        e.on(LOSS, e.some([9], lambda r: r + 0.5)),
        sample=9,
        token=0,
        cause="offset",
        also=("one sample only",),
        world=World(shortest=6),
    )
    yield Case(
        "first token of each",
        NEW,
        e.on(NEW, e.place(0, lambda x: x * x + 2)),
        sample=0,
        token=0,
        cause="first token only",
    )
    for layout in (RIGHT, LEFT, RAGGED):
        yield Case(
            f"last token of each, {layout.pad}",
            LOSS,
            e.on(LOSS, e.place(-1, lambda x: x * x + 1)),
            cause="last token only",
            base=layout,
        )
    yield Case(
        "last token's loss is 0",
        LOSS,
        e.on(LOSS, e.place(-1, lambda x: 0.0)),
        cause="last token only",
        also=("zero",),
    )
    yield Case(
        "a bonus on the last token",
        LOSS,
        e.on(LOSS, e.place(-1, lambda x: x + 1)),
        cause="last token only",
        also=("offset",),
    )
    yield Case("two rewards of one group", REW, e.on(REW, e.some([5, 6], lambda r: r * r + 1)), sample=5)
    yield Case("three scattered samples", NEW, e.on(NEW, e.some([2, 3, 11], lambda r: r * r + 1)), sample=2)
    yield Case(
        "binary rewards flipped in two places",
        REW,
        e.on(REW, e.some([2, 9], lambda r: 1 - r)),
        world=World(rewards="binary", seed=3),
        sample=2,
    )
    yield Case("binary rewards doubled", REW, e.on(REW, e.scale(2.0)), world=World(rewards="binary"))
    yield Case(
        "rewards in steps doubled", REW, e.on(REW, e.scale(2.0)), world=World(rewards="steps"), cause="scaled"
    )
    yield Case(
        "positive advantages doubled",
        ADV,
        e.on(ADV, e.each(lambda r: 2 * r if r > 0 else r)),
        also=("scaled",),
    )
    yield Case("advantages clipped", ADV, e.on(ADV, e.each(lambda r: min(r, 1.0))))
    yield Case(
        "what a tool said is another text",
        "rollout/responses",
        world=TOOLS,
        sample=0,
        token=2,
        edit=e.rows_of("rollout/responses", _tool_text),
        cause="outside the mask",
        also=("offset",),
    )


def _tool_text(rows):
    rows = [row.copy() for row in rows]
    for row in rows:
        row[2:4] += 7
    return rows
