"""`penstock completion`: makes a shell complete commands, options, topics and groups."""

from __future__ import annotations

import click


@click.command(
    epilog="""\b
Examples:
  penstock completion bash          append it to ~/.bashrc
  penstock completion zsh           append it to ~/.zshrc
  penstock completion fish          ~/.config/fish/completions/penstock.fish
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a SHELL complete this command.

    Topics and groups are those of the broker or the store that the line names so far, with --store
    or --endpoint; else of the one that `penstock context show` tells.
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    made = get_completion_class(shell)
    assert made is not None, "click has all three"
    click.echo(made(root.command, {}, "penstock", "_PENSTOCK_COMPLETE").source())
