"""Conversion of other tools' files into manifests, done by the client because the files may refer to other local
files.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from mandor.importers.base import Imported, Options
    from mandor.importers.report import Report

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Choice:
    """Options for files of other tools."""

    format: str | None = None
    strict: bool = False
    env_files: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    variable_files: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    project: str = ""
    unisolated: bool = False

    def options(self) -> "Options":
        from mandor.importers.base import Options
        from mandor.importers.mixed import files_below, mode_of, text_of

        environment = dict(os.environ)
        named = tuple(each for each in environment.get("COMPOSE_PROFILES", "").split(",") if each)
        return Options(
            environment={**environment, **self._variables()},
            env_files=self.env_files,
            variables=self._variables(),
            variable_files=self.variable_files,
            profiles=self.profiles or named,
            project=self.project,
            unisolated=self.unisolated,
            read=text_of,
            folder=files_below,
            mode=mode_of,
        )

    def _variables(self) -> dict[str, str]:
        found = {}
        for each in self.variables:
            name, equals, value = each.partition("=")
            if not equals or not name:
                raise click.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--var")
            found[name] = value
        return found


def import_options(command: F) -> F:
    """Add the options for files of other tools to a command; the command receives them as `choice`."""

    def decorated(*args: Any, **kwargs: Any) -> Any:
        words = ("format", "strict", "env_files", "variables", "variable_files", "profiles", "project", "unisolated")
        choice = Choice(**{word: kwargs.pop(f"import_{word}") for word in words})
        return command(*args, choice=choice, **kwargs)

    decorated.__name__, decorated.__doc__ = command.__name__, command.__doc__
    decorated.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[return-value]


_OPTIONS = (
    click.option(
        "--format",
        "import_format",
        metavar="NAME",
        help="Format of the files: compose, kubernetes, nomad …  [default: detected]",
    ),
    click.option(
        "--strict", "import_strict", is_flag=True, help="Fail if a key of another tool's file cannot be imported."
    ),
    click.option(
        "--env-file",
        "import_env_files",
        metavar="FILE",
        multiple=True,
        help="Compose: file with variables, instead of .env.",
    ),
    click.option(
        "--var", "import_variables", metavar="NAME=VALUE", multiple=True, help="Value of a variable used in the files."
    ),
    click.option(
        "--var-file",
        "import_variable_files",
        metavar="FILE",
        multiple=True,
        help="Nomad: file with values of variables, in HCL or JSON.",
    ),
    click.option("--with", "import_profiles", metavar="PROFILE", multiple=True, help="Compose: enable this profile."),
    click.option("--project", "import_project", metavar="NAME", default="", help="Compose: name of the project."),
    click.option(
        "--unisolated",
        "import_unisolated",
        is_flag=True,
        help="Import files although the isolation of networks that they ask for is lost.",
    ),
)


MANIFEST_MOST = 1 << 20
"""Bytes of a manifest; files of other tools are converted here, and may be larger."""
AS_MANIFESTS = "manifest"
"""Format sent to the server for files that were converted here, so that it does not detect their format again."""


def as_manifests(files: list[dict[str, str]], choice: Choice) -> list[dict[str, str]]:
    """Return the files with those of other tools replaced by manifests; keys that are not imported are reported on
    stderr.
    """
    from mandor.errors import TooLarge
    from mandor.importers.base import Source
    from mandor.importers.mixed import Mixed, read_mixed

    mixed = read_mixed([Source(each["name"], each["text"]) for each in files], choice.options(), choice.format)
    for own in mixed.own:
        if len(own.text.encode()) > MANIFEST_MOST:
            hint = "split it into several files"
            raise TooLarge(f"more than {MANIFEST_MOST:,} bytes", hint=hint, file=own.name, line=1)
    show_report(mixed.report, strict=choice.strict)
    # Errors are reported here with their position in the original file; the server only sees the manifest.
    Mixed((), mixed.imported).load()
    return [{"name": each.name, "text": each.text} for each in mixed.own] + _posted(mixed.imported)


def _posted(imported: "Imported") -> list[dict[str, str]]:
    from mandor.lib.yaml12 import dump

    texts: dict[str, list[str]] = {}
    for made in imported.made:
        texts.setdefault(made.file, []).append(dump(made.manifest))
    return [{"name": f"{name} (as imported)", "text": "---\n".join(each)} for name, each in texts.items()]


def warn_of_values(imported: "Imported") -> None:
    """Warn that the printed manifests contain secrets; names the secrets, without their values."""
    names = [each.manifest["name"] for each in imported.made if each.manifest.get("kind") == "secret"]
    if names:
        what = f"the output contains the values of {'a secret' if len(names) == 1 else 'secrets'}"
        click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {what}: {', '.join(names)}", err=True)


def show_report(report: "Report", *, strict: bool) -> None:
    """Print the report on stderr; with `strict`, raise an error if a key was not imported."""
    if strict and report.losses:
        from mandor.importers.mixed import lost_keys

        raise lost_keys(report)
    for note in report.notes:
        click.echo(f"{click.style('note:', fg='yellow', bold=True)} {note}", err=True)
    if report.notes:
        click.echo(report.summary, err=True)
