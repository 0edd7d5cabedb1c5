"""``rolltape drain``: take what waits on this machine to its object store."""

from __future__ import annotations

import os

import click

from rolltape.cli.arguments import TapePath
from rolltape.cli.output import Exit, Screen, complain
from rolltape.errors import RolltapeError
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted
from rolltape.rich_text import shown
from rolltape.settings import resolve
from rolltape.storage import ObjectStorage, SpooledStorage
from rolltape.storage.store_client import DEADLINE, seconds
from rolltape.tape.opening import spool_of
from rolltape.tape.summary import amount


@click.command("drain", short_help="Take recordings that wait on this machine to their store.")
@click.argument("tape", required=False, type=TapePath())
def command(tape: str | None) -> Exit:
    """Take what a run that ended could not take to its object store there: of TAPE, or of every tape.

    A run that records to a store keeps what is not there yet in a spool on its machine. The next run that
    writes to the tape takes it along; this does it without a run. What a running process has is left to it.
    Exits with 1 if something is left.
    """
    spool = spool_of(resolve({"dir": "."}, os.environ))
    waiting = spool.waiting()
    screen = Screen()
    left_over = False
    for url in [tape] if tape else sorted(waiting):
        if url not in waiting:
            screen.print(shown(f"{url}: nothing waits on this machine"), soft_wrap=True)
            continue
        try:
            storage = SpooledStorage(ObjectStorage(url), spool)
            taken = storage.adopt()
        except RolltapeError as refused:
            if tape:
                raise
            complain(f"{visible(url)}: {refused}")
            left_over = True
            continue
        storage.settle(seconds(DEADLINE))
        for name, error in storage.take_failures():
            complain(f"{name}: {error}")
            left_over = True
        busy = spool.waiting().get(url)
        text = f"{url}: {counted(taken - storage.adopt(), 'file')} taken there"
        if busy is not None:
            text += f"; {counted(busy.files, 'file')} ({amount(busy.nbytes)}) left"
            left_over = True
        screen.print(shown(text), soft_wrap=True)
    if not tape and not waiting:
        screen.print(shown("nothing waits on this machine"))
    return Exit.FINDINGS if left_over else Exit.CLEAN
