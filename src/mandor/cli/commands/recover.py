"""`mandor recover`: examines a damaged store and rebuilds it."""

import sys
from typing import TYPE_CHECKING

import click

from mandor.errors import MandorError

if TYPE_CHECKING:
    from mandor.roots.settings import ServerSettings


@click.command("recover")
@click.option("--config", metavar="FILE", help="Settings as TOML: [server].")
@click.option("--data", metavar="DIR", help="Data directory of the server.  [default: ./.mandor]")
@click.option("--store", metavar="URL", help="sqlite:PATH.  [default: SQLite in --data]")
@click.option("--backup", metavar="FILE", help="Backup used to fill gaps.  [default: the newest in --backup-dir]")
@click.option("--backup-dir", metavar="DIR", help="Directory with the server's own backups.")
@click.option(
    "--forget-secrets", is_flag=True, help="Delete secrets and private keys whose encryption key is lost, instead."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def recover_command(
    config: str | None, backup: str | None, forget_secrets: bool, yes: bool, **flags: str | None
) -> None:
    """Rebuild a damaged store from its readable parts.

    A report shows what was found, what is lost and what a backup can fill in; nothing is written before you confirm.
    The damaged files are kept under another name. The cluster's epoch is increased, as by `mandor restore`: instances
    that agents run and that the recovered state does not contain are reported and kept running, not killed.
    """
    from mandor.roots import recover

    settings = recover.settings_of({name: value for name, value in flags.items() if value is not None}, config)
    if forget_secrets:
        _forget(settings, yes)
        return
    try:
        plan = recover.examine(settings, backup or "")
        for line in plan.report:
            click.echo(line)
        if plan.sound:
            click.echo("the store is intact: nothing to recover", err=True)
            return
        if not _agreed(yes, "write the recovered store"):
            return
        click.echo(recover.write(plan), err=True)
    except OSError as error:
        raise MandorError(f"cannot recover: {(error.strerror or str(error)).lower()}") from error


def _forget(settings: "ServerSettings", yes: bool) -> None:
    import asyncio

    from mandor.roots import recover

    names = asyncio.run(recover.forget_secrets(settings, write=False))
    for name in names:
        click.echo(f"cannot be decrypted: {name}")
    if _agreed(yes, f"delete {len(names)} objects and the unusable keys"):
        asyncio.run(recover.forget_secrets(settings, write=True))
        click.echo(f"deleted {len(names)} objects", err=True)


def _agreed(yes: bool, what: str) -> bool:
    if yes or (sys.stdin.isatty() and click.confirm(f"{what}?")):
        return True
    click.echo(f"nothing was written; use --yes to {what}", err=True)
    return False
