"""`mandor audit`: shows audit records, and verifies the hash chain over them."""

import json
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.commands.events import full_name
from mandor.cli.options import connected, namespace_option, output_option, seconds
from mandor.cli.output import show_data
from mandor.cli.tables import moment
from mandor.errors import Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

QUIET_SECONDS = 60.0


@click.command("audit")
@click.option("--since", metavar="AGE", help="Only records of the last AGE: 30m, 2h, 7d.")
@click.option("--identity", metavar="IDENTITY", help="Only records of this identity: user:ani, component:controllers.")
@click.option("--about", metavar="KIND/NAME", help="Only records about this object.")
@click.option("--verb", help="Only records with this verb: apply, delete, exec.")
@click.option(
    "--last", type=click.IntRange(1), default=50, show_default=True, help="Number of records to show, the newest."
)
@click.option("--verify", is_flag=True, help="Verify the hash chain instead of showing records.")
@click.option("--head", metavar="HEAD", help="With --verify: the head printed by an earlier verification.")
@namespace_option
@output_option("table", "json", "yaml")
@connected
def audit_command(
    client: "Client",
    since: str | None,
    identity: str | None,
    about: str | None,
    verb: str | None,
    last: int,
    verify: bool,
    head: str | None,
    namespace: str,
    output: str,
) -> None:
    """Show and verify the audit log: every change with its author, old and new values.

    The newest record is last. `--verify` compares all records with the hash chain over them, and fails if one was
    removed, changed or reordered. Store the printed head elsewhere: `--head` shows later whether the end of the log was
    cut off.
    """
    items = _all(client)
    if verify:
        _verify(items, head or "", output)
        return
    import time

    oldest = time.time() - seconds(since, "--since") if since else 0.0
    wanted = full_name(about, namespace) if about else None
    found = [
        item
        for item in items
        if not (spec := item["spec"]).get("seal")
        and spec["at"] >= oldest
        and identity in {None, spec["identity"]}
        and verb in {None, spec["verb"]}
        and (wanted is None or wanted in {spec["about"], *(each["about"] for each in spec.get("entries", ()))})
    ][-last:]
    if output in {"json", "yaml"}:
        show_data({"items": found}, output)
        return
    for item in found:
        _show(item["spec"], wanted)


def _all(client: "Client") -> list[dict[str, Any]]:
    """Return all records at one revision, in order of time."""
    items = []
    whole = False
    with client.stream("/v1/snapshot", query={"kind": "audit"}, quiet_seconds=QUIET_SECONDS) as answer:
        for line in answer:
            value = json.loads(line)
            whole = whole or "end" in value
            if "meta" in value:
                items.append(value)
    if not whole:
        raise Unavailable("the connection ended before all audit records were received", hint="try again")
    return sorted(items, key=lambda item: (item["spec"]["at"], item["meta"]["name"]))


def _show(spec: dict[str, Any], wanted: str | None) -> None:
    token = f" (token {spec['token']})" if spec.get("token") else ""
    place = f" from {spec['address']}" if spec.get("address") else ""
    click.echo(f"{moment(spec['at'])}  {spec['identity']}{token}{place}  {spec['verb']}  {spec['about']}")
    entries = [each for each in spec.get("entries", ()) if wanted in {None, each["about"]}]
    for entry in entries:
        if len(entries) > 1 or entry["about"] != spec["about"]:
            click.echo(f"    {entry['verb']}  {entry['about']}")
        for change in entry.get("changes", ()):
            before, after = change.get("before", "-"), change.get("after", "-")
            click.echo(f"        {change['path']}: {before} → {after}")
        if entry.get("omitted"):
            click.echo(f"        … {entry['omitted']} more fields")


def _verify(items: list[dict[str, Any]], head: str, output: str) -> None:
    from mandor.model.audit import verify

    verdict = verify(items, head=head)
    if output in {"json", "yaml"}:
        fields = ("records", "unsealed", "expired", "head", "faults")
        show_data({name: getattr(verdict, name) for name in fields}, output)
    else:
        click.echo(
            f"{verdict.records} records verified, {verdict.unsealed} not sealed yet, {verdict.expired} expired earlier"
        )
        click.echo(f"head: {verdict.head or '-'}")
        for fault in verdict.faults[:50]:
            click.echo(f"FAULT: {fault}", err=True)
        if len(verdict.faults) > 50:
            click.echo(f"FAULT: and {len(verdict.faults) - 50} more", err=True)
    if verdict.faults:
        raise SystemExit(1)
