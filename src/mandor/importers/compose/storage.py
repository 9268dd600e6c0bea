"""Compose's `volumes` and `tmpfs`: volumes, mounts and files."""

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from mandor.importers.base import Made, Options, filled, fitting_name
from mandor.importers.compose.amounts import size_of
from mandor.importers.compose.document import beside
from mandor.importers.compose.draft import Draft
from mandor.importers.part import Part

TMPFS = "64Mi"
FILE_MOST = 256 * 1024
_MODES = frozenset({"ro", "rw", "z", "Z", "nocopy", "cached", "delegated", "consistent", "rprivate", "private"})
_WITHOUT_MEANING = frozenset({"consistency"})
_ELSEWHERE = "put it into the image, or on the nodes under an absolute path, or into a volume"


@dataclass(slots=True)
class Storage:
    """The top-level volumes of a file, and the services that use them."""

    top: Part
    project: str
    options: Options
    volumes: dict[str, Part] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    """Volume objects by name."""
    objects: dict[str, str] = field(default_factory=dict)
    """Name of the volume object by its name in the file."""

    def __post_init__(self) -> None:
        self.volumes = dict(self.top.entries("volumes"))
        for name, part in self.volumes.items():
            self._declare(name, part)

    def _declare(self, name: str, part: Part) -> None:
        external = part.peek("external")
        called = (part.part("external") if isinstance(external, dict) else part).text("name")
        elsewhere = isinstance(external, dict) or part.flag("external")
        plain = fitting_name(called or (name if elsewhere else f"{self.project}_{name}"), most=253)
        self.objects[name] = plain
        if (driver := part.text("driver", "local")) not in {"local", "default"}:
            part.guess("driver", f"not a volume of {driver}, but a folder that the node's agent makes")
        if "driver_opts" in part:
            part.drop(
                "driver_opts", "a volume is a folder that the node's agent makes", "use a bind to /mnt/… on nodes"
            )
        labels = labels_of(part, "labels")
        if not elsewhere:
            manifest = filled(kind="volume", name=plain, labels={"project": self.project, **labels})
            self.made[name] = Made(manifest, self.top.file_of("volumes"), part.line)

    # Volumes of a service.

    def read(self, draft: Draft, service: Part) -> None:
        for index, each in enumerate(service.mixed("volumes")):
            if isinstance(each, Part):
                self._long(draft, each)
            else:
                self._short(draft, service, index, each)
        for text in service.texts("tmpfs"):
            self._tmpfs(draft, service, text)
        _settle(draft, service)

    def _short(self, draft: Draft, service: Part, index: int, text: str) -> None:
        words = text.split(":")
        if len(words) > 3:
            raise service.wrong("volumes", f"{text[:60]!r} is not a volume; write SOURCE:PATH[:ro]")
        if len(words) == 1:
            self._own(draft, words[0])
            return
        source, target = words[0], words[1]
        if not source or not target:
            raise service.wrong(
                "volumes", f"{text[:60]!r} has nothing on one side of its colon; is a variable not set?"
            )
        modes = words[2].split(",") if len(words) == 3 else []
        if odd := [mode for mode in modes if mode not in _MODES]:
            service.note("volumes", "guessed", f"the mode {odd[0]!r} of {target} has no counterpart")
        self._mount(draft, service, "volumes", index, source, target, "ro" in modes)

    def _long(self, draft: Draft, part: Part) -> None:
        kind, target = part.text("type", "volume"), part.text("target")
        source, read_only = part.text("source"), part.flag("read_only")
        if not target:
            raise part.wrong("target", "a volume has a `target`")
        for key in _WITHOUT_MEANING:
            if key in part:
                part.drop(key, "bind mounts are always consistent")
        if kind == "tmpfs":
            size = part.part("tmpfs")
            draft.mounts.append({"tmpfs": _tmpfs_size(size), "path": target})
            if "mode" in size:
                size.drop("mode", "a tmpfs belongs to its task")
            return
        if kind == "bind":
            bind = part.part("bind")
            if bind.flag("create_host_path"):
                bind.guess("create_host_path", "it has to be there already")
            bind.drop("propagation", "mount propagation is not supported")
            bind.drop("selinux", "SELinux labels are not supported")
            bind.drop("recursive", "mount propagation is not supported")
        elif kind == "volume":
            volume = part.part("volume")
            if "nocopy" in volume and not volume.flag("nocopy"):
                volume.guess("nocopy", "nothing is copied from the image: a volume starts empty")
            volume.drop("subpath", "a volume is mounted as a whole")
            volume.drop("labels", "labels belong to volumes, not to mounts")
        else:
            part.drop_all("type", f"{kind} is not a supported kind of volume")
            return
        if not source:
            self._own(draft, target, read_only=read_only)
        else:
            self._mount(draft, part, "source", None, source, target, read_only, bind=kind == "bind")

    def _own(self, draft: Draft, target: str, *, read_only: bool = False) -> None:
        """Add an anonymous volume: each instance starts with an empty one."""
        name = _unused(draft, target)
        draft.volumes[name] = {"per_instance": True, "reclaim": "delete", "on_loss": "recreate"}
        draft.mounts.append(filled(volume=name, path=target, read_only=read_only or None))

    def _mount(
        self,
        draft: Draft,
        part: Part,
        key: str,
        index: int | None,
        source: str,
        target: str,
        read_only: bool,
        *,
        bind: bool = False,
    ) -> None:
        if source.startswith("/"):
            volume: dict[str, Any] = {"type": "host", "path": source.rstrip("/") or "/"}
            name = _unused(draft, source)
        elif bind or source.startswith((".", "~", "\\")) or "/" in source:
            self._local(draft, part, key, index, source, target, read_only)
            return
        else:
            if source not in self.objects:
                raise part.wrong(key, f"the volume {source!r} is not among the top `volumes`", f"add `{source}:` there")
            volume, name = {"volume": self.objects[source]}, fitting_name(source)
            if source not in self.made:
                hint = "`kind: volume`, applied before"
                self.top.part("volumes").guess(source, f"a volume {self.objects[source]} has to be there", hint)
        draft.volumes.setdefault(name, volume)
        draft.mounts.append(filled(volume=name, path=target, read_only=read_only or None))

    def _local(
        self, draft: Draft, part: Part, key: str, index: int | None, source: str, target: str, read_only: bool
    ) -> None:
        """Copy texts beside the Compose file into the manifest; a folder that Docker would create becomes a volume."""
        path = source if source.startswith("~") else beside(part.file_of(key), source)
        texts = self._texts(path, target)
        if texts:
            draft.files += [{"path": each, "content": text} for each, text in texts.items()]
            part.note(
                key, "guessed", f"{source} is copied into the manifest as it is now", "apply again when it has changed"
            )
            return
        if texts is not None:
            name = _unused(draft, f"/{source.strip('./~')}")
            draft.volumes[name] = {"volume": self._folder(path, part.file_of(key), part.line_of(key))}
            draft.mounts.append(filled(volume=name, path=target, read_only=read_only or None))
            part.note(key, "guessed", f"{source} is empty: it becomes a volume that starts empty")
            return
        what = f"{source} is a path on the importing machine, which nodes do not have"
        if index is not None and isinstance(part.peek(key), list):
            part.drop_item(key, index, what, _ELSEWHERE)
        else:
            part.drop(key, what, _ELSEWHERE)

    def _folder(self, path: str, file: str, line: int) -> str:
        """Return the volume object for a folder beside the file; all services that name the folder share it."""
        key = f"./{path.rstrip('/')}"
        if key not in self.objects:
            called = "-".join(each for each in PurePosixPath(path).parts[-2:] if each.strip("./~"))
            taken = set(self.objects.values())
            plain = first = fitting_name(f"{self.project}-{called}", most=240)
            number = 2
            while plain in taken:
                plain, number = f"{first}-{number}", number + 1
            self.objects[key] = plain
            manifest = {"kind": "volume", "name": plain, "labels": {"project": self.project}}
            self.made[key] = Made(manifest, file, line)
        return self.objects[key]

    def _texts(self, path: str, target: str) -> dict[str, str] | None:
        """Return the texts of a file or a small folder by their target. Empty: an empty folder; None: they cannot be
        copied."""
        text = self.options.read(path)
        if text is not None:
            return {target: text} if len(text.encode()) <= FILE_MOST else None
        names = self.options.folder(path)
        if names is None:
            return None
        found = {f"{target.rstrip('/')}/{name}": self.options.read(f"{path}/{name}") for name in names}
        texts = {where: each for where, each in found.items() if each is not None}
        whole = len(texts) == len(found) and sum(len(each.encode()) for each in texts.values()) <= FILE_MOST
        return texts if whole else None

    def _tmpfs(self, draft: Draft, service: Part, text: str) -> None:
        path, _, given = text.partition(":")
        found = re.search(r"(?:^|,)size=(\w+)", given)
        size = TMPFS
        if found:
            try:
                size = size_of(found[1])
            except ValueError as error:
                raise service.wrong("tmpfs", str(error)) from None
        else:
            service.guess("tmpfs", f"{path} has at most {TMPFS}: a tmpfs needs a size", "write PATH:size=128m")
        if odd := [each for each in given.split(",") if each and not each.startswith("size=")]:
            service.guess("tmpfs", f"{', '.join(odd)[:60]} of {path} is ignored: a tmpfs belongs to its task")
        draft.mounts.append({"tmpfs": size, "path": path})


