"""The command itself: help, mistakes in typing, exit statuses, and how little it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from mandor.cli.kinds import KINDS, find_kind, split_names
from mandor.cli.main import COMMANDS, LazyGroup, cli, run
from mandor.cli.tables import COLUMNS
from mandor.model import codec
from tests.unit.cli.conftest import Mandor

HEAVY = ("numpy", "rich", "yaml", "msgspec", "aiohttp", "starlette", "uvicorn", "websockets", "asyncio", "ssl")


def test_help_lists_every_command(mandor: Mandor) -> None:
    told = mandor("--help")
    assert told.code == 0
    for name, entry in COMMANDS.items():
        assert f"  {name} " in told.out
        assert entry.help in told.out


def test_help_loads_nothing_but_click() -> None:
    script = (
        "import sys; from mandor.cli.main import run; run(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stderr.split()
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []
    own = {name for name in loaded if name.startswith("mandor")}
    assert own == {"mandor", "mandor.cli", "mandor.cli.main", "mandor.errors"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_of_a_command_is_its_own(name: str) -> None:
    assert isinstance(cli, LazyGroup)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    first = (command.help or "").split("\n\n")[0].replace("\n", " ")
    assert first.startswith(COMMANDS[name].help.rstrip("."))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, mandor: Mandor) -> None:
    told = mandor(name, "--help")
    assert told.code == 0
    assert told.out.startswith(f"Usage: mandor {name}")


def test_every_option_shows_what_it_is_for() -> None:
    def walk(command: click.Command) -> list[str]:
        silent = [
            f"{command.name} {option.opts[0]}"
            for option in command.params
            if isinstance(option, click.Option) and not option.help
        ]
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        return silent + [each for one in inner for each in walk(one)]

    found = [cli.get_command(click.Context(cli), name) for name in COMMANDS]
    assert [text for command in found if command is not None for text in walk(command)] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gte", "nodes"], "did you mean `get`?"),
        (["get", "instnaces"], "did you mean `instances`?"),
        (["get"], "Missing argument"),
        (["get", "nodes", "--replcas"], "--replcas"),
        (["get", "nodes", "-o", "xml"], "'xml' is not one of"),
        (["scale", "web"], "Missing argument"),
        (["scale", "web", "many"], "'many' is not a valid integer"),
        (["scale", "web", "-1"], "-1"),
        (["apply"], "give at least one -f FILE"),
        (["delete"], "give KIND NAME, or -f FILE"),
        (["delete", "workload"], "give the name of at least one workload"),
        (["describe", "node"], "give the name of a node"),
        (["apply", "-f", "x", "--timeout", "soon"], "is not a duration"),
        (["events", "--for", "web"], "KIND/NAME"),
        (["get", "node/a", "workload/b"], "of the same kind"),
        (["exec", "web-0"], "Missing argument"),
        (["token", "create", "ani"], "--role"),
        (["frobnicate"], "unknown command 'frobnicate'"),
    ],
)
def test_wrong_usage_is_reported_on_stderr_and_exits_with_2(words: list[str], says: str, mandor: Mandor) -> None:
    told = mandor(*words)
    assert told.code == 2
    assert says in told.err
    assert told.err.startswith("error: ")
    assert "hint: see `mandor" in told.err
    assert told.out == ""


def test_without_a_command_the_help_is_shown(mandor: Mandor) -> None:
    told = mandor()
    assert told.code == 2
    assert "Usage: mandor" in told.out + told.err


def test_the_version_needs_no_server(mandor: Mandor) -> None:
    from mandor import __version__

    assert mandor("--version").out == f"mandor {__version__}\n"
    assert mandor("version", "--client").out == f"mandor {__version__}\n"


def test_no_server_is_reported_with_what_to_do(mandor: Mandor) -> None:
    told = mandor("get", "nodes", "--server", "http://127.0.0.1:9")
    assert told.code == 1
    assert "error: no server responds: http://127.0.0.1:9: connection refused" in told.err
    assert "hint: start a local cluster with `mandor dev`" in told.err


@pytest.mark.parametrize("address", ["ftp://x", "http://", "http://x:y", "http://x:99999"])
def test_a_bad_address_is_reported(address: str, mandor: Mandor) -> None:
    told = mandor("--server", address, "get", "nodes")
    assert told.code == 1
    assert "is not the URL of a server" in told.err


def test_the_kinds_are_those_of_the_model() -> None:
    assert {kind.name: (kind.plural, kind.namespaced) for kind in KINDS} == {
        name: (cls.plural, cls.namespaced) for name, cls in codec.KINDS.items()
    }
    assert set(COLUMNS) == set(codec.KINDS)


def test_no_short_name_means_two_kinds() -> None:
    words = [word for kind in KINDS for word in {kind.name, kind.plural, *kind.short}]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("words", "kind", "names"),
    [
        (("nodes",), "node", []),
        (("no", "n1", "n2"), "node", ["n1", "n2"]),
        (("node/n1", "nodes/n2"), "node", ["n1", "n2"]),
        (("WL", "web"), "workload", ["web"]),
        (("inst", "web-0"), "instance", ["web-0"]),
    ],
)
def test_kinds_are_found_by_all_their_names(words: tuple[str, ...], kind: str, names: list[str]) -> None:
    assert split_names(words) == (find_kind(kind), names)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_completion_script(shell: str, mandor: Mandor) -> None:
    told = mandor("completion", shell)
    assert told.code == 0
    assert "_MANDOR_COMPLETE" in told.out


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("_MANDOR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - (0 if words.endswith(" ") else 1)))
    with pytest.raises(SystemExit):
        run([])
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines() if line]


def test_commands_and_kinds_are_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert completed("mandor de", monkeypatch, capsys) == ["dev", "delete", "describe", "debug"]
    assert completed("mandor get no", monkeypatch, capsys) == ["nodes", "node-pools"]
    assert "--watch" in completed("mandor get nodes --wa", monkeypatch, capsys)


def test_names_are_not_completed_and_nothing_is_reported_when_no_server_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MANDOR_SERVER", "http://127.0.0.1:9")
    assert completed("mandor get nodes ", monkeypatch, capsys) == []
    assert capsys.readouterr().err == ""


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("mandor")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("mandor ")
