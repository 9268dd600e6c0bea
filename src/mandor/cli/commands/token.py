"""`mandor token`: credentials for the API."""

from typing import TYPE_CHECKING

import click

from mandor.cli.commands.get import get_one, show
from mandor.cli.kinds import find_kind
from mandor.cli.options import complete_names, connected, output_option, seconds
from mandor.cli.output import show_data

if TYPE_CHECKING:
    from mandor.client.sync import Client

OF_A_NODE = "node."
"""Prefix of the names of nodes' own credentials."""
RENEWAL_SECONDS = 20.0
"""Seconds to wait for an agent to renew its credential."""
ROLES = ("admin", "operator", "viewer", "join", "node", "component")


@click.group("token")
def token_command() -> None:
    """Create, list, rotate and revoke tokens."""


@token_command.command("create")
@click.argument("identity")
@click.option("--role", required=True, help=f"Role of the token: {', '.join(ROLES)}, or a `kind: role`.")
@click.option(
    "-n", "--namespace", "namespaces", multiple=True, help="Namespace that the role is limited to; repeatable."
)
@click.option(
    "--expires", metavar="DURATION", help="Validity: 12h, 30d.  [default: 24h for join, others do not expire]"
)
@click.option(
    "--uses", type=int, metavar="COUNT", help="Number of nodes that can join with a join token.  [default: unlimited]"
)
@click.option("--pool", metavar="NAME", help="Pool of nodes that join with a join token.")
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    help="Label of nodes that join with a join token; repeatable.",
)
@click.option("--overlap", default="1h", show_default=True, help="Time that a node's current credential stays valid.")
@output_option("text", "json", "yaml")
@connected
def create(
    client: "Client",
    identity: str,
    role: str,
    namespaces: tuple[str, ...],
    expires: str | None,
    uses: int | None,
    pool: str | None,
    labels: tuple[str, ...],
    overlap: str,
    output: str,
) -> None:
    """Create a token for IDENTITY; it is shown once and not stored.

    \b
    mandor token create ani --role operator -n team-a --expires 30d
    mandor token create rack7 --role join --uses 12 --expires 1h --pool gpu --label rack=7
    """
    body: dict[str, object] = {"role": role, "identity": identity}
    if role == "node":
        body["overlap_seconds"] = seconds(overlap, "--overlap")
    if namespaces:
        body["namespaces"] = list(namespaces)
    if expires is not None:
        body["expires_seconds"] = seconds(expires, "--expires")
    body |= {"uses": uses} if uses is not None else {}
    body |= {"pool": pool} if pool else {}
    body |= {"labels": dict(_label(each) for each in labels)} if labels else {}
    made = client.post("/v1/tokens", body)
    if output != "text":
        show_data(made, output)
        return
    click.echo(made["token"])
    click.echo(f"created token {made['name']} for {made['identity']} ({role}); it is not shown again", err=True)
    if made.get("former_until"):
        click.echo(
            f"the agent's current credential expires in {overlap} at the latest; give the agent this token", err=True
        )


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--label")
    return key, value


@token_command.command("list")
@output_option()
@connected
def list_tokens(client: "Client", output: str) -> None:
    """List tokens, without their secrets."""
    items, _ = client.list("tokens")
    show(items, find_kind("token"), output)


@token_command.command("rotate")
@click.argument("name", shell_complete=complete_names("tokens"))
@click.option("--overlap", default="1h", show_default=True, help="Time that the old token stays valid.")
@output_option("text", "json", "yaml")
@connected
def rotate(client: "Client", name: str, overlap: str, output: str) -> None:
    """Create a new token for the identity of token NAME; NAME stays valid for the overlap, then it expires.

    A node's own credential (`node.n1`) is not shown: its agent renews it automatically.

    \b
    mandor token rotate 3f9a1c20b7de --overlap 24h
    mandor token rotate node.n1
    """
    body = {"overlap_seconds": seconds(overlap, "--overlap")}
    if name.startswith(OF_A_NODE):
        renew(client, name.removeprefix(OF_A_NODE), body, overlap, output)
        return
    made = client.post(f"/v1/tokens/{name}/rotate", body)
    if output != "text":
        show_data(made, output)
        return
    click.echo(made["token"])
    click.echo(
        f"created token {made['name']} for {made['identity']} ({made['role']}); {name} expires in {overlap}", err=True
    )


def renew(client: "Client", node: str, body: dict[str, float], overlap: str, output: str) -> None:
    """Request that the agent renews its credential: only the agent holds the key."""
    from time import monotonic, sleep

    found = client.post(f"/v1/nodes/{node}/renew-credential", body)
    until = monotonic() + RENEWAL_SECONDS
    while (waits := "renewal" in found.get("spec", {})) and monotonic() < until:
        sleep(0.2)
        found = client.get("nodes", node)
    if output != "text":
        show_data(found, output)
    elif waits:
        click.echo(f"node {node} has not renewed its credential yet; it will once its agent is connected", err=True)
    else:
        click.echo(f"node {node} renewed its credential; the old one expires in {overlap}")


@token_command.command("revoke")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names("tokens"))
@connected
def revoke(client: "Client", names: tuple[str, ...]) -> None:
    """Revoke tokens immediately."""
    for name in names:
        get_one(client, find_kind("token"), name, None)
    for name in names:
        client.delete("tokens", name)
        click.echo(f"token {name} revoked")
