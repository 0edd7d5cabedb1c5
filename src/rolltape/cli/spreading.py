"""``--ray [ADDRESS]``: the option of commands whose work can be spread over a Ray cluster."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext

import click

from rolltape.spread import HERE, Spread

_ADDRESS = re.compile(r"auto|local|ray://\S+|[^/\s]+:\d+")
"""What is taken for an address after ``--ray``; everything else is an argument of the command."""

ray_option = click.option(
    "--ray",
    metavar="[ADDRESS]",
    help="Spread the work over a Ray cluster: this one, that of RAY_ADDRESS, or one started here.",
)


class SpreadCommand(click.Command):
    """A command with ``--ray``, whose address may be left out wherever the option stands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_addresses(args))


def with_addresses(args: list[str]) -> list[str]:
    """The arguments of a command, ``--ray`` in one word with its address, which is empty where none follows.

    >>> with_addresses(["--ray", "runs/base", "--json"])
    ['--ray=', 'runs/base', '--json']
    >>> with_addresses(["runs/base", "--ray", "10.0.0.1:6379"])
    ['runs/base', '--ray=10.0.0.1:6379']
    """
    end = args.index("--") if "--" in args else len(args)
    found: list[str] = []
    for at, word in enumerate(args[:end]):
        if found and at and args[at - 1] == "--ray" and _ADDRESS.fullmatch(word):
            found[-1] = f"--ray={word}"
        else:
            found.append("--ray=" if word == "--ray" else word)
    return found + args[end:]


def spread_by(ray: str | None) -> AbstractContextManager[Spread]:
    """Where a command does its work: here, or on the cluster that ``--ray`` names."""
    if ray is None:
        return nullcontext(HERE)
    from rolltape.ray import cluster

    return cluster(ray or None)
