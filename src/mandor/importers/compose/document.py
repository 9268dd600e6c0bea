"""Compose files as one document: variables filled in, `include` and `extends` resolved, overrides merged."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from mandor.errors import Invalid, TooLarge
from mandor.importers.base import Options, Source, fitting_name
from mandor.importers.compose.interpolation import interpolated, read_raw, read_variables
from mandor.importers.compose.merging import RESET, TAGS, Layer, merged
from mandor.importers.part import Ledger
from mandor.lib.yaml12 import List, Malformed, Map, Tagged, load_all

NESTED_MOST = 16
FILES_MOST = 64
UNSET = "the variable"
_PROJECT = "COMPOSE_PROJECT_NAME"


def folder_of(file: str) -> str:
    return str(PurePosixPath(file).parent)


def beside(file: str, path: str) -> str:
    """Return a path that a file names, relative to where the file itself was named."""
    return str(PurePosixPath(folder_of(file)) / path)


@dataclass(slots=True)
class Loader:
    """Reads files and the files that they name."""

    options: Options
    ledger: Ledger
    opened: int = field(default=0, init=False)
    around: dict[str, str] = field(default_factory=dict, init=False)
    """Variables for `$NAME` in the project's own files."""
    name: str = field(default="", init=False)
    """Name of the project."""

    @property
    def profiles(self) -> tuple[str, ...]:
        given = self.around.get("COMPOSE_PROFILES", "")
        return self.options.profiles or tuple(each.strip() for each in given.split(",") if each.strip())

    def project(self, files: Sequence[Source]) -> Layer:
        """Merge files of one folder; later files override earlier ones."""
        self.around = self.variables(folder_of(files[0].name), self.options.env_files)
        self.name = self.around[_PROJECT] = self._name(files)
        found = Layer(1)
        for file in files:
            found = merged(found, self._document(file, self.around, ()))
        return found

    def _name(self, files: Sequence[Source]) -> str:
        """Return the project name: that of the options first, then `name` of the file."""
        named = ""
        for value, _ in (each for file in files for each in _parsed(file)):
            if isinstance(value.get("name"), str):
                with suppress(ValueError):  # reported where the file is read
                    named = interpolated(value["name"], self.around, lambda name: None)
        file = files[0].name
        folder = PurePosixPath(file).parent.name or Path(file).absolute().parent.name
        given = self.options.project or self.around.get(_PROJECT) or named or folder
        return fitting_name(given or "project", most=40)

    def variables(self, folder: str, env_files: Sequence[str]) -> dict[str, str]:
        """Return the values for `$NAME`: .env, or the given files, overridden by the environment."""
        around = self.options.environment
        found: dict[str, str] = {}
        for name in env_files or [str(PurePosixPath(folder) / ".env")]:
            text = self.options.read(name)
            if text is None:
                if env_files:
                    raise Invalid(f"there is no file {name} to read variables from")
                continue
            found |= self.pairs(name, text, {**found, **around})
        return {**found, **around}

    def pairs(self, name: str, text: str, around: Mapping[str, str], *, raw: bool = False) -> dict[str, str]:
        def unset(variable: str, line: int) -> None:
            hint = f"write $${variable} for a dollar sign, or put the value in single quotes"
            self.ledger.note(name, line, variable, "guessed", f"{UNSET} {variable} is not set, and is empty", hint)

        try:
            read = read_raw(text) if raw else read_variables(text, around, unset)
        except ValueError as error:
            raise Invalid(f"{name}: {error}", file=name, line=1) from None
        known = {key: around.get(key) if value is None else value for key, value in read.items()}
        return {key: value for key, value in known.items() if value is not None}

    # One file.

    def _document(self, file: Source, variables: Mapping[str, str], within: tuple[str, ...]) -> Layer:
        if file.name in within or len(within) >= NESTED_MOST:
            raise Invalid(f"{file.name} includes itself", file=file.name, line=1)
        self.opened += 1
        if self.opened > FILES_MOST:
            raise TooLarge(f"more than {FILES_MOST} files are named", file=file.name, line=1)
        found = Layer(1)
        for value, _ in _parsed(file):
            found = merged(found, self._filled(value, variables, file.name, ""))
        for inner in self._included(found, file, variables, (*within, file.name)):
            found = merged(inner, found)
        self._extend(found, file, variables)
        return found

    def _filled(self, value: Any, variables: Mapping[str, str], file: str, path: str) -> Any:
        """Return the document with variables filled in, with file and line of each key."""
        made = Layer(value.line)
        for key, each in value.items():
            line, inside = value.lines.get(key, value.line), f"{path}.{key}" if path else key
            text = value.texts.get(key)
            if isinstance(each, Tagged):
                made.tags[key], each, text = each
                if made.tags[key] == RESET:
                    continue
            made.set(key, self._value(each, variables, file, inside, line), line, text)
            made.files[key] = file
        return made

    def _value(self, value: Any, variables: Mapping[str, str], file: str, path: str, line: int) -> Any:
        if isinstance(value, Map):
            return self._filled(value, variables, file, path)
        if isinstance(value, List):
            made = List(value.line)
            for index, each in enumerate(value):
                at, text = value.lines[index], value.texts.get(index)
                if isinstance(
                    each, Tagged
                ):  # Items of an earlier list have no names by which they could be overridden.
                    tag, each, text = each
                    if tag == RESET:
                        continue
                made.add(self._value(each, variables, file, f"{path}[{index}]", at), at, text)
            return made
        if not isinstance(value, str) or "$" not in value or path.startswith("x-"):
            return value

        def unset(name: str) -> None:
            text = f"{UNSET} {name} is not set, and is empty"
            self.ledger.note(file, line, path, "guessed", text, "set it, or write a default: ${NAME:-default}")

        try:
            return interpolated(value, variables, unset)
        except ValueError as error:
            raise Invalid(f"`{path}`: {error}", file=file, line=line, path=path) from None

    # Included files.

    def _included(
        self, found: Layer, file: Source, variables: Mapping[str, str], within: tuple[str, ...]
    ) -> list[Layer]:
        """Merge the files of `include:` below this one."""
        if "include" not in found:
            return []
        value, line = found.pop("include"), found.lines["include"]
        made = []
        for each in value if isinstance(value, list) else [value]:
            long = each if isinstance(each, dict) else {"path": each}
            if "project_directory" in long:
                hint = "leave it out: paths are below the folder of the file that names them"
                message = "`include.project_directory` is not supported yet"
                raise Invalid(message, hint=hint, file=file.name, line=line)
            if odd := long.keys() - {"path", "env_file"}:
                raise Invalid(f"`include` has no key {min(odd)!r}", file=file.name, line=line)
            paths = long.get("path")
            env_files = _texts(long.get("env_file"))
            for path in _texts(paths):
                name = beside(file.name, path)
                inner = variables
                if env_files:
                    inner = {**self.variables("", [beside(file.name, each) for each in env_files]), **variables}
                made.append(self._document(self._named(name, file.name, line), inner, within))
        return made

    def _named(self, name: str, by: str, line: int) -> Source:
        text = self.options.read(name)
        if text is None:
            hint = "files that include others must be imported with the command line: `mandor import`"
            raise Invalid(f"there is no file {name}", hint=hint, file=by, line=line)
        return Source(name, text)

    # Services that extend others.

    def _extend(self, found: Layer, file: Source, variables: Mapping[str, str]) -> None:
        services = found.get("services")
        if isinstance(services, Map):
            for name in services:
                services[name] = self._extended(services, name, file, variables, ())

    def _extended(
        self, services: Map, name: str, file: Source, variables: Mapping[str, str], within: tuple[str, ...]
    ) -> Any:
        service, line = services[name], services.lines.get(name, 1)
        if not isinstance(service, Map) or "extends" not in service:
            return service
        mark = f"{file.name}:{name}"
        if mark in within or len(within) >= NESTED_MOST:
            raise Invalid(f"the service {name!r} extends itself", file=file.name, line=line)
        given = service["extends"]
        long = given if isinstance(given, dict) else {"service": given}
        if odd := long.keys() - {"service", "file"}:
            raise Invalid(f"`extends` has no key {min(odd)!r}", file=file.name, line=line)
        there, base_file = services, file
        if long.get("file"):
            base_file = self._named(beside(file.name, str(long["file"])), file.name, line)
            there = self._services(base_file, variables)
        base_name = str(long.get("service", name))
        if base_name not in there:
            raise Invalid(f"there is no service {base_name!r} to extend", file=file.name, line=line)
        base = self._extended(there, base_name, base_file, variables, (*within, mark))
        own = merged(Map(service.line), service)
        del own["extends"]
        return merged(base, own) if isinstance(base, Map) else own

    def _services(self, file: Source, variables: Mapping[str, str]) -> Map:
        self.opened += 1
        if self.opened > FILES_MOST:
            raise TooLarge(f"more than {FILES_MOST} files are named", file=file.name, line=1)
        for value, _ in _parsed(file):
            services = self._filled(value, variables, file.name, "").get("services")
            if isinstance(services, Map):
                return services
        return Map()


def _parsed(file: Source) -> list[tuple[Map, int]]:
    try:
        documents = load_all(file.text, tags=TAGS)
    except Malformed as error:
        raise Invalid(error.message, hint=error.hint, file=file.name, line=error.line) from None
    for each in documents:
        if not isinstance(each.value, Map):
            raise Invalid("a Compose file is a mapping", file=file.name, line=each.line)
    return [(each.value, each.line) for each in documents]


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
