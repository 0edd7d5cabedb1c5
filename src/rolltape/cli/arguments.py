"""The arguments and options that commands share: how each is read, and how the shell completes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from rolltape.errors import RolltapeError
from rolltape.key import check_name
from rolltape.steps import ALL_STEPS, StepSelector, as_step
from rolltape.storage import absolute, is_url

if TYPE_CHECKING:  # generic for the type checker; older releases of click know no brackets
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType


class TapePath(ParamType):
    """A directory, or a URL of an object store. Whether there is a tape in it is for the command to say."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text or "\0" in text:
            self.fail(f"{text!r} is not a path", param, ctx)
        if is_url(text):
            try:
                return absolute(text)
            except RolltapeError as error:  # without what it holds of secrets
                self.fail(f"{error.where}: {error.what}; {error.hint}", param, ctx)
        return text

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [] if is_url(incomplete) else [CompletionItem(incomplete, type="dir")]


class LocalPath(click.Path):
    """A file or folder of this machine that is no tape, and so no URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if is_url(str(value)):
            self.fail("only tapes can be at a URL; copy it to this machine, and give its path", param, ctx)
        return super().convert(value, param, ctx)


class Step(ParamType):
    """One step; the shell is offered those on the tape."""

    name = "step"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return as_step(int(value) if isinstance(value, str) and value.isdecimal() else value)
        except (RolltapeError, ValueError):
            return self.fail(f"{value!r} is not a step, a whole number from 0 to 2**63-1", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from rolltape.reader.run import open
        from rolltape.reader.step_roles import main_stage

        try:
            run = open(ctx.params["tape"])
            splits = [ctx.params["split"]] if ctx.params.get("split") else run.splits
            asks = any(param.name == "stage" for param in ctx.command.params)
            stages = {split: ctx.params.get("stage") or main_stage(run.stages(split)) for split in splits}
            found = [run.steps(stages[split] if asks else None, split) for split in splits]
            steps = sorted({step for one in found for step in one})
        except (KeyError, TypeError, OSError, RolltapeError):
            return []
        return [CompletionItem(str(step)) for step in steps if str(step).startswith(incomplete)]


class Steps(ParamType):
    """A set of numbers, as in ``0-9,20``."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> StepSelector:
        try:
            return StepSelector.parse(value)
        except RolltapeError as error:
            return self.fail(f"{error.what}; {error.hint}", param, ctx)


class Name(ParamType):
    """The name of a split or a stage."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_name((param.name if param else None) or "stage", value)
        except RolltapeError as error:
            return self.fail(error.what, param, ctx)


tape_argument = click.argument("tape", type=TapePath())
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and no table.")
split_filter = click.option("--split", type=Name(), help="Only this split (train, val, …).")
stage_filter = click.option("--stage", type=Name(), help="Only this stage (rollout, reward, …).")
steps_filter = click.option(
    "--steps", type=Steps(), default=ALL_STEPS, show_default=False, help="Only these steps, as in 0-9,20,50-."
)
