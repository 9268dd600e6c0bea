"""`mandor login` and `mandor logout`: authentication with an OpenID provider."""

import contextlib
import time
from typing import TYPE_CHECKING

import click

from mandor.cli.options import connected
from mandor.errors import Invalid, MandorError

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.command("login")
@click.option("--device", is_flag=True, help="Confirm a code on another machine, for terminals without a browser.")
@click.option("--no-browser", is_flag=True, help="Print the URL instead of opening a browser.")
@click.option("--provider-ca", default="", metavar="FILE", help="CA certificates for the provider.")
@connected
def login_command(client: "Client", device: bool, no_browser: bool, provider_ca: str) -> None:
    """Log in with the OpenID provider of the servers.

    The login is stored and used by later commands.
    """
    from mandor.client.login import Provider
    from mandor.client.logins import write_login

    about = client.read("/v1/login")
    if not about.get("issuer"):
        raise Invalid("the cluster has no OpenID provider", hint="use a token (MANDOR_TOKEN or --token)")
    scopes = tuple(about.get("scopes", ())) or ("openid",)
    provider = Provider.find(about["issuer"], about["client_id"], scopes, provider_ca)
    shown = _print_url if no_browser else _open_url
    tokens = provider.by_device(_show_code) if device else provider.by_browser(shown)
    kept = {"issuer": provider.issuer, "client_id": provider.client_id, "scopes": list(scopes)}
    write_login(str(client.servers[0]), {**kept, "provider_ca": provider_ca, **tokens})
    client.token = tokens["id_token"]
    you = client.read("/v1/whoami")
    left = max(0, int(tokens["expires_at"] - time.time()))
    renewed = "renewed automatically" if "refresh_token" in tokens else f"valid for {left // 60} minutes"
    click.echo(f"logged in as {you['identity']} ({you['role']}); the login is {renewed}")
    if not you["rules"]:
        click.echo("no role binding matches you or your groups; ask an admin to create one", err=True)


@click.command("logout")
@connected
def logout_command(client: "Client") -> None:
    """Delete the login for these servers.

    The refresh token is revoked at the provider.
    """
    from mandor.client.login import Provider
    from mandor.client.logins import read_login, write_login

    server = str(client.servers[0])
    login = read_login(server)
    if login is None:
        click.echo(f"no login for {server}", err=True)
        return
    write_login(server, None)
    if login.get("refresh_token"):
        # The login is deleted in any case; if the provider is unreachable, the token expires there.
        with contextlib.suppress(MandorError):
            provider = Provider.find(
                login["issuer"], login["client_id"], tuple(login["scopes"]), login.get("provider_ca", "")
            )
            provider.revoke(str(login["refresh_token"]))
    click.echo(f"logged out of {server}")


def _show_code(url: str, code: str) -> None:
    click.echo(f"open {url} on any machine and confirm the code {code}", err=True)


def _print_url(url: str) -> None:
    click.echo(f"open {url}", err=True)


def _open_url(url: str) -> None:
    import webbrowser

    click.echo(f"opening a browser; if none opens, visit {url}", err=True)
    webbrowser.open(url)
