"""The command `mandor`: its commands are imported when they are called."""

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
    "apply": Entry("Work", "manifest", "Make the cluster hold what manifests say."),
    "plan": Entry("Work", "plan", "Tell what a change would do, before anything is changed."),
    "simulate": Entry("Work", "simulate", "Rehearse a scenario on a virtual clock."),
    "diff": Entry("Work", "manifest", "Show what an apply would change."),
    "delete": Entry("Work", "manifest", "Delete objects, by name or by manifest."),
    "import": Entry("Work", "importing", "Print the manifests that files of other tools stand for."),
    "scale": Entry("Work", "change", "Set how many instances a workload has."),
    "restart": Entry("Work", "change", "Replace all instances of a workload by new ones."),
    "rollout": Entry("Work", "rollout", "Follow a roll-out; pause, promote, undo it."),
    "spare": Entry("Work", "spare", "Prepare spare machines for an upgrade."),
    "vm": Entry("Work", "vm", "Find machines for virtual machines; confirm, call off."),
    "get": Entry("Look", "get", "Show objects, in a table or as JSON or YAML."),
    "top": Entry("Look", "top", "Show the cluster in the terminal, live."),
    "describe": Entry("Look", "describe", "Tell the story of one object."),
    "explain": Entry("Look", "explain", "Tell why an instance has no node, or the one it has."),
    "logs": Entry("Look", "logs", "Show what an instance writes."),
    "exec": Entry("Look", "execute", "Run a command inside an instance."),
    "events": Entry("Look", "events", "Show what happened, and why."),
    "audit": Entry("Look", "audit", "Show who changed what, from what to what."),
    "cordon": Entry("Nodes", "node", "Place nothing new on nodes."),
    "uncordon": Entry("Nodes", "node", "Place work on nodes again."),
    "drain": Entry("Nodes", "drain", "Empty nodes: everything there goes elsewhere."),
    "taint": Entry("Nodes", "node", "Keep work away from nodes, or drive it off."),
    "label": Entry("Nodes", "node", "Give nodes labels, or take them away."),
    "rebalance": Entry("Nodes", "rebalance", "Move the few instances that would stand best elsewhere."),
    "image": Entry("Nodes", "image", "Load images into nodes, and list what they have."),
    "login": Entry("Keep", "login", "Log in with the OpenID provider of the servers."),
    "logout": Entry("Keep", "login", "Forget the login for these servers."),
    "auth": Entry("Keep", "auth", "Show who you are, and what you may do."),
    "token": Entry("Keep", "token", "Make, list and revoke tokens."),
    "ca": Entry("Keep", "ca", "Show and rotate the cluster's authority."),
    "secrets": Entry("Keep", "secrets", "List and rotate the keys that seal secrets."),
    "webhook": Entry("Keep", "webhook", "Try receivers of events out, and see what they were sent."),
    "backup": Entry("Keep", "backup", "Save all state of the cluster in a file."),
    "restore": Entry("Keep", "backup", "Put saved state into an empty store."),
    "recover": Entry("Keep", "recover", "Rebuild a damaged store from what can be read."),
    "doctor": Entry("Keep", "doctor", "Examine the cluster, and tell what to do."),
    "debug": Entry("Other", "debug", "Look for defects of mandor itself."),
    "bench": Entry("Other", "bench", "Measure how fast instances find their nodes."),
    "schema": Entry("Other", "info", "Print the JSON Schema of manifests, for editors."),
    "completion": Entry("Other", "completion", "Print a script that completes commands in a shell."),
    "version": Entry("Other", "info", "Show the versions of this program and of the cluster."),
}


class LazyGroup(click.Group):
    """Knows what its commands are called and what they do, without loading them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"mandor.cli.commands.{entry.module}")
        found: click.Command = getattr(module, f"{cmd_name}_command")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from mandor.lib.words import did_you_mean

            raise click.UsageError(f"there is no command {name!r}; {did_you_mean(name, COMMANDS)}", ctx)
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
    epilog="`mandor COMMAND --help` explains a command. Data goes to stdout, talk to stderr; "
    "exit status 0: done, 1: failed, 2: wrong usage.",
)
@click.option("--server", metavar="URL[,URL…]", envvar="MANDOR_SERVER", help="The cluster's API servers.")
@click.option("--token", envvar="MANDOR_TOKEN", help="Who you are; better given as MANDOR_TOKEN.")
@click.option("--ca", metavar="FILE", envvar="MANDOR_CA", help="Certificates to trust, for https.")
@click.version_option(__version__, "--version", prog_name="mandor", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, server: str | None, token: str | None, ca: str | None) -> None:
    """Places and runs any kind of work on any kind of engine."""
    ctx.obj = {"server": server, "token": token, "ca": ca}


def main(arguments: list[str] | None = None) -> None:
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """The exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        result = cli.main(arguments, prog_name="mandor", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.UsageError as error:
        _tell_usage(error)
        return 2
    except click.ClickException as error:
        _say("error", error.format_message())
        return 1
    except MandorError as error:
        _tell(error)
        return 1
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # Whoever read us has enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


def _tell_usage(error: click.UsageError) -> None:
    _say("error", error.format_message())
    if error.ctx is not None:
        _say("hint", f"`{error.ctx.command_path} --help` explains it")


def _tell(error: MandorError) -> None:
    """Every mistake of a manifest with its file and line; of everything else the one message."""
    mistakes = error.facts.get("errors")
    if isinstance(mistakes, list) and mistakes and all(isinstance(each, dict) for each in mistakes):
        for each in mistakes:
            _say("error", _place(each) + str(each.get("message")))
            if each.get("hint"):
                _say("hint", str(each["hint"]))
        return
    _say("error", _place(error.facts) + error.message)
    if error.hint:
        _say("hint", error.hint)


def _place(facts: dict[str, Any]) -> str:
    if not facts.get("line"):
        return ""
    return f"{facts.get('file') or 'line'}:{facts['line']}: " if facts.get("file") else f"line {facts['line']}: "


def _say(word: str, text: str) -> None:
    colour = {"error": "red", "hint": "cyan"}[word]
    click.echo(f"{click.style(f'{word}:', fg=colour, bold=True)} {text}", err=True)


if __name__ == "__main__":
    main()
