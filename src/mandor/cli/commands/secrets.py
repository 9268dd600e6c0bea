"""`mandor secrets`: the keys that encrypt secrets."""

from typing import TYPE_CHECKING

import click

from mandor.cli.options import connected

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.group("secrets")
def secrets_command() -> None:
    """List and rotate the keys that encrypt secrets."""


@secrets_command.command("keys")
@connected
def keys(client: "Client") -> None:
    """List the keys; the last one encrypts."""
    for each in client.read("/v1/secret-keys")["items"]:
        click.echo(f"{each['id']}  under master key {each['master']}{'  active' if each['seals'] else ''}")


@secrets_command.command("rotate-key")
@connected
def rotate_key(client: "Client") -> None:
    """Encrypt all secrets, and the cluster's own private keys, with a new key.

    The new key is encrypted with the first master key of the server (`secrets.key`, --secrets-key-command); keys that
    are not used any more are deleted. To replace a master key, put the new one on the first line of the file on every
    server, restart them, run this command, and remove the old line.
    """
    done = client.post("/v1/secret-keys/rotate", {})
    click.echo(f"new key {done['key']}: {done['resealed']} objects encrypted again", err=True)
    for each in done.get("dropped", ()):
        click.echo(f"deleted unused key {each}", err=True)
