"""`mandor completion`: completion scripts for shells."""

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script.

    \b
    bash:  mandor completion bash > ~/.local/share/bash-completion/completions/mandor
    zsh:   mandor completion zsh > ~/.zfunc/_mandor
    fish:  mandor completion fish > ~/.config/fish/completions/mandor.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    script = found(ctx.find_root().command, {}, "mandor", "_MANDOR_COMPLETE")
    click.echo(script.source_template % script.source_vars())
