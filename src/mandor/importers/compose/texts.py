"""Compose's `configs` and `secrets`: files of a task, and secrets of the cluster."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mandor.importers.base import Made, Options, filled, fitting_name
from mandor.importers.compose.document import beside
from mandor.importers.compose.draft import Draft
from mandor.importers.compose.storage import labels_of
from mandor.importers.part import Part

_BY_HAND = "`kind: secret`, with a `value`"
_OWNERS = ("uid", "gid")


@dataclass(slots=True)
class Texts:
    """The top-level configs and secrets of a file, and the services that use them."""

    top: Part
    project: str
    options: Options
    around: Mapping[str, str]
    """Variables of the environment and of .env."""
    configs: dict[str, Part] = field(default_factory=dict)
    secrets: dict[str, Part] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    """Identities of the entries that a service uses."""
    made: list[Made] = field(default_factory=list)
    """Secrets that a service uses, with their values."""
    objects: dict[str, str] = field(default_factory=dict)
    """Name of the secret object by its name in the file."""

    def __post_init__(self) -> None:
        self.configs = dict(self.top.entries("configs"))
        self.secrets = dict(self.top.entries("secrets"))

    def read(self, draft: Draft, service: Part) -> None:
        for index, name, target, mode in self._named(service, "configs", self.configs):
            content = self._config(self.configs[name])
            if content is None:
                service.drop_item("configs", index, f"{name} is external and not available")
            else:
                mode = mode or self._permissions(self.configs[name])
                draft.files.append(filled(path=_path("/", target, name), content=content, mode=mode))
        for _, name, target, mode in self._named(service, "secrets", self.secrets):
            secret = self._secret(name, self.secrets[name])
            mode = mode or self._permissions(self.secrets[name])
            draft.files.append(filled(path=_path("/run/secrets/", target, name), secret=secret, mode=mode))

    def leave_unused(self) -> None:
        """Account for entries that no service uses: Compose ignores them, too."""
        for part in (*self.configs.values(), *self.secrets.values()):
            if id(part) not in self.used:
                for key in part:
                    part.ignore(key)

    def _named(
        self, service: Part, key: str, defined: dict[str, Part]
    ) -> Iterator[tuple[int, str, str | None, str | None]]:
        """Return index, name, target and mode of each entry that a service uses."""
        for index, each in enumerate(service.mixed(key)):
            if isinstance(each, Part):
                name, target, mode = each.text("source"), each.text("target"), each.text("mode")
                for owner in _OWNERS:
                    each.drop(owner, "files belong to the user of the task")
            else:
                name, target, mode = each, None, None
            if not name or name not in defined:
                raise service.wrong(key, f"{name!r} is not among the top `{key}`")
            self.used.add(id(defined[name]))
            yield index, name, target, _mode(mode)

    def _config(self, part: Part) -> str | None:
        part.ignore("name")
        if part.peek("external"):
            part.drop("external", "it is managed by another tool", "write it as `file:` or `content:`")
            part.drop_rest("it is managed by another tool")
            return None
        for key in ("labels", "driver", "driver_opts", "template_driver"):
            part.drop(key, "files of tasks do not support it")
        return self._content(part)

    def _secret(self, name: str, part: Part) -> str:
        """Return the secret object of an entry, created once; None: an external secret."""
        if name not in self.objects:
            self.objects[name] = self._make_secret(name, part)
        return self.objects[name]

    def _make_secret(self, name: str, part: Part) -> str:
        external = part.peek("external")
        called = (part.part("external") if isinstance(external, dict) else part).text("name")
        elsewhere = isinstance(external, dict) or part.flag("external")
        plain = fitting_name(called or (name if elsewhere else f"{self.project}_{name}"))
        for key in ("driver", "driver_opts", "template_driver"):
            part.drop(key, "secrets are stored by the server")
        labels = labels_of(part, "labels")
        value = None if elsewhere else self._content(part)
        if value is None:
            self.top.part("secrets").guess(name, f"a secret {plain} must exist", _BY_HAND)
        else:
            head = filled(kind="secret", name=plain, labels={"project": self.project, **labels})
            self.made.append(Made({**head, "value": value}, self.top.file_of("secrets"), part.line))
        return plain

    def _permissions(self, part: Part) -> str | None:
        """Return the mode of the file of an entry, as Compose mounts it, if a program may be run from it."""
        path = part.peek("file")
        return self.options.permissions(beside(part.file_of("file"), path)) if isinstance(path, str) else None

    def _content(self, part: Part) -> str | None:
        if "content" in part:
            return part.text("content")
        if (variable := part.text("environment")) is not None:
            found = self.around.get(variable)
            if found is None:
                part.drop("environment", f"the variable {variable} is not set")
            return found
        path = part.text("file")
        text = self.options.read(beside(part.file_of("file"), path)) if path else None
        if text is None:
            part.drop("file", f"there is no text file {path} at hand")
        return text


def _path(folder: str, target: str | None, name: str) -> str:
    return target if target and target.startswith("/") else folder + (target or name)


def _mode(text: str | None) -> str | None:
    if text is None:
        return None
    octal = text if re.fullmatch(r"0?[0-7]{3}", text) else text.removeprefix("0o")
    return octal if re.fullmatch(r"0?[0-7]{3}", octal) else f"{int(text):04o}" if text.isdecimal() else None
