"""`mandor dev`, `mandor server` and `mandor agent`: read the options and start."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def _split(words: Sequence[str]) -> list[str]:
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def _list_option(name: str, **given: Any) -> Callable[[F], F]:
    """Return a repeatable option whose values may also be separated by commas."""
    return click.option(name, multiple=True, callback=lambda _context, _option, words: _split(words), **given)


_data_option = click.option("--data", metavar="DIR", help="Data directory.  [default: ./.mandor]")
_config_option = click.option("--config", metavar="FILE", help="Settings file in TOML with [server] and [agent].")


def _log_options(command: F) -> F:
    style = click.option(
        *("--log-format", "--log-style", "log_style"),
        type=click.Choice(["console", "json"]),
        help="Format of log lines.",
    )
    level = click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Minimum level of log lines."
    )
    return style(level(command))


def _trace_options(command: F) -> F:
    url = click.option("--otlp-traces", metavar="URL", help="OTLP receiver for traces: http://HOST:4318.")
    share = click.option("--trace-share", metavar="PERCENT", help="Share of requests that are traced.  [default: 100%]")
    return url(share(command))


@click.command("dev")
@click.option("--data", metavar="DIR", default=".mandor", show_default=True, help="Data directory.")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Address to listen on."
)
@click.option("--nodes", type=int, default=1, show_default=True, help="Number of agents.")
@click.option("--allow-host-path", metavar="DIR", multiple=True, help="Host path that tasks may mount; repeatable.")
@click.option(
    "--scheduler-config", metavar="FILE", help="Scheduler profiles in the format of KubeSchedulerConfiguration."
)
@click.option("--plugins", metavar="DIR", help="Directory with scheduler plugins (.py files).")
@click.option("--record", metavar="FILE", help="Record the cluster, for `mandor simulate --replay`.")
@_trace_options
@click.option("--stop", is_flag=True, help="Stop all instances left running by an earlier start, instead.")
def dev_command(
    data: str,
    listen: str,
    nodes: int,
    allow_host_path: tuple[str, ...],
    scheduler_config: str | None,
    plugins: str | None,
    record: str | None,
    otlp_traces: str | None,
    trace_share: str | None,
    stop: bool,
) -> None:
    """Run a whole cluster on this machine.

    Server and agents run until Ctrl-C. The instances continue to run and are adopted by the next start, unless
    `mandor dev --stop` stops them. The API listens on loopback only and requires no token.
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
        extras = dev.Extras(
            record=record or "",
            scheduler_config=scheduler_config or "",
            plugins=plugins or "",
            host_paths=allow_host_path,
            traces=dev.Traces(otlp_traces or "", trace_share or ""),
        )
        dev.run(data=data, listen=listen, nodes=nodes, extras=extras, say=_say)


