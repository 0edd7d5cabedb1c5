"""Tokens and masks, numbers of no sample, and what only one side has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.faults import edits as e
from tests.faults.case import Case
from tests.faults.layout import Layout
from tests.faults.table.worlds import NEW, RAGGED
from tests.faults.world import World, replace


def whole_numbers() -> Iterator[Case]:
    """Tokens and masks have to be equal."""
    ids = "rollout/responses"
    yield Case(
        "one token",
        ids,
        sample=6,
        token=1,
        edit=e.rows_of(ids, lambda r: e.moved(r, 6, 1, 1)),
        cause="one sample only",
    )
    yield Case(
        "one token, ragged",
        ids,
        sample=13,
        token=0,
        base=RAGGED,
        edit=e.rows_of(ids, lambda r: e.moved(r, 13, 0, 3)),
        cause="one sample only",
    )
    yield Case(
        "all tokens one further in the vocabulary",
        ids,
        sample=0,
        token=0,
        cause="offset",
        edit=e.rows_of(ids, lambda r: [row + 1 for row in r]),
    )
    for layout in (RAGGED, Layout(pad="none", mask="response_mask")):
        for name, cut, cause in (
            ("last", slice(None, -1), "last token lost"),
            ("first", slice(1, None), "first token lost"),
        ):
            yield Case(
                f"the {name} token of each lost, mask {layout.mask}",
                ids,
                base=layout,
                cause=cause,
                sample=0,
                edit=_cut_tokens(cut),
                verdict="incomparable",
            )
    yield Case(
        "a token doubled in front",
        ids,
        base=RAGGED,
        cause="token added in front",
        sample=0,
        verdict="incomparable",
        edit=e.rows_of(ids, lambda r: [np.append(row[:1], row) for row in r]),
    )
    yield Case(
        "an end token more",
        ids,
        base=RAGGED,
        cause="token added behind",
        sample=0,
        verdict="incomparable",
        edit=e.rows_of(ids, lambda r: [np.append(row, 2) for row in r]),
    )
    yield Case(
        "log-probs padded",
        NEW,
        base=RAGGED,
        cause="padding counted",
        sample=0,
        verdict="incomparable",
        edit=e.rows_of(NEW, lambda r: [np.pad(row, (0, 14 - len(row))) for row in r]),
    )
    yield Case(
        "one sample is a token short",
        NEW,
        base=RAGGED,
        sample=4,
        verdict="incomparable",
        edit=e.rows_of(NEW, lambda r: [row[:-1] if at == 4 else row for at, row in enumerate(r)]),
        also=("one sample only",),
    )
    yield Case(
        "a prompt of another token",
        "rollout/prompt_ids",
        somewhere=True,
        sample=None,
        edit=e.rows_of("rollout/prompt_ids", lambda r: e.moved(r, 8, 0, 1)),
        cause="one sample only",
    )
    yield Case(
        "prompts without their last token",
        "rollout/prompt_ids",
        sample=0,
        verdict="incomparable",
        edit=e.rows_of("rollout/prompt_ids", lambda r: [row[:-1] for row in r]),
        cause="last token lost",
    )
    yield Case(
        "a doubled first prompt token",
        "rollout/prompt_ids",
        sample=0,
        verdict="incomparable",
        edit=e.rows_of("rollout/prompt_ids", lambda r: [np.append(row[:1], row) for row in r]),
        cause="token added in front",
    )
    for uid in ("none", "uuid"):
        layout = Layout(uid=uid, index=False)
        for name, change, cause in (
            ("without their last token", lambda row: row[:-1], "last token lost"),
            ("with another first token", lambda row: np.append(row[:1], row), "token added in front"),
        ):
            yield Case(
                f"prompts {name}, uids {uid}",
                "rollout/prompt_ids",
                base=layout,
                sample=0,
                cause=cause,
                verdict="incomparable",
                edit=e.rows_of("rollout/prompt_ids", lambda r, c=change: [c(row) for row in r]),
            )
        yield Case(
            f"a prompt of another token, uids {uid}",
            "rollout/prompt_ids",
            base=layout,
            sample=9,
            token=1,
            cause="one sample only",
            edit=e.rows_of("rollout/prompt_ids", lambda r: e.moved(r, 9, 1, 1)),
        )
    yield Case(
        "the last token of one prompt",
        "rollout/prompt_ids",
        sample=4,
        cause="one group only",
        edit=e.rows_of("rollout/prompt_ids", _other_end),
    )
    yield Case(
        "the mask lacks the last token",
        "rollout/response_mask",
        somewhere=True,
        cause="last token only",
        edit=e.rows_of("rollout/mask", lambda r: [_off(row, -1) for row in r]),
        also=("zero",),
    )


def _other_end(rows):
    return [np.append(row[:-1], 7) if at in range(4, 8) else row for at, row in enumerate(rows)]


def _off(row, place):
    row = row.copy()
    row[place] = 0
    return row


def _cut_tokens(part):
    def edit(run):
        for step, done in enumerate(run.stages):
            if step == 1:
                rollout = done["rollout"]
                done["rollout"] = {
                    **rollout,
                    **{
                        name: [row[part] for row in rollout[name]]
                        for name in ("responses", "mask", "rollout_log_probs")
                    },
                }

    return edit


def numbers_of_no_sample() -> Iterator[Case]:
    """Weights, gradients, moments, learning rates, metrics."""
    small = World(scale=5e-7)
    yield Case(
        "gradients of the other sign, tiny",
        "update/grads/layer",
        world=small,
        cause="sign flipped",
        fault=e.value("update/grads/layer", lambda g: -g),
    )
    yield Case(
        "gradients doubled, tiny",
        "update/grads/head",
        world=small,
        cause="scaled",
        fault=e.value("update/grads/head", lambda g: 2 * g),
    )
    yield Case(
        "second moment 558 times too large",
        "update/moments/layer",
        world=small,
        cause="scaled",
        fault=e.value("update/moments/layer", lambda m: 558 * m),
    )
    yield Case("weights not updated", "update/model/layer", fault=_frozen(), cause="one step late")
    yield Case(
        "weight decay",
        "update/model/layer",
        fault=e.value("update/model/layer", lambda w: w * (1 - 1e-4)),
        cause="scaled",
    )
    yield Case(
        "one weight",
        "update/model/head",
        fault=e.value("update/model/head", lambda w: w + np.eye(1, 7, 3)[0] * 1e-3),
    )
    for lr, other in ((1e-6, 2e-6), (1e-2, 1.1e-2), (3e-5, 2.9e-5)):
        yield Case(
            f"learning rate {other:g} for {lr:g}",
            "update/lr",
            world=World(lr=lr),
            fault=e.value("update/lr", lambda _, o=other: o),
        )
        yield Case(
            f"logged learning rate {other:g} for {lr:g}",
            "metrics/lr",
            world=World(lr=lr),
            fault=e.value("metrics/lr", lambda _, o=other: o),
        )
    yield Case("loss of the batch doubled", "update/loss", fault=e.value("update/loss", lambda x: 2 * x))
    yield Case(
        "grad norm doubled",
        "metrics/grad_norm",
        fault=e.value("metrics/grad_norm", lambda x: 2 * x, since=0),
        step=0,
        world=World(steps=4),
        cause="scaled",
    )
    yield Case(
        "loss logged with the other sign",
        "metrics/loss",
        fault=e.value("metrics/loss", lambda x: -x, since=0),
        step=0,
        world=World(steps=4),
        cause="sign flipped",
    )
    yield Case(
        "loss off at one step",
        "metrics/loss",
        fault=_at_step("loss", 2, lambda x: x + 0.1),
        step=2,
        world=World(steps=4),
    )
    yield Case(
        "grad norm doubled beside other times",
        "metrics/grad_norm",
        world=World(steps=4, clock=True),
        step=0,
        fault=e.value("metrics/grad_norm", lambda x: 2 * x, since=0),
        cause="scaled",
    )
    yield Case(
        "one log-prob beside other times",
        NEW,
        e.on(NEW, e.at(4, 1, lambda x: x + 1)),
        sample=4,
        token=1,
        world=World(clock=True),
        cause="one sample only",
    )
    yield Case(
        "NaN logged",
        "metrics/loss",
        fault=_at_step("loss", 1, lambda x: float("nan")),
        step=1,
        cause="not finite",
        also=(),
    )


def _frozen():
    def fault(moment, result):
        if moment.stage != "update" or moment.step < 1:
            return result
        return {**result, "model": {name: w.copy() for name, w in moment.before["update"]["model"].items()}}

    return fault


def _at_step(name, step, change):
    def fault(moment, result):
        if moment.stage != "metrics" or moment.step != step:
            return result
        return {**result, name: change(result[name])}

    return fault


def missing() -> Iterator[Case]:
    """What only one side has."""
    yield Case("no stage advantage", "advantage", edit=e.drop("advantage", 1), verdict="incomparable")
    yield Case(
        "no column log_probs", NEW, edit=e.drop("loss/log_probs", 1), verdict="incomparable", somewhere=True
    )
    yield Case(
        "a column more", NEW, apart=e.drop("loss/log_probs", 1), verdict="incomparable", somewhere=True
    )
    yield Case("no metric", "metrics/grad_norm", edit=e.drop("metrics/grad_norm", 1), verdict="incomparable")
    yield Case("last sample lost", "loss", edit=e.cut_samples("loss", slice(0, -1)), verdict="incomparable")
    yield Case(
        "last group of rewards lost",
        "reward",
        edit=e.cut_samples("reward", slice(0, 12)),
        verdict="incomparable",
    )
    yield Case(
        "log-probs in another dtype",
        "rollout/rollout_log_probs",
        edit=_other_dtype("float64"),
        step=0,
        verdict="incomparable",
        somewhere=True,
    )
    yield Case("a step less", "rollout", edit=_without_last_step, step=2, verdict="incomparable")


def _other_dtype(dtype):
    def edit(run):
        run.world = replace(run.world, dtype=dtype)

    return edit


def _without_last_step(run):
    run.stages, run.metrics = run.stages[:-1], run.metrics[:-1]
