"""`mandor dev`, `server`, `agent`: read the options, and run."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_data_option = click.option("--data", metavar="DIR", help="Where everything is kept.  [default: ./.mandor]")
_config_option = click.option("--config", metavar="FILE", help="Settings as TOML: [server] and [agent].")


def _log_options(command: F) -> F:
    style = click.option(
        *("--log-format", "--log-style", "log_style"),
        type=click.Choice(["console", "json"]),
        help="For people or for machines.",
    )
    level = click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much is told."
    )
    return style(level(command))


def _trace_options(command: F) -> F:
    url = click.option("--otlp-traces", metavar="URL", help="The OTLP receiver for traces: http://HOST:4318.")
    share = click.option("--trace-share", metavar="PERCENT", help="How many traces are recorded.  [default: 100%]")
    return url(share(command))


@click.command("dev")
@click.option("--data", metavar="DIR", default=".mandor", show_default=True, help="Where everything is kept.")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where to listen.")
@click.option("--nodes", type=int, default=1, show_default=True, help="How many agents to run.")
@click.option("--record", metavar="FILE", help="Record what happens, for `mandor simulate --replay`.")
@_trace_options
@click.option("--stop", is_flag=True, help="End everything that an earlier one left running, instead.")
def dev_command(
    data: str,
    listen: str,
    nodes: int,
    record: str | None,
    otlp_traces: str | None,
    trace_share: str | None,
    stop: bool,
) -> None:
    """Run a whole cluster on this machine.

    Server and agents run until Ctrl-C; the work they started goes on and is taken up by the next start, unless
    `mandor dev --stop` ends it. It listens on this machine only and asks for no token.
    """
    from mandor.roots import dev
    from mandor.roots.settings import split_address

    try:
        split_address(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    if stop:
        dev.stop(data=data, say=_say)
    else:
        traces = dev.Traces(otlp_traces or "", trace_share or "")
        dev.run(data=data, listen=listen, nodes=nodes, record=record or "", traces=traces, say=_say)


@click.command("server")
@_config_option
@_data_option
@click.option("--listen", metavar="HOST:PORT", help="Where to listen.  [default: 127.0.0.1:8080]")
@click.option("--address", metavar="URL", help="Under which agents reach this very server.")
@click.option(
    "--store", metavar="URL", help="sqlite:PATH, etcd://HOST:PORT,…/PREFIX or etcds://…  [default: SQLite in --data]"
)
@click.option("--store-ca", metavar="FILE", help="Certificates to trust, for etcds.")
@click.option("--store-cert", metavar="FILE", help="Our certificate for the store.")
@click.option("--store-key", metavar="FILE", help="Our key for the store.")
@click.option("--store-user", metavar="NAME", help="Our name at the store.")
@click.option("--store-password-file", metavar="FILE", help="Our password at the store.")
@click.option("--accept-older-store", is_flag=True, default=None, help="Start on a store that holds less than before.")
@click.option("--tls", is_flag=True, default=None, help="TLS on loopback, too; elsewhere it is always so.")
@click.option("--tls-name", metavar="HOST", multiple=True, help="Another name of this server, for its certificate.")
@click.option("--tls-cert", metavar="FILE", help="Our certificate for callers.  [default: the authority issues it]")
@click.option("--tls-key", metavar="FILE", help="Our key for callers.")
@click.option("--ca-cert", metavar="FILE", help="An authority of yours.  [default: the cluster has its own]")
@click.option("--ca-key", metavar="FILE", help="Its key.")
@click.option("--certificate-life", metavar="DURATION", help="Of the certificates of nodes.  [default: 24h]")
@click.option(
    "--roles", metavar="ROLE[,ROLE]", multiple=True, help="Of api, scheduler, controllers, tasks.  [default: all]"
)
@click.option("--suspect-after", metavar="DURATION", help="Silence after which a node gets no work.  [default: 20s]")
@click.option("--lost-after", metavar="DURATION", help="Silence after which a node's work is replaced.  [default: 60s]")
@click.option("--mass-share", metavar="PERCENT", help="More of a pool silent is a broken network.  [default: 50%]")
@click.option("--lease", metavar="DURATION", help="Silence after which another server leads.  [default: 10s]")
@click.option("--secrets-key", metavar="FILE", help="The key that seals secrets, shared by all servers.")
@click.option("--secrets-key-command", metavar="COMMAND", help="A program that writes that key to its output.")
@click.option("--audit-keep", metavar="DURATION", help="How long audit records are kept.  [default: 90d]")
@click.option("--audit-most", metavar="SIZE", help="How many bytes of audit records are kept.  [default: 128Mi]")
@click.option("--audit-files", metavar="DIR", help="Where log sinks may write audit records on this server.")
@click.option("--image-most", metavar="SIZE", help="How large an image to be loaded may be.  [default: 32Gi]")
@click.option("--requests-each", type=int, metavar="COUNT", help="Requests of one identity a second.  [default: 5000]")
@click.option("--streams-most", type=int, metavar="COUNT", help="Watches and logs open at once.  [default: 20000]")
@click.option("--streams-each", type=int, metavar="COUNT", help="Of one identity.  [default: 2000]")
@click.option("--connections-most", type=int, metavar="COUNT", help="Connections open at once.  [default: 50000]")
@click.option("--connections-each", type=int, metavar="COUNT", help="Of one address, without a token.  [default: 500]")
@click.option("--head-timeout", metavar="DURATION", help="For the headers of a request.  [default: 10s]")
@click.option("--body-timeout", metavar="DURATION", help="For the body of a request.  [default: 60s]")
@click.option("--idle-timeout", metavar="DURATION", help="For a connection without a request.  [default: 30s]")
@click.option("--pools", metavar="POOL[,POOL]", multiple=True, help="What this scheduler owns.  [default: all]")
@click.option("--credential-age", metavar="DURATION", help="When agents renew their credentials.  [default: 30d]")
@click.option(
    "--restore-after", metavar="DURATION", help="How long a rule is keepable before its work moves.  [default: 60s]"
)
@click.option("--prometheus", metavar="URL[,URL]", multiple=True, help="The only ones asked for metrics.")
@click.option("--egress-allow", metavar="HOST[,HOST]", multiple=True, help="Hosts that objects may name.  [default: *]")
@click.option("--secret-files", metavar="DIR", help="The folder of the files that objects may name.")
@click.option("--machine-servers", metavar="URL[,URL]", multiple=True, help="Where ordered machines find the API.")
@click.option("--machine-ca", metavar="FILE", help="Certificates that ordered machines trust.")
@click.option("--identity-issuer", metavar="URL", help="The issuer of workload identities.  [default: --address]")
@click.option("--oidc-issuer", metavar="URL", help="The OpenID provider that people log in with.")
@click.option("--oidc-client-id", metavar="ID", help="Our client id there; ID tokens must be for it.")
@click.option("--oidc-username-claim", metavar="CLAIM", help="The claim that names a user.  [default: sub]")
@click.option("--oidc-groups-claim", metavar="CLAIM", help="The claim that lists groups.  [default: groups]")
@click.option("--oidc-ca", metavar="FILE", help="Certificates to trust for the provider.")
@click.option("--oidc-scopes", metavar="SCOPE[,SCOPE]", multiple=True, help="What `mandor login` asks for.")
@click.option("--inventory", metavar="URL|FILE", help="Lists machines for virtual machines.  [default: own nodes]")
@click.option("--inventory-every", metavar="DURATION", help="How often it is asked.  [default: 30s]")
@click.option("--pipelines", metavar="FILE", help="How spare machines are made, for each cluster.")
@click.option("--task-queue", metavar="URL", help="RabbitMQ for tasks: amqp://…  [default: within the process]")
@click.option("--task-attempts", type=int, metavar="COUNT", help="Tries to find a machine.  [default: 4]")
@click.option("--task-pause", metavar="DURATION", help="Before the second try; then it doubles.  [default: 1s]")
@click.option("--scheduler-config", metavar="FILE", help="Scheduler profiles, as in KubeSchedulerConfiguration.")
@click.option("--record", metavar="FILE", help="Record what happens, for `mandor simulate --replay`.")
@click.option("--record-most", metavar="SIZE", help="How large the recording may get.  [default: 64Mi]")
@click.option("--backup-dir", metavar="DIR", help="Save the whole cluster there, by itself.")
@click.option("--backup-every", metavar="DURATION", help="How often.  [default: 6h]")
@click.option("--backup-keep", metavar="COUNT", type=int, help="How many of the newest to keep.  [default: 28]")
@click.option("--plugins", metavar="DIR", help="Scheduler plugins: every .py file there is run.")
@click.option("--plugin-hang", metavar="DURATION", help="A plugin that hangs so long is disabled.  [default: 30s]")
@_trace_options
@_log_options
def server_command(
    config: str | None,
    roles: tuple[str, ...],
    pools: tuple[str, ...],
    prometheus: tuple[str, ...],
    machine_servers: tuple[str, ...],
    oidc_scopes: tuple[str, ...],
    tls_name: tuple[str, ...],
    egress_allow: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run a server of the control plane.

    Each option is also a setting in the file (`listen`, `store_ca` …) and in the environment (MANDOR_LISTEN,
    MANDOR_STORE_CA …); an option wins over the environment, the environment over the file.
    """
    from mandor.roots import server
    from mandor.roots.settings import ServerSettings, load

    flags |= {"roles": _split(roles), "pools": _split(pools), "prometheus": _split(prometheus)}
    flags |= {"machine_servers": _split(machine_servers), "oidc_scopes": _split(oidc_scopes)}
    flags["tls_name"] = _split(tls_name)
    flags["egress_allow"] = _split(egress_allow)
    server.run(load(ServerSettings, "server", file=config, environ=os.environ, flags=flags))