@click.command("server")
@_config_option
@_data_option
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on.  [default: 127.0.0.1:8080]")
@click.option("--address", metavar="URL", help="URL at which agents reach this server.")
@click.option(
    "--store", metavar="URL", help="sqlite:PATH, etcd://HOST:PORT,…/PREFIX or etcds://…  [default: SQLite in --data]"
)
@click.option("--store-ca", metavar="FILE", help="CA certificates for etcds.")
@click.option("--store-cert", metavar="FILE", help="Client certificate for the store.")
@click.option("--store-key", metavar="FILE", help="Client key for the store.")
@click.option("--store-user", metavar="NAME", help="User name for the store.")
@click.option("--store-password-file", metavar="FILE", help="File with the password for the store.")
@click.option(
    "--accept-older-store", is_flag=True, default=None, help="Start even if the store is older than it was before."
)
@click.option("--tls", is_flag=True, default=None, help="Use TLS on loopback, too; other addresses always use it.")
@_list_option("--tls-name", metavar="HOST", help="Additional name in the server's certificate.")
@click.option("--tls-cert", metavar="FILE", help="Server certificate.  [default: issued by the authority]")
@click.option("--tls-key", metavar="FILE", help="Server key.")
@click.option("--ca-cert", metavar="FILE", help="Certificate of your own authority.  [default: the cluster's]")
@click.option("--ca-key", metavar="FILE", help="Key of your own authority.")
@click.option("--certificate-life", metavar="DURATION", help="Validity of node certificates.  [default: 24h]")
@_list_option(
    "--roles",
    metavar="ROLE[,ROLE]",
    help="Roles of this server: api, scheduler, controllers, tasks.  [default: all]",
)
@click.option(
    "--suspect-after", metavar="DURATION", help="Time without heartbeats after which a node is Suspect.  [default: 20s]"
)
@click.option(
    "--lost-after", metavar="DURATION", help="Time without heartbeats after which instances are Lost.  [default: 60s]"
)
@click.option(
    "--mass-share", metavar="PERCENT", help="Share of silent nodes that counts as a network failure.  [default: 50%]"
)
@click.option("--lease", metavar="DURATION", help="Validity of the leader's lease.  [default: 10s]")
@click.option("--secrets-key", metavar="FILE", help="File with the master key of secrets, shared by all servers.")
@click.option("--secrets-key-command", metavar="COMMAND", help="Command that prints the master key.")
@click.option("--audit-keep", metavar="DURATION", help="Retention time of audit records.  [default: 90d]")
@click.option("--audit-most", metavar="SIZE", help="Maximum size of stored audit records.  [default: 128Mi]")
@click.option("--audit-files", metavar="DIR", help="Directory for audit records written by log sinks.")
@click.option("--image-most", metavar="SIZE", help="Maximum size of a loaded image.  [default: 32Gi]")
@click.option("--requests-each", type=int, metavar="COUNT", help="Requests per second and identity.  [default: 5000]")
@click.option(
    "--streams-most", type=int, metavar="COUNT", help="Maximum number of open watches and logs.  [default: 20000]"
)
@click.option("--streams-each", type=int, metavar="COUNT", help="Maximum number per identity.  [default: 2000]")
@click.option(
    "--connections-most", type=int, metavar="COUNT", help="Maximum number of open connections.  [default: 50000]"
)
@click.option(
    "--connections-each", type=int, metavar="COUNT", help="Maximum number per address without a token.  [default: 500]"
)
@click.option("--head-timeout", metavar="DURATION", help="Time limit for the headers of a request.  [default: 10s]")
@click.option("--body-timeout", metavar="DURATION", help="Time limit for the body of a request.  [default: 60s]")
@click.option("--idle-timeout", metavar="DURATION", help="Time limit for idle connections.  [default: 30s]")
@_list_option("--pools", metavar="POOL[,POOL]", help="Pools of this scheduler.  [default: all]")
@click.option(
    "--credential-age", metavar="DURATION", help="Age at which agents renew their credentials.  [default: 30d]"
)
@click.option(
    "--restore-after",
    metavar="DURATION",
    help="Time that a relaxed rule must be satisfiable before a move.  [default: 60s]",
)
@_list_option("--prometheus", metavar="URL[,URL]", help="Allowed Prometheus servers.")
@_list_option(
    "--egress-allow",
    metavar="HOST[,HOST]",
    help="Hosts that the server may call for objects.  [default: *]",
)
@click.option("--secret-files", metavar="DIR", help="Directory of files that objects may refer to.")
@click.option("--acme-directory", metavar="URL", help="ACME directory for the certificates of routes.")
@click.option("--acme-email", metavar="EMAIL", help="Email address of the ACME account.")
@click.option("--acme-agree", is_flag=True, default=None, help="Agree to the terms of the certificate authority.")
@click.option("--acme-ca", metavar="FILE", help="CA certificates for the ACME directory.")
@click.option("--acme-eab-id", metavar="ID", help="Id of the external account at the certificate authority.")
@click.option("--acme-eab-key-file", metavar="FILE", help="File with the key of the external account.")
@_list_option("--machine-servers", metavar="URL[,URL]", help="API URLs for ordered machines.")
@click.option("--machine-ca", metavar="FILE", help="CA certificates for ordered machines.")
@click.option("--identity-issuer", metavar="URL", help="Issuer URL of workload identities.  [default: --address]")
@click.option("--oidc-issuer", metavar="URL", help="OpenID provider for user logins.")
@click.option("--oidc-client-id", metavar="ID", help="Client id at the provider.")
@click.option("--oidc-username-claim", metavar="CLAIM", help="Claim with the user name.  [default: sub]")
@click.option("--oidc-groups-claim", metavar="CLAIM", help="Claim with the groups.  [default: groups]")
@click.option("--oidc-ca", metavar="FILE", help="CA certificates for the provider.")
@_list_option("--oidc-scopes", metavar="SCOPE[,SCOPE]", help="Scopes requested by `mandor login`.")
@click.option("--inventory", metavar="URL|FILE", help="List of hosts for virtual machines.  [default: the nodes]")
@click.option("--inventory-every", metavar="DURATION", help="Interval between reads of the inventory.  [default: 30s]")
@click.option(
    "--vm-dedicated",
    type=click.Choice(["host", "class"]),
    help="Whether a dedicated virtual machine gets a host of its own, or one that is marked.  [default: host]",
)
@click.option("--pipelines", metavar="FILE", help="Pipelines that create spare machines, by cluster.")
@click.option("--task-queue", metavar="URL", help="RabbitMQ for VM requests: amqp://…  [default: in memory]")
@click.option("--task-attempts", type=int, metavar="COUNT", help="Attempts to place a virtual machine.  [default: 4]")
@click.option(
    "--task-pause", metavar="DURATION", help="Delay before the second attempt; doubled each time.  [default: 1s]"
)
@click.option(
    "--scheduler-config", metavar="FILE", help="Scheduler profiles in the format of KubeSchedulerConfiguration."
)
@click.option("--record", metavar="FILE", help="Record the cluster, for `mandor simulate --replay`.")
@click.option("--record-most", metavar="SIZE", help="Maximum size of the recording.  [default: 64Mi]")
@click.option("--backup-dir", metavar="DIR", help="Directory for automatic backups.")
@click.option("--backup-every", metavar="DURATION", help="Interval between backups.  [default: 6h]")
@click.option("--backup-keep", metavar="COUNT", type=int, help="Number of backups to keep.  [default: 28]")
@click.option("--plugins", metavar="DIR", help="Directory with scheduler plugins (.py files).")
@click.option(
    "--plugin-hang", metavar="DURATION", help="Time after which a hanging plugin is disabled.  [default: 30s]"
)
@_trace_options
@_log_options
def server_command(config: str | None, **flags: Any) -> None:
    """Run a server of the control plane.

    Each option is also a setting in the file (`listen`, `store_ca` …) and an environment variable (MANDOR_LISTEN,
    MANDOR_STORE_CA …). Options take precedence over variables, variables over the file.
    """
    from mandor.roots import server
    from mandor.roots.settings import ServerSettings, load

    server.run(load(ServerSettings, "server", file=config, environ=os.environ, flags=flags))


