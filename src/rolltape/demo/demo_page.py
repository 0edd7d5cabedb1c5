"""One page about a demo run: the reward curve, the times and the verdicts. A file of its own, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from rolltape._version import __version__
from rolltape.demo.runs import Act, Story


def write_page(story: Story, acts: Sequence[Act]) -> Path:
    """Write ``demo.html`` beside the tapes."""
    path = story.folder / "demo.html"
    path.write_text(render(story, acts), encoding="utf-8")
    return path


def render(story: Story, acts: Sequence[Act]) -> str:
    """The page as text."""
    recorded, replayed, packed, broken = acts
    rewards = [step.reward for step in recorded.result.steps]
    options = story.options
    same = recorded.result.weights == replayed.result.weights
    hashes = f"<code>{recorded.result.weights}</code>"
    outcomes = [
        ("record", "recorded", "good", f"{recorded.summary.recorded} recordings; weights {hashes}"),
        ("replay", "identical" if same else "different", "good" if same else "bad",
         f"no engine started; weights <code>{replayed.result.weights}</code>"),
        _outcome(packed),
        _outcome(broken),
    ]  # fmt: skip
    rows = "".join(
        f'<tr><td>{name}</td><td class="{kind}">{escape(word)}</td><td>{text}</td></tr>'
        for name, word, kind, text in outcomes
    )
    style = resources.files("rolltape.demo").joinpath("page.css").read_text("utf-8")
    longest = max(act.seconds for act in acts)
    bars = "".join(_bar(act.name, act.seconds, longest) for act in acts)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rolltape demo</title><style>{style}</style></head><body><main>
<h1>A training run, recorded and replayed</h1>
<p>GRPO on a small language model: {options.steps} steps, {options.prompts} prompts × {options.n} completions
a step. Every number was measured in this run, by Rolltape {__version__}.</p>
<section><h2>Reward</h2>{_curve(rewards)}</section>
<section><h2>Time of each run</h2>{bars}</section>
<section><h2>What came out</h2><table><tr><th>run</th><th>verdict</th><th></th></tr>{rows}</table></section>
</main></body></html>
"""


def _outcome(act: Act) -> tuple[str, str, str, str]:
    told = act.report
    assert told is not None
    verdict = told.verdict
    text = " ".join([told.sentence, *(f"Likely cause: {cause.text}." for cause in told.causes[:1])])
    return act.name, str(verdict), "good" if verdict.clean else "bad", escape(text)


def _bar(name: str, seconds: float, longest: float) -> str:
    width = 100 * seconds / longest
    return (
        f'<div class="bar"><span>{escape(name)}</span><svg viewBox="0 0 100 14" preserveAspectRatio="none">'
        f'<rect width="{width:.2f}" height="14" rx="2" fill="var(--curve)"/></svg>'
        f"<span>{seconds:.1f} s</span></div>"
    )


def _curve(values: Sequence[float]) -> str:
    """A line over a grid, 0 to 1."""
    width, height, left, top = 760, 240, 34, 10
    step = (width - left - 10) / max(len(values) - 1, 1)

    def y(value: float) -> float:
        return top + (height - top - 26) * (1 - min(max(value, 0.0), 1.0))

    points = " ".join(f"{left + at * step:.1f},{y(value):.1f}" for at, value in enumerate(values))
    grid = "".join(
        f'<line x1="{left}" x2="{width - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="var(--line)"/>'
        f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in (0, 0.25, 0.5, 0.75, 1)
    )
    marks = sorted({0, len(values) // 2, len(values) - 1})
    labels = "".join(
        f'<text x="{left + at * step:.1f}" y="{height - 6}" text-anchor="{end}">step {at}</text>'
        for at, end in zip(marks, ("start", "end", "end"), strict=False)
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="mean reward by step">{grid}{labels}'
        f'<polyline points="{points}" fill="none" stroke="var(--curve)" stroke-width="2.5"/></svg>'
    )