def _settle(draft: Draft, service: Part) -> None:
    """Keep the last of several mounts at one path."""
    last = {each["path"]: each for each in draft.mounts}
    if len(last) < len(draft.mounts):
        paths = [each["path"] for each in draft.mounts]
        double = next(path for path in paths if paths.count(path) > 1)
        service.guess("volumes" if "volumes" in service else "tmpfs", f"two are for {double}: the last one is used")
        draft.mounts = list(last.values())
        used = {each.get("volume") for each in draft.mounts}
        draft.volumes = {name: each for name, each in draft.volumes.items() if name in used}


def _tmpfs_size(part: Part) -> str:
    text = part.text("size")
    try:
        return size_of(text) if text else TMPFS
    except ValueError as error:
        raise part.wrong("size", str(error)) from None


def _unused(draft: Draft, path: str) -> str:
    base = fitting_name("-".join(PurePosixPath(path).parts[1:][-2:]) or "root", most=50)
    name, number = base, 2
    while name in draft.volumes:
        name, number = f"{base}-{number}", number + 1
    return name


def pairs_of(part: Part, key: str) -> dict[str, str]:
    """Return pairs of a mapping, or of a list of NAME=VALUE."""
    if isinstance(part.peek(key), list):
        return dict(text.partition("=")[::2] for text in part.texts(key))
    return part.text_map(key)


def labels_of(part: Part, key: str) -> dict[str, str]:
    """Return labels of a mapping, or of a list of NAME=VALUE; invalid labels are dropped with a note."""
    found = {}
    for name, value in pairs_of(part, key).items():
        if len(value) > 256 or not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9./_-]{0,126}[A-Za-z0-9])?", name):
            part.note(key, "dropped", f"{name[:60]!r} is not a valid label")
        else:
            found[name] = value
    return found