@click.command("agent")
@_config_option
@_data_option
@click.option("--server", metavar="URL[,URL…]", multiple=True, help="The API servers.")
@click.option("--server-ca", metavar="FILE", help="Certificates to trust, for https.")
@click.option("--name", help="The node's name.  [default: the host's]")
@click.option("--join-token", metavar="TOKEN", help="Lets a new node join; better in a file.")
@click.option("--join-token-file", metavar="FILE", help="Where the join token stands.")
@click.option("--engine", metavar="NAME", multiple=True, help="An engine to offer, several times.  [default: all]")
@click.option(
    "--engine-option",
    metavar="ENGINE.KEY=VALUE",
    multiple=True,
    help="How an engine is reached: docker.socket=PATH, incus.url=URL …, several times.",
)
@click.option("--label", metavar="KEY=VALUE", multiple=True, help="For the node when it first joins, several times.")
@click.option("--pool", metavar="NAME", help="The node's pool, when it first joins.  [default: the token's]")
@click.option("--address", metavar="HOST", help="Where others reach this machine.  [default: found by itself]")
@click.option("--allow-host-path", metavar="DIR", multiple=True, help="A folder that tasks may mount, several times.")
@click.option(
    "--egress-allow", metavar="HOST", multiple=True, help="A host for log sinks, several times.  [default: *]"
)
@click.option("--secret-files", metavar="DIR", help="The folder of the files that log sinks may name.")
@click.option("--capacity", metavar="WHAT=AMOUNT", multiple=True, help="cpu=2, memory=4Gi …: part of the machine.")
@click.option("--device", metavar="KIND=COUNT", multiple=True, help="gpu=4, nvidia/gpu=4 …: what tasks may ask for.")
@click.option("--port-range", metavar="FIRST-LAST", help="Ports to choose from, for tasks.  [default: 20000-32000]")
@click.option(
    "--pressure",
    metavar="WHAT=SOFT:HARD[:GRACE]",
    multiple=True,
    help="memory=6%:3%:60s, disk=10%:5%:2m, inodes=off …: what must be left, or instances go.",
)
@click.option("--names/--no-names", default=None, help="Hosts files for instances.  [default: names]")
@click.option("--heartbeat", metavar="DURATION", help="How often it says that it lives.  [default: 10s]")
@click.option("--metrics", metavar="HOST:PORT", help="Where Prometheus reads /metrics.  [default: nowhere]")
@click.option("--otlp", metavar="URL", help="The OTLP receiver that tasks are told of.  [default: none]")
@_trace_options
@_log_options
def agent_command(
    config: str | None,
    server: tuple[str, ...],
    engine: tuple[str, ...],
    engine_option: tuple[str, ...],
    label: tuple[str, ...],
    allow_host_path: tuple[str, ...],
    capacity: tuple[str, ...],
    device: tuple[str, ...],
    pressure: tuple[str, ...],
    egress_allow: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run the agent of this node.

    Each option is also a setting in the file (`join_token_file` …) and in the environment (MANDOR_JOIN_TOKEN_FILE
    …); an option wins over the environment, the environment over the file.
    """
    from mandor.roots import agent
    from mandor.roots.settings import AgentRootSettings, load

    shared = (click.get_current_context().find_root().obj or {}).get("server")
    flags |= {"server": _split(server or ((shared,) if shared else ())), "engine": _split(engine), "label": list(label)}
    flags |= {
        "egress_allow": _split(egress_allow),
        "allow_host_path": list(allow_host_path),
        "engine_option": list(engine_option),
    }
    flags |= {"capacity": _split(capacity), "device": _split(device), "pressure": _split(pressure)}
    agent.run(load(AgentRootSettings, "agent", file=config, environ=os.environ, flags=flags))


def _split(words: tuple[str, ...]) -> list[str]:
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def _say(text: str) -> None:
    click.echo(text, err=True)
