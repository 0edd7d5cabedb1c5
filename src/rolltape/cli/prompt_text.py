"""One prompt through training, for the terminal and as JSON: what ``rolltape show --prompt`` prints."""

from __future__ import annotations

import re
from typing import Any

import click
import pyarrow as pa
from rich.text import Text

from rolltape.cli.output import Exit, Screen, complain, new_table, print_json
from rolltape.errors import RolltapeError
from rolltape.index.index_rows import RecordedSamples
from rolltape.index.pass_rates import PASSED
from rolltape.index.prompt_history import Visit, prompt_records, prompt_visits
from rolltape.index.prompt_key import canonical, prompt_digest, uid_digest
from rolltape.index.sample_table import SampleTable, reward_stage
from rolltape.reader.given_prompts import given_prompt
from rolltape.reader.run import Run
from rolltape.reader.sample_fields import Field, choose_fields, field_text
from rolltape.reader.visible import visible
from rolltape.reader.wording import brief, counted, number
from rolltape.rich_text import shown

_PLACE = re.compile(r"([0-9]{1,18})/([0-9]{1,9})")
_DIGEST = re.compile(r"[0-9a-f]{6,32}")


def show_prompt(run: Run, asked: str, stage: str, split: str, *, full: bool, as_json: bool) -> Exit:
    """Print the steps at which a prompt was asked, with its best and worst response at each."""
    scored = reward_stage(run, stage, split)
    rewards = None if scored in (None, stage) else SampleTable(run, str(scored), split)
    samples = SampleTable(run, stage, split, rewards=rewards)
    samples.advance()
    table = samples.table()
    for name, why in samples.unreadable.items():
        complain(f"left out, because it cannot be read: {visible(name)}: {why}")
    digest = _find(run, table, asked, stage, split)
    visits = prompt_visits(table, digest, PASSED)
    texts = {(visit.step, at): _response(run, stage, split, visit.step, at)
             for visit in visits for at in (visit.best, visit.worst)}  # fmt: skip
    prompt = _prompt(run, stage, split, visits[0])
    if as_json:
        print_json({
            "prompt": prompt, "digest": digest.hex(), "passed_from": PASSED,
            "steps": [_as_json(visit, texts) for visit in visits],
        })  # fmt: skip
        return Exit.FINDINGS if samples.unreadable else Exit.CLEAN
    screen = Screen()
    screen.print(
        Text("prompt ", style="bold") + shown(prompt if full else brief(prompt, 400), lines=full),
        soft_wrap=True,
    )
    screen.print(
        shown(
            f"digest {digest.hex()}; asked at {counted(len(visits), 'step')}; "
            f"passed: a reward of {number(PASSED)} or more",
            "dim",
        ),
        soft_wrap=True,
    )
    listed = new_table(
        "step", "n", "mean", "passed", "tokens", "best", "worst",
        right=("step", "n", "mean", "passed", "tokens"), fold={"best": 12, "worst": 12},
    )  # fmt: skip
    for visit in visits:
        listed.add_row(
            str(visit.step), str(len(visit.samples)), number(visit.mean), _share(visit.pass_rate),
            number(visit.length), _said(visit, visit.best, texts, full),
            _said(visit, visit.worst, texts, full) if visit.worst != visit.best else "",
        )  # fmt: skip
    screen.print(listed)
    return Exit.FINDINGS if samples.unreadable else Exit.CLEAN


def _find(run: Run, table: pa.Table, asked: str, stage: str, split: str) -> bytes:
    """The digest of the prompt that is meant: by a sample of it, by its digest, or by its text."""
    known = {bytes.fromhex(one.digest) for one in prompt_records(table, 0.0)}
    exact = prompt_digest(canonical(asked))
    if exact in known:
        return exact
    place = _PLACE.fullmatch(asked)
    if place is not None:
        found = run.samples(int(place[1]), stage, split)
        if int(place[2]) >= len(found):
            raise click.UsageError(
                f"there is no sample {place[2]} at step {place[1]}; it has {len(found)}, from 0 on"
            )
        return _digest_of(run, found.locate(int(place[2])))
    if _DIGEST.fullmatch(asked):
        begun = [one for one in known if one.hex().startswith(asked)]
        if len(begun) == 1:
            return begun[0]
    meant = _by_text(run, table, asked, stage, split)
    if len(meant) == 1:
        return next(iter(meant))
    if meant:
        some = "; ".join(f"{digest.hex()[:12]} {brief(text, 60)}" for digest, text in list(meant.items())[:8])
        raise click.UsageError(
            f"{counted(len(meant), 'prompt')} have this text. Name one by its digest: {some}"
        )
    raise click.UsageError(
        f"no prompt of {split}/{stage} is like {brief(asked, 60)!r}; "
        f"name a sample of it (--prompt STEP/SAMPLE), its digest, or a part of its text"
    )


def _by_text(run: Run, table: pa.Table, asked: str, stage: str, split: str) -> dict[bytes, str]:
    """The prompts that have a text in them."""
    found: dict[bytes, str] = {}
    by_step: dict[int, list[tuple[int, str]]] = {}
    for one in prompt_records(table, 0.0):
        by_step.setdefault(one.step, []).append((one.sample, one.digest))
    for step, places in by_step.items():
        samples = run.samples(step, stage, split)
        for sample, digest in places:
            text = _text(samples, sample, "prompt")
            if asked in text:
                found[bytes.fromhex(digest)] = text
    return found


def _digest_of(run: Run, place: tuple[Any, int]) -> bytes:
    file, row = place
    contents = RecordedSamples(run.storage, file.recording).contents()
    return (
        prompt_digest(contents[row])
        if contents is not None
        else uid_digest(file.recording.identity()[0][row])
    )


def _text(samples: Any, sample: int, label: str) -> str:
    """What a sample was asked, or what it said, as text."""
    if label == "prompt":
        given = given_prompt(samples, sample)
        if given is not None:
            return field_text(Field("", "", "text"), given, full=True)
    field = next((one for one in choose_fields(samples.stored) if one.label.startswith(label)), None)
    return "" if field is None else field_text(field, samples.cell(field.column, sample), full=True)


def _prompt(run: Run, stage: str, split: str, visit: Visit) -> str:
    return _text(run.samples(visit.step, stage, split), visit.best, "prompt")


def _response(run: Run, stage: str, split: str, step: int, sample: int) -> str:
    try:
        return _text(run.samples(step, stage, split), sample, "response")
    except RolltapeError as error:
        return f"(cannot be read: {error.what})"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _said(visit: Visit, sample: int, texts: dict[tuple[int, int], str], full: bool) -> Text:
    reward = visit.rewards[visit.samples.index(sample)]
    text = texts[visit.step, sample]
    body = shown(text, lines=True) if full else shown(brief(text, 120))
    return Text(f"{number(reward)} ", style="bold") + body + Text(f" #{sample}", style="dim")


def _as_json(visit: Visit, texts: dict[tuple[int, int], str]) -> dict[str, Any]:
    sides = {
        name: {
            "sample": at,
            "reward": visit.rewards[visit.samples.index(at)],
            "response": texts[visit.step, at],
        }
        for name, at in (("best", visit.best), ("worst", visit.worst))
    }
    return {
        "step": visit.step, "samples": list(visit.samples), "rewards": list(visit.rewards),
        "mean": visit.mean,
        "pass_rate": visit.pass_rate, "length": visit.length, "longest": visit.longest, **sides,
    }  # fmt: skip