@click.command("agent")
@_config_option
@_data_option
@_list_option("--server", metavar="URL[,URL…]", help="URLs of the API servers.")
@click.option("--server-ca", metavar="FILE", help="CA certificates for https.")
@click.option("--name", help="Name of the node.  [default: the host name]")
@click.option("--join-token", metavar="TOKEN", help="Token to join the cluster; prefer --join-token-file.")
@click.option("--join-token-file", metavar="FILE", help="File with the join token.")
@_list_option("--engine", metavar="NAME", help="Engine to offer; repeatable.  [default: all]")
@click.option(
    "--engine-option",
    metavar="ENGINE.KEY=VALUE",
    multiple=True,
    help="Setting of an engine: docker.socket=PATH, incus.url=URL …; repeatable.",
)
@click.option("--label", metavar="KEY=VALUE", multiple=True, help="Label of the node when it first joins; repeatable.")
@click.option("--pool", metavar="NAME", help="Pool of the node when it first joins.  [default: the token's]")
@click.option("--address", metavar="HOST", help="Address of this machine.  [default: detected]")
@click.option("--allow-host-path", metavar="DIR", multiple=True, help="Host path that tasks may mount; repeatable.")
@_list_option("--egress-allow", metavar="HOST", help="Host that log sinks may use; repeatable.  [default: *]")
@click.option("--secret-files", metavar="DIR", help="Directory of files that log sinks may refer to.")
@_list_option(
    "--capacity",
    metavar="WHAT=AMOUNT",
    help="Capacity to offer, if less than the machine: cpu=2, memory=4Gi …",
)
@_list_option("--device", metavar="KIND=COUNT", help="gpu=4, nvidia/gpu=4 …: what tasks may ask for.")
@click.option("--max-instances", metavar="COUNT", type=int, help="Most instances on this node.  [default: no limit]")
@click.option(
    "--balancer",
    type=click.Choice(["auto", "off", "nftables", "relay"]),
    help="Data path for the virtual addresses of services.  [default: auto]",
)
@click.option(
    "--dns",
    metavar="off|auto|ADDRESS",
    help="Address of the node's name server; auto: from 169.254.53.53 on, needs root.  [default: off]",
)
@_list_option(
    "--dns-upstream",
    metavar="ADDRESS[:PORT]",
    help="Name server for other names; repeatable.  [default: the machine's]",
)
@click.option(
    "--overlay",
    type=click.Choice(["off", "kernel"]),
    help="Data path for networks that span nodes.  [default: off]",
)
@click.option("--port-range", metavar="FIRST-LAST", help="Host ports for `auto`.  [default: 20000-32000]")
@_list_option(
    "--pressure",
    metavar="WHAT=SOFT:HARD[:GRACE]",
    help="Eviction thresholds of free resources: memory=6%:3%:60s, disk=10%:5%:2m, inodes=off …",
)
@click.option("--names/--no-names", default=None, help="Write hosts files for instances.  [default: names]")
@click.option("--heartbeat", metavar="DURATION", help="Interval between heartbeats.  [default: 10s]")
@click.option("--metrics", metavar="HOST:PORT", help="Address that serves /metrics.  [default: none]")
@click.option("--otlp", metavar="URL", help="OTLP receiver passed to tasks.  [default: none]")
@_trace_options
@_log_options
def agent_command(config: str | None, **flags: Any) -> None:
    """Run the agent of this node.

    Each option is also a setting in the file (`join_token_file` …) and an environment variable (MANDOR_JOIN_TOKEN_FILE
    …). Options take precedence over variables, variables over the file.
    """
    from mandor.roots import agent
    from mandor.roots.settings import AgentRootSettings, load

    shared = (click.get_current_context().find_root().obj or {}).get("server")
    flags["server"] = flags["server"] or _split([shared] if shared else [])
    agent.run(load(AgentRootSettings, "agent", file=config, environ=os.environ, flags=flags))


def _say(text: str) -> None:
    click.echo(text, err=True)
