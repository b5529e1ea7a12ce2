"""``weft completion``: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_WEFT_COMPLETE"
"""Variable by which the shell asks ``weft`` for completions; click derives the name from that of the program."""
SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the code by which SHELL completes the commands and options of weft. The Debian package brings it along.

    \b
    bash: weft completion bash > ~/.local/share/bash-completion/completions/weft
    zsh:  weft completion zsh > ~/.zfunc/_weft     (with fpath+=~/.zfunc before compinit)
    fish: weft completion fish > ~/.config/fish/completions/weft.fish
    """
    click.echo(script(context.find_root().command, shell))


def script(root: click.Command, shell: str) -> str:
    """Return the code for a shell, which asks the command line itself at each Tab."""
    found = get_completion_class(shell)
    assert found is not None
    completion = found(root, {}, "weft", VARIABLE)
    # Not source(): for bash it starts the bash of this machine, to warn of one older than 4.4.
    return completion.source_template % completion.source_vars()
