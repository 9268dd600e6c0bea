"""The `mandor` program. Modules of commands are imported when a command is called."""

import os
import sys
from importlib import import_module
from typing import Any, NamedTuple

import click

from mandor import __version__
from mandor.errors import MandorError


class Entry(NamedTuple):
    section: str
    module: str
    help: str


COMMANDS: dict[str, Entry] = {
    "dev": Entry("Run a cluster", "serve", "Run a whole cluster on this machine."),
    "server": Entry("Run a cluster", "serve", "Run a server of the control plane."),
    "agent": Entry("Run a cluster", "serve", "Run the agent of this node."),
    "gateway": Entry("Run a cluster", "gateway", "Run a gateway, which serves routes."),
    "apply": Entry("Workloads", "manifest", "Create or update objects from manifests."),
    "plan": Entry("Workloads", "plan", "Preview what a change would do."),
    "simulate": Entry("Workloads", "simulate", "Simulate a scenario on a virtual clock."),
    "diff": Entry("Workloads", "manifest", "Show the differences that an apply would make."),
    "delete": Entry("Workloads", "manifest", "Delete objects, by name or by manifest."),
    "import": Entry("Workloads", "importing", "Convert files of other tools to manifests."),
    "scale": Entry("Workloads", "change", "Set the number of instances of a workload."),
    "restart": Entry("Workloads", "change", "Replace all instances of a workload."),
    "rollout": Entry("Workloads", "rollout", "Watch, pause, promote, abort or undo a rollout."),
    "spare": Entry("Workloads", "spare", "Prepare spare machines for an upgrade."),
    "vm": Entry("Workloads", "vm", "Place virtual machines on hosts; confirm or cancel them."),
    "get": Entry("Inspect", "get", "Show objects, in a table or as JSON or YAML."),
    "top": Entry("Inspect", "top", "Show a live view of the cluster in the terminal."),
    "describe": Entry("Inspect", "describe", "Show one object in detail, with its events."),
    "explain": Entry("Inspect", "explain", "Explain why an instance is pending, or why it is on its node."),
    "logs": Entry("Inspect", "logs", "Show the logs of an instance."),
    "exec": Entry("Inspect", "execute", "Run a command inside an instance."),
    "open": Entry("Inspect", "open", "Open the URL of a route, service, workload or instance."),
    "port-forward": Entry("Inspect", "forward", "Forward local ports to an instance or a service."),
    "events": Entry("Inspect", "events", "Show events."),
    "audit": Entry("Inspect", "audit", "Show and verify the audit log."),
    "cordon": Entry("Nodes", "node", "Close nodes for new instances."),
    "uncordon": Entry("Nodes", "node", "Reopen nodes for new instances."),
    "drain": Entry("Nodes", "drain", "Move all instances off nodes."),
    "stop-held": Entry("Nodes", "held", "Stop instances that nodes hold after a restore."),
    "taint": Entry("Nodes", "node", "Add or remove taints of nodes."),
    "label": Entry("Nodes", "node", "Add or remove labels of nodes."),
    "rebalance": Entry("Nodes", "rebalance", "Move the instances that gain most on other nodes."),
    "pool": Entry("Nodes", "pool", "Remove the records of ordered machines that do not exist."),
    "image": Entry("Nodes", "image", "Load images into nodes, and list their images."),
    "login": Entry("Administer", "login", "Log in with the OpenID provider of the servers."),
    "logout": Entry("Administer", "login", "Delete the login for these servers."),
    "auth": Entry("Administer", "auth", "Show your identity and permissions."),
    "token": Entry("Administer", "token", "Create, list, rotate and revoke tokens."),
    "ca": Entry("Administer", "ca", "Show and rotate the cluster's certificate authority."),
    "secrets": Entry("Administer", "secrets", "List and rotate the keys that encrypt secrets."),
    "webhook": Entry("Administer", "webhook", "Test receivers of events, and show their deliveries."),
    "backup": Entry("Administer", "backup", "Save the state of the cluster to a file."),
    "restore": Entry("Administer", "backup", "Restore saved state into an empty store."),
    "recover": Entry("Administer", "recover", "Rebuild a damaged store from its readable parts."),
    "doctor": Entry("Administer", "doctor", "Check the cluster for problems."),
    "debug": Entry("Other", "debug", "Diagnose mandor itself."),
    "bench": Entry("Other", "bench", "Measure scheduling throughput and latency."),
    "schema": Entry("Other", "info", "Print the JSON Schema of manifests, for editors."),
    "completion": Entry("Other", "completion", "Print a shell completion script."),
    "version": Entry("Other", "info", "Show the versions of this program and of the cluster."),
}


class LazyGroup(click.Group):
    """A group that lists its commands and their help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"mandor.cli.commands.{entry.module}")
        found: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from mandor.lib.words import did_you_mean

            raise click.UsageError(f"unknown command {name!r}; {did_you_mean(name, COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in COMMANDS.items():
            sections.setdefault(entry.section, []).append((name, entry.help))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows, col_max=14)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=COMMANDS[name].help) for name in COMMANDS if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="`mandor COMMAND --help` explains a command. Data is written to stdout, messages to stderr. "
    "Exit status: 0 success, 1 failure, 2 wrong usage.",
)
@click.option("--server", metavar="URL[,URL…]", envvar="MANDOR_SERVER", help="URLs of the API servers.")
@click.option("--token", envvar="MANDOR_TOKEN", help="API token; prefer the variable MANDOR_TOKEN.")
@click.option("--ca", metavar="FILE", envvar="MANDOR_CA", help="CA certificates for https, in PEM format.")
@click.version_option(__version__, "--version", prog_name="mandor", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, server: str | None, token: str | None, ca: str | None) -> None:
    """Mandor schedules and runs workloads on any engine: containers, virtual machines, processes."""
    ctx.obj = {"server": server, "token": token, "ca": ca}


def main(arguments: list[str] | None = None) -> None:
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted."""
    try:
        result = cli.main(arguments, prog_name="mandor", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.UsageError as error:
        _print_usage_error(error)
        return 2
    except click.ClickException as error:
        _print("error", error.format_message())
        return 1
    except MandorError as error:
        _print_error(error)
        return 1
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # The reader of the pipe closed it. Python would report the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


def _print_usage_error(error: click.UsageError) -> None:
    _print("error", error.format_message())
    if error.ctx is not None:
        _print("hint", f"see `{error.ctx.command_path} --help`")


def _print_error(error: MandorError) -> None:
    """Print every error of a manifest with its file and line, or the single message of any other error, then the
    error code.
    """
    mistakes = error.facts.get("errors")
    if isinstance(mistakes, list) and mistakes and all(isinstance(each, dict) for each in mistakes):
        for each in mistakes:
            _print("error", _place(each) + str(each.get("message")))
            if each.get("hint"):
                _print("hint", str(each["hint"]))
        _print("code", error.code)
        return
    _print("error", _place(error.facts) + error.message)
    if error.hint:
        _print("hint", error.hint)
    _print("code", error.code)


def _place(facts: dict[str, Any]) -> str:
    if not facts.get("line"):
        return ""
    return f"{facts.get('file') or 'line'}:{facts['line']}: " if facts.get("file") else f"line {facts['line']}: "


def _print(word: str, text: str) -> None:
    colour = {"error": "red", "hint": "cyan", "code": "bright_black"}[word]
    click.echo(f"{click.style(f'{word}:', fg=colour, bold=True)} {text}", err=True)


if __name__ == "__main__":
    main()
