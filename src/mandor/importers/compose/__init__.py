"""Docker Compose files: one workload a service, with the label `project`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

from mandor.errors import Invalid
from mandor.importers.base import Imported, Importer, Made, Options, Source
from mandor.importers.compose.document import UNSET, Loader, folder_of
from mandor.importers.compose.merging import TAGS
from mandor.importers.compose.names import add_services
from mandor.importers.compose.service import CONDITIONS, Reader, wanted
from mandor.importers.compose.storage import Storage
from mandor.importers.compose.texts import Texts
from mandor.importers.part import Ledger, Part
from mandor.importers.report import Report
from mandor.lib.yaml12 import Malformed, load_all

_SERVICES = re.compile(r"^services\s*:", re.MULTILINE)
_FOREIGN = re.compile(r"^(apiVersion|kind|groups)\s*:", re.MULTILINE)
_OURS = frozenset({"kind", "image", "command", "groups", "apiVersion", "spec", "meta"})


class ComposeImporter(Importer):
    name: ClassVar[str] = "compose"
    title: ClassVar[str] = "Docker Compose"

    def detect(self, text: str, name: str) -> bool:
        if "services" not in text and "include" not in text:
            return False
        try:
            documents = load_all(text, tags=TAGS)
        except Malformed:  # the caller finds the same error with its line
            return _SERVICES.search(text) is not None and not _FOREIGN.search(text)
        first = documents[0].value if documents else None
        if not isinstance(first, dict) or _OURS & first.keys():
            return False
        services = first.get("services", False)
        return services is None or isinstance(services, dict) or isinstance(first.get("include"), list)

    def read(self, files: Sequence[Source], options: Options) -> Imported:
        folders: dict[str, list[Source]] = {}
        for file in files:
            folders.setdefault(folder_of(file.name), []).append(file)
        found = Imported((), Report())
        for group in folders.values():
            found += _project(sorted(group, key=_overrides), options)
        return found


def _overrides(file: Source) -> bool:
    """Return whether Compose merges the file over another one because of its name; in a folder it sorts before that
    one."""
    return PurePosixPath(file.name).stem.endswith(".override")


def _project(files: Sequence[Source], options: Options) -> Imported:
    ledger = Ledger()
    try:
        return _read(files, options, ledger)
    except Invalid as error:
        if error.hint is None:
            error.hint = _unset_there(ledger, error.facts)
        raise


def _unset_there(ledger: Ledger, facts: Mapping[str, object]) -> str | None:
    """Return whether an invalid value can be caused by an empty variable, there or in an item of the list."""
    path = facts.get("path")
    for note in ledger.notes.values():
        same = (note.file, note.line) == (facts.get("file"), facts.get("line")) or note.path.startswith(f"{path}[")
        if same and note.text.startswith(UNSET):
            return f"{note.text}; {note.hint}"
    return None


def _read(files: Sequence[Source], options: Options, ledger: Ledger) -> Imported:
    loader = Loader(options, ledger)
    top = ledger.open(loader.project(files), files[0].name)
    top.ignore("version")  # obsolete in Compose
    top.text("name")
    project, profiles = loader.name, loader.profiles
    storage, texts = Storage(top, project, options), Texts(top, project, options, loader.around)
    networks = dict(top.entries("networks"))
    for part in networks.values():
        _network(part)
    top.drop("models", "models are run by another tool")
    for key in top:
        if key.startswith("x-"):
            top.ignore(key)
    services = top.part("services")
    if not services:
        raise top.wrong("services", "the file has no services", "services: {web: {image: nginx}}")
    reader = Reader(project, services, storage, texts, loader, _completed(services), networks)
    made = [
        Made(reader.manifest(name, services.part(name)), services.file_of(name), services.line_of(name))
        for name in services
        if _runs(services, name, profiles)
    ]
    texts.leave_unused()
    shared = add_services(made, services)
    used = {each.get("volume") for item in made for each in item.manifest.get("volumes", {}).values()}
    volumes = [each for name, each in storage.made.items() if storage.objects[name] in used]
    return Imported((*texts.made, *volumes, *made, *shared), ledger.report())


def _runs(services: Part, name: str, profiles: tuple[str, ...]) -> bool:
    if wanted(services.peek(name), profiles):
        return True
    services.ignore(name)
    first = services.peek(name)["profiles"][0]
    services.note(name, "skipped", "its profile is not selected, so Compose ignores it, too", f"--with {first}")
    return False


def _completed(services: Part) -> frozenset[str]:
    """Return the services that others wait for to complete."""
    found: set[str] = set()
    for name in services:
        service: Any = services.peek(name)
        waits = service.get("depends_on") if isinstance(service, dict) else None
        if isinstance(waits, dict):
            found |= {
                other
                for other, given in waits.items()
                if isinstance(given, dict) and CONDITIONS.get(str(given.get("condition"))) == "completed"
            }
    return frozenset(found)


def _network(part: Part) -> None:
    if isinstance(part.peek("external"), dict):
        part.part("external").text("name")
    elif part.flag("external"):
        part.text("name")
    if (driver := part.text("driver", "bridge")) not in {"bridge", "default"}:
        part.guess("driver", f"not {driver}: networks are managed by the engine")
    part.drop_rest("networks are managed by the engine")
