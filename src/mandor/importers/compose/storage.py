"""Compose's `volumes` and `tmpfs`: volumes, mounts and files."""

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from stat import S_ISDIR
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


@dataclass(frozen=True, slots=True)
class _Place:
    """A mount of a service that is being read."""

    part: Part
    key: str
    index: int | None
    """Index in the list under the key; None: the mount has a mapping of its own."""
    source: str
    target: str
    read_only: bool = False
    bind: bool = False
    seed: bool = True
    """Docker copies the content of the image into the volume."""
    subpath: str | None = None

    def mount(self, name: str, *, of_volume: bool = False) -> dict[str, Any]:
        """Return the mount; `of_volume`: a volume of Docker's, not a folder of the machine."""
        seed = of_volume and self.seed and not self.subpath
        return filled(
            volume=name,
            path=self.target,
            read_only=self.read_only or None,
            subpath=(self.subpath or "").strip("/") or None if of_volume else None,
            seed=seed or None,
        )


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
        place = _Place(service, "volumes", index, source, target, "ro" in modes, seed="nocopy" not in modes)
        self._mount(draft, place)

    def _long(self, draft: Draft, part: Part) -> None:
        seed, subpath = True, None
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
                bind.guess("create_host_path", "the path must exist")
            bind.drop("propagation", "mount propagation is not supported")
            bind.drop("selinux", "SELinux labels are not supported")
            bind.drop("recursive", "mount propagation is not supported")
        elif kind == "volume":
            volume = part.part("volume")
            seed, subpath = not volume.flag("nocopy"), volume.text("subpath")
            volume.drop("labels", "labels belong to volumes, not to mounts")
        else:
            part.drop_all("type", f"{kind} is not a supported kind of volume")
            return
        if not source:
            self._own(draft, target, read_only=read_only, seed=seed)
        else:
            self._mount(
                draft,
                _Place(
                    part, "source", None, source, target, read_only, bind=kind == "bind", seed=seed, subpath=subpath
                ),
            )

    def _own(self, draft: Draft, target: str, *, read_only: bool = False, seed: bool = True) -> None:
        """Add an anonymous volume: each instance starts with one that has the content of the image."""
        name = _unused(draft, target)
        draft.volumes[name] = {"per_instance": True, "reclaim": "delete", "on_loss": "recreate"}
        draft.mounts.append(filled(volume=name, path=target, read_only=read_only or None, seed=seed or None))

    def _mount(self, draft: Draft, place: "_Place") -> None:
        source, part, key = place.source, place.part, place.key
        if source.startswith("/"):
            volume: dict[str, Any] = {"type": "host", "path": source.rstrip("/") or "/"}
            name = _unused(draft, source)
            draft.mounts.append(place.mount(name))
        elif place.bind or source.startswith((".", "~", "\\")) or "/" in source:
            self._local(draft, place)
            return
        else:
            if source not in self.objects:
                raise part.wrong(key, f"the volume {source!r} is not among the top `volumes`", f"add `{source}:` there")
            volume, name = {"volume": self.objects[source]}, fitting_name(source)
            if source not in self.made:
                hint = "`kind: volume`, applied before"
                self.top.part("volumes").guess(source, f"a volume {self.objects[source]} must exist", hint)
            draft.mounts.append(place.mount(name, of_volume=True))
        draft.volumes.setdefault(name, volume)

    def _local(self, draft: Draft, place: "_Place") -> None:
        """Copy texts beside the Compose file into the manifest; another folder becomes a volume."""
        source, part, key = place.source, place.part, place.key
        path = source if source.startswith("~") else beside(part.file_of(key), source)
        files = self._files(path, place.target)
        if files:
            draft.files += files
            part.note(
                key, "guessed", f"{source} is copied into the manifest as it is now", "apply again when it has changed"
            )
            return
        full = files is None
        if not full or (S_ISDIR(self.options.mode(path) or 0) and not place.read_only):
            name = _unused(draft, f"/{source.strip('./~')}")
            draft.volumes[name] = {"volume": self._folder(path, part.file_of(key), part.line_of(key))}
            draft.mounts.append(place.mount(name, of_volume=full))
            why = "its files are too many, too large or no texts: it becomes a volume that starts as in the image"
            hint = "copy its files into the volume, if the service needs them" if full else ""
            part.note(key, "guessed", f"{source}: {why}" if full else f"{source} is empty: it becomes a volume", hint)
            return
        what = f"{source} is a path on the importing machine, which nodes do not have"
        if place.index is not None and isinstance(part.peek(key), list):
            part.drop_item(key, place.index, what, _ELSEWHERE)
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

    def _files(self, path: str, target: str) -> list[dict[str, Any]] | None:
        """Return the files for a text or a small folder of texts. Empty: an empty folder; None: they cannot be
        copied."""
        text = self.options.read(path)
        if text is not None:
            return [self._file(path, target, text)] if len(text.encode()) <= FILE_MOST else None
        names = self.options.folder(path)
        if names is None:
            return None
        found = {name: self.options.read(f"{path}/{name}") for name in names}
        texts = {name: each for name, each in found.items() if each is not None}
        whole = len(texts) == len(found) and sum(len(each.encode()) for each in texts.values()) <= FILE_MOST
        files = [self._file(f"{path}/{name}", f"{target.rstrip('/')}/{name}", each) for name, each in texts.items()]
        return files if whole else None

    def _file(self, path: str, target: str, text: str) -> dict[str, Any]:
        return filled(path=target, content=text, mode=self.options.permissions(path))

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
