"""``rolltape completion``: the script that makes a shell complete commands, options, tapes and steps."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rolltape.cli.output import Exit

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> Exit:
    """Print the script that completes commands, options, TAPE directories and STEP numbers.

    \b
    bash   echo 'eval "$(rolltape completion bash)"' >> ~/.bashrc
    zsh    echo 'eval "$(rolltape completion zsh)"' >> ~/.zshrc
    fish   rolltape completion fish > ~/.config/fish/completions/rolltape.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    script = kind(ctx.find_root().command, {}, "rolltape", "_ROLLTAPE_COMPLETE")
    # Not script.source(): that one runs bash to ask for its version.
    click.echo(script.source_template % script.source_vars())
    return Exit.CLEAN
