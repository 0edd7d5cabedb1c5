"""``rolltape serve``: record and replay any inference server."""

from __future__ import annotations

import os
from typing import Any

import click

from rolltape.cli.arguments import LocalPath, TapePath
from rolltape.cli.output import Exit, Screen, complain, print_json
from rolltape.cli.serve_text import summary_text
from rolltape.rich_text import shown
from rolltape.serving import Server, read_options, run_server, secured


@click.command("serve", short_help="Record and replay an inference server.")
@click.argument("tape", metavar="TAPE", type=TapePath())
@click.option("--mode", default="auto", show_default=True, help="record, rewrite, replay or auto.")
@click.option(
    "--upstream", multiple=True, metavar="URL", help="The server to pass calls on to; may be repeated."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port (default: a free one).")
@click.option("--step", type=click.IntRange(0), help="The step to begin with.")
@click.option("--order", default="recorded", show_default=True,
              help="In which order a replay completes answers: recorded, arrival or none.")  # fmt: skip
@click.option("--wait", type=float, default=30.0, show_default=True,
              help="Seconds after which a recorded call that nobody asks for is not waited for.")  # fmt: skip
@click.option("--pace", default="none", show_default=True,
              help="How long recorded answers take: none, real, or 4x for a quarter.")  # fmt: skip
@click.option("--spread", default="round-robin", show_default=True,
              help="Which of several servers gets a call: round-robin, or session.")  # fmt: skip
@click.option("--identity", multiple=True, metavar="NAME",
              help="Another header that says who asks, or body.FIELD; may be repeated.")  # fmt: skip
@click.option("--volatile", multiple=True, metavar="FIELD",
              help="Another field that does not change what is generated; may be repeated.")  # fmt: skip
@click.option("--by", envvar="ROLLTAPE_BY", default="step", show_default=True,
              help="prompt: samples of the same prompt answer, wherever on the tape they are.")  # fmt: skip
@click.option("--version", envvar="ROLLTAPE_VERSION", default="same", show_default=True,
              help="With --by prompt, whose samples: same, any, nearest, or '<= 2 old'.")  # fmt: skip
@click.option("--draw", envvar="ROLLTAPE_DRAW", type=int, metavar="SEED",
              help="With --by prompt: picks samples where fewer are asked for than there are.")  # fmt: skip
@click.option("--engines", default="none", show_default=True,
              help="In a replay: alive passes the control plane on to the servers.")  # fmt: skip
@click.option("--token-file", type=LocalPath(), metavar="FILE",
              help="A file with the secret that clients must know.")  # fmt: skip
@click.option("--max-body", default="64MB", show_default=True, help="The largest request that is taken.")
@click.option(
    "--timeout", type=float, help="Seconds after which a silent server is given up (default: never)."
)
@click.option("--memory", default="256MiB", show_default=True, help="For recorded answers, in a replay.")
@click.option("--json", "as_json", is_flag=True, help="At the end, the summary as JSON.")
def command(tape: str, token_file: str | None, as_json: bool, **options: Any) -> Exit:
    """Stand between a framework and its inference server: point the framework's base URL here.

    Calls are passed on to --upstream and recorded on TAPE, or answered from it. Prints the address, and a
    summary when it is ended by Ctrl-C or SIGTERM. What it does meanwhile is shown at /rolltape/.
    """
    server = Server(tape, secured(read_options(token=_token(token_file), **options)))

    def ready(started: Server) -> None:
        Screen().print(shown(started.url), soft_wrap=True)
        if started.token is not None and token_file is None and "ROLLTAPE_SERVE_TOKEN" not in os.environ:
            complain(f"clients need the token {started.token}, as their API key or as X-Rolltape-Token")
        complain(f"mode {started.options.mode}; {started.url}/rolltape/ shows what it does; Ctrl-C ends it")

    summary = run_server(server, ready)
    if as_json:
        print_json(summary)
    else:
        Screen().print(shown(summary_text(summary), lines=True), soft_wrap=True)
    if summary["failure"]:
        return Exit.ERROR
    return Exit.FINDINGS if summary["calls"]["missed"] or summary["waiting"]["files"] else Exit.CLEAN


def _token(file: str | None) -> str | None:
    if file is None:
        return os.environ.get("ROLLTAPE_SERVE_TOKEN") or None
    with open(file, encoding="utf-8") as opened:
        found = opened.read(4096).strip("\r\n")
    if not found:
        raise click.UsageError(f"the file {file} has no token in it")
    return found
