"""`mandor secrets`: the keys that seal secrets."""

from typing import TYPE_CHECKING

import click

from mandor.cli.options import connected

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.group("secrets")
def secrets_command() -> None:
    """List and rotate the keys that seal secrets."""


@secrets_command.command("keys")
@connected
def keys(client: "Client") -> None:
    """List the keys, the one that seals last."""
    for each in client.read("/v1/secret-keys")["items"]:
        click.echo(f"{each['id']}  under master key {each['master']}{'  seals' if each['seals'] else ''}")


@secrets_command.command("rotate-key")
@connected
def rotate_key(client: "Client") -> None:
    """Seal all secrets, and the cluster's own private keys, with a new key.

    The new key is sealed under the first master key of the server (`secrets.key`, --secrets-key-command); keys that
    nothing uses afterwards are dropped. To replace a master key, put the new one on the first line of the file on every
    server, restart them, run this command, and remove the old line.
    """
    done = client.post("/v1/secret-keys/rotate", {})
    click.echo(f"new key {done['key']}: {done['resealed']} objects sealed anew", err=True)
    for each in done.get("dropped", ()):
        click.echo(f"dropped key {each}: nothing uses it", err=True)
