"""slime asked by its prompts: what a step draws is looked up, and only what is missing is generated.

The prompts of a step are drawn from the data source as ever. The rollout function is called for those samples
that are not on the tape, with a data source that gives it these alone.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rolltape.errors import ConfigError, UnsupportedValueError
from rolltape.index import canonical
from rolltape.settings import MatchLevel, Settings
from rolltape.tape import Tape

_CONTENT = ("prompt", "label", "metadata", "multimodal_inputs")
"""The attributes of a sample that say what is asked, before anything is generated."""
_NAMES = ("index", "group_index", "rollout_id")
"""Those that say where it stands in a run."""
_OTHERS = ("dynamic_sampling_filter_path", "partial_rollout", "group_rm")
"""Arguments with which other prompts are drawn than those that are asked for, or samples depend on others."""
_SIZES = ("sampling.n_samples_per_prompt", "sampling.rollout_batch_size")

_STORED = {"metadata": "sample_metadata"}
"""What an attribute is called on the tape, where its name would say that it belongs to a whole batch."""
_NAMED = {stored: name for name, stored in _STORED.items()}

Generate = Callable[[Any, Any], Any]
"""The rollout function, given arguments and a data source."""


def relaxed(settings: Settings) -> Settings:
    """Options for a tape that is asked by prompts: sizes, data and seeds may be others, sampling may not."""
    for part in ("sampling", "model"):
        if settings.match.get(part, MatchLevel.ERROR) is not MatchLevel.ERROR:
            raise ConfigError(
                f'with by="prompt" the part {part} must match: samples are looked up by their prompts alone',
                where="match",
                hint=f"leave {part} out of match, and use another tape for another {part}",
            )
    known = dict.fromkeys(part for part in ("data", "seed") if part in settings.fingerprint)
    sizes = _SIZES if "sampling" in settings.fingerprint else ()
    match = {**dict.fromkeys([*known, *sizes], MatchLevel.IGNORE), **settings.match}
    return replace(settings, match=match)


class Drawn:
    """A data source that gives out some groups, and no others."""

    def __init__(self, groups: list[list[Any]], source: Any) -> None:
        self._groups, self._source = groups, source

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """The next groups."""
        found, self._groups = self._groups[:num_samples], self._groups[num_samples:]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class PromptRollouts:
    """The stage ``rollout`` of a tape that is asked by prompts."""

    def __init__(self, tape: Tape, sample: type, output: type) -> None:
        own = tape.settings
        self.tape, self.sample, self.output_class = tape, sample, output
        self._stage = tape.stage(
            "rollout", inputs=["prompts"], by="prompt", prompts="prompts", n=1, along="rows", sampling=[],
            version=own.version, draw=own.draw,
        )(self._rollout)  # fmt: skip

    def run(self, enter: Callable[..., Any], args: Any, source: Any, live: Generate) -> Any:
        """One rollout: drawn, looked up, and put together; ``enter`` calls a function inside the step."""
        if given := [name for name in _OTHERS if getattr(args, name, None)]:
            raise ConfigError(
                f'with by="prompt" each sample is asked for by itself, but {given[0]} is set',
                where=self.tape.dir,
                hint=f"leave out --{given[0].replace('_', '-')}, or by",
            )
        step = _Step(self, args, source, live)
        return step.output(enter(self._stage, step.contents, step.rows, step))

    def _rollout(self, prompts: Sequence[Any], rows: Sequence[int], step: _Step) -> dict[str, Any]:
        return step.generate(rows)


class _Step:
    """The samples of one step."""

    def __init__(self, rollouts: PromptRollouts, args: Any, source: Any, live: Generate) -> None:
        self._rollouts, self._args, self._source, self._live = rollouts, args, source, live
        self._groups: list[list[Any]] = source.get_samples(args.rollout_batch_size)
        self._samples = [sample for group in self._groups for sample in group]
        self.contents = [_content(sample) for sample in self._samples]
        self.rows = list(range(len(self._samples)))
        self._whole: Any = None
        self._metrics: Any = None

    def generate(self, rows: Sequence[int]) -> dict[str, Any]:
        """What the rollout function makes of the samples in these places, in their order."""
        if getattr(self._args, "debug_train_only", False):
            raise ConfigError(
                f"{len(rows)} samples must be generated, but no engine runs",
                where=self._rollouts.tape.dir,
                causes=["the run has --debug-train-only, but not all of its samples are on the tape"],
                hint="use mode replay to be told what is missing, or remove --debug-train-only",
            )
        places = self._places(rows)
        wanted = set(places)
        names = iter(range(len(self._samples)))
        groups = [[sample for sample in group if next(names) in wanted] for group in self._groups]
        groups = [group for group in groups if group]
        if len({len(group) for group in groups}) > 1:
            groups = [[sample] for group in groups for sample in group]
        args = copy.copy(self._args)
        args.rollout_batch_size, args.n_samples_per_prompt = len(groups), len(groups[0])
        if hasattr(args, "over_sampling_batch_size"):
            args.over_sampling_batch_size = len(groups)
        found = self._live(args, Drawn(groups, self._source))
        if len(rows) == len(self.rows):
            self._whole = found
        self._metrics = getattr(found, "metrics", None)
        made = {sample.index: sample for sample in _flat(getattr(found, "samples", found))}
        asked = [self._samples[place].index for place in places]
        if len(set(asked)) < len(asked) or any(index not in made for index in asked):
            raise UnsupportedValueError(
                "the rollout function returned other samples than it was asked for",
                where=self._rollouts.tape.dir,
                causes=["it draws prompts in a way of its own, or leaves groups out"],
                hint="leave by out: it is recorded and replayed by steps",
            )
        attributes = [vars(made[index]) for index in asked]
        names_of_all = [name for name in attributes[0] if all(name in own for own in attributes)]
        more = [{name: own[name] for name in own if name not in names_of_all} for own in attributes]
        columns = {_STORED.get(name, name): [own[name] for own in attributes] for name in names_of_all}
        return {"fields": columns, "more": more}

    def _places(self, rows: Sequence[int]) -> list[int]:
        """The samples to generate: of a prompt, which is named as often as samples are missing, the last."""
        known = [canonical(content) for content in self.contents]
        same: dict[bytes, list[int]] = {}
        for place, content in enumerate(known):
            same.setdefault(content, []).append(place)
        counts = Counter(known[row] for row in rows)
        rest = {content: iter(same[content][-count:]) for content, count in counts.items()}
        return [next(rest[known[row]]) for row in rows]

    def output(self, parts: dict[str, Any]) -> Any:
        """What slime gets: what its function returned where all of it was generated, else groups as drawn."""
        if self._whole is not None:
            self._rollouts.tape.flush()
            return self._whole
        fields, made = parts["fields"], []
        for row, asked in enumerate(self._samples):
            sample: Any = object.__new__(self._rollouts.sample)
            own = {_NAMED.get(name, name): column[row] for name, column in fields.items()}
            own |= parts["more"][row]
            own |= {name: vars(asked)[name] for name in _NAMES if name in vars(asked)}
            vars(sample).update(own)
            made.append(sample)
        rest = iter(made)
        groups = [[next(rest) for _ in group] for group in self._groups]
        self._rollouts.tape.flush()
        return self._rollouts.output_class(samples=groups, metrics=self._metrics)


def _content(sample: Any) -> dict[str, Any]:
    found = {name: getattr(sample, name, None) for name in _CONTENT}
    return {name: copy.deepcopy(value) for name, value in found.items() if value not in (None, {}, [])}


def _flat(found: Any) -> list[Any]:
    if isinstance(found, (list, tuple)):
        return [sample for one in found for sample in _flat(one)]
    return [found]
