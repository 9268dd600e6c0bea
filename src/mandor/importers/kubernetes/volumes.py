"""Converts the volumes of a pod and the mounts of its containers."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mandor.importers.base import filled, fitting_name
from mandor.importers.kubernetes.amounts import size
from mandor.importers.kubernetes.env import Environment, field_value, resource_value
from mandor.importers.kubernetes.secret import secret_items
from mandor.importers.kubernetes.shelf import Owner, ReferencedObjects, mounts_of
from mandor.importers.part import Part

_MEMORY = "64Mi"
"""Size of an in-memory folder without a limit."""
_ACCESS = frozenset({"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"})
_KEPT_ELSEWHERE = (
    *("nfs", "csi", "iscsi", "fc", "cephfs", "rbd", "glusterfs", "cinder", "quobyte", "scaleIO", "storageos"),
    *("awsElasticBlockStore", "gcePersistentDisk", "azureDisk", "azureFile", "vsphereVolume", "portworxVolume"),
    *("photonPersistentDisk", "flexVolume", "flocker"),
)
"""Kinds of volumes that keep data outside of the pod's node."""
_FOLDERS = {"", "Directory", "File", "Socket"}


@dataclass(frozen=True, slots=True)
class Content:
    text: str = ""
    mode: str | None = None
    secret: str | None = None
    """Secret with the text, instead of `content`."""
    fill: bool = False
    """The text refers to the instance and is filled in when it starts."""


@dataclass(slots=True)
class Volume:
    """A volume of a pod: a volume of the group, or files of each task; neither: no counterpart."""

    group: dict[str, Any] | None = None
    files: dict[str, Content] = field(default_factory=dict)
    mounted: int = 0
    """Number of mounts by containers."""
    read_only: bool = False
    """All mounts are read-only."""


@dataclass(slots=True)
class Volumes:
    """Reads the volumes once, then returns the mounts of each container."""

    owner: Owner
    shelf: ReferencedObjects
    found: dict[str, Volume] = field(default_factory=dict)

    def read(self, spec: Part, owner_of_folder: str | None) -> None:
        mounts = mounts_of(spec.source)
        for each in spec.parts("volumes"):
            name = each.text("name") or ""
            volume = self._volume(each, mounts.count(name))
            volume.mounted = mounts.count(name)
            if volume.group is not None and volume.group.get("type") in {None, "local", "scratch"}:
                volume.group |= filled(owner=owner_of_folder)
            if not volume.mounted:
                each.drop_all("name", "no container mounts it")
            self.found[name] = volume

    def add_template(self, claim: Part, name: str, keep: bool, owner_of_folder: str | None) -> None:
        """Add a volume claim of each instance."""
        volume = {**claim_volume(claim.part("spec")), "per_instance": True}
        self.found[name] = Volume(volume | filled(reclaim=None if keep else "delete", owner=owner_of_folder))

    def of_group(self) -> dict[str, Any]:
        """Return the volumes of the group that a container mounts."""
        return {
            fitting_name(name): each.group
            for name, each in self.found.items()
            if each.group is not None and each.mounted
        }

    def _volume(self, each: Part, mounted: int) -> Volume:
        if "emptyDir" in each or not set(each.keys()) - {"name"}:
            return Volume(_empty(each.part("emptyDir"), mounted))
        if "hostPath" in each:
            return Volume(_host(each.part("hostPath")))
        if "persistentVolumeClaim" in each:
            return self._claim(each.part("persistentVolumeClaim"))
        if "configMap" in each:
            return Volume(files=dict(self._config(each.part("configMap"))))
        if "secret" in each:
            return Volume(files=dict(self._secret(each.part("secret"), "secretName")))
        if "downwardAPI" in each:
            return Volume(files=dict(self._downward(each.part("downwardAPI"))))
        if "projected" in each:
            return Volume(files=dict(self._projected(each.part("projected"))))
        if "ephemeral" in each:
            claim = each.part("ephemeral").part("volumeClaimTemplate")
            claim.drop("metadata", "a volume has the name of its group and instance")
            return Volume(claim_volume(claim.part("spec")) | {"per_instance": True, "reclaim": "delete"})
        if kept := next((kind for kind in _KEPT_ELSEWHERE if kind in each), None):
            read_only = each.part(kept).flag("readOnly")
            each.take(kept)
            each.guess(kept, "a new volume on the disk of a node, which starts empty", "copy its data there")
            return Volume({}, read_only=read_only)
        each.drop_rest("there are no volumes of this kind")
        return Volume()

    def _claim(self, source: Part) -> Volume:
        name = source.text("claimName") or ""
        read_only = source.flag("readOnly")
        claim = self.shelf.claim(self.owner.namespace, name)
        if claim is None:
            source.guess("claimName", "it is not among these files: a volume of this name must exist")
        return Volume({"volume": fitting_name(name, most=253)}, read_only=read_only)

    # Files.

    def _config(self, source: Part) -> Iterator[tuple[str, Content]]:
        name, optional = source.text("name") or "", source.flag("optional")
        usual = _mode(source, "defaultMode")
        data = self.shelf.config(self.owner.namespace, name)
        if data is None:
            source.drop("items", "its ConfigMap is not among these files")
            if not optional:
                source.drop("name", f"the ConfigMap {name} is not among these files")
            return
        if "items" not in source:
            yield from ((key, Content(text, usual)) for key, text in data.items())
        for item in source.parts("items"):
            key, path = item.text("key") or "", item.text("path") or ""
            if key in data:
                yield path, Content(data[key], _mode(item, "mode") or usual)
            else:
                item.drop("key", f"the ConfigMap {name} has no {key}")
                item.drop("mode", "there is no such file")

    def _secret(self, source: Part, named: str) -> Iterator[tuple[str, Content]]:
        usual = _mode(source, "defaultMode")
        for path, reference, item in secret_items(source, named, self.owner, self.shelf):
            yield path, Content(mode=(_mode(item, "mode") if item is not None else None) or usual, secret=reference)

    def _downward(self, source: Part) -> Iterator[tuple[str, Content]]:
        usual = _mode(source, "defaultMode")
        for item in source.parts("items"):
            text = self._about(item)
            path, mode = item.text("path") or "", _mode(item, "mode") or usual
            if text is not None:
                yield path, Content(text, mode, fill=text.startswith("${MANDOR_"))

    def _about(self, item: Part) -> str | None:
        if "resourceFieldRef" in item:
            return resource_value(item.part("resourceFieldRef"), item, self.owner)
        field_ref = item.part("fieldRef")
        field_ref.ignore("apiVersion")
        path = field_ref.peek("fieldPath")
        if path in {"metadata.labels", "metadata.annotations"}:
            field_ref.text("fieldPath")
            given = self.owner.labels if path == "metadata.labels" else self.owner.annotations
            return "\n".join(f'{key}="{value}"' for key, value in given.items())
        if path == "metadata.namespace" and self.owner.namespace:
            field_ref.text("fieldPath")
            return self.owner.namespace
        return field_value(field_ref, self.owner)

    def _projected(self, source: Part) -> Iterator[tuple[str, Content]]:
        usual = _mode(source, "defaultMode")
        for each in source.parts("sources"):
            for key in ("serviceAccountToken", "clusterTrustBundle", "podCertificate"):
                each.drop(key, "Nomad identities are not converted")
            found: list[tuple[str, Content]] = []
            if "configMap" in each:
                found += self._config(each.part("configMap"))
            if "secret" in each:
                found += self._secret(each.part("secret"), "name")
            if "downwardAPI" in each:
                found += self._downward(each.part("downwardAPI"))
            yield from ((path, replace(content, mode=content.mode or usual)) for path, content in found)

    # Mounts of one container.

    def mounts(self, container: Part, env: Environment) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the mounts and the files of a container; `env`: its variables, for `subPathExpr`."""
        mounts: list[dict[str, Any]] = []
        files: list[dict[str, Any]] = []
        for each in container.parts("volumeMounts"):
            name, path = each.text("name") or "", each.text("mountPath") or ""
            below, read_only = _subpath(each, env), each.flag("readOnly")
            for key in ("mountPropagation", "recursiveReadOnly"):
                if each.text(key) not in {None, "None", "Disabled"}:
                    each.drop(key, "has no counterpart")
            volume = self.found.get(name)
            if volume is None:
                each.drop_all("name", f"the pod has no volume {name}")
            elif volume.group is not None:
                locked = read_only or volume.read_only or None
                if below and volume.group.get("type") == "host":
                    name, below = self._below_host(name, volume.group, below), None
                elif volume.group.get("type") == "tmpfs":
                    below = None  # one container alone mounts it, and it starts empty
                mounts.append(filled(volume=fitting_name(name), path=path, read_only=locked, subpath=below))
            elif volume.files:
                files += _placed(each, path, below, volume.files)
            else:
                each.drop_all("name", f"the volume {name} has nothing in it here")
        container.drop("volumeDevices", "block devices are not supported")
        return mounts, files

    def _below_host(self, name: str, group: dict[str, Any], below: str) -> str:
        """Return the name of a volume for a folder below a folder of the node."""
        inner = f"{name[:40]}-{below.replace('/', '-')}"
        path = f"{group['path'].rstrip('/')}/{below}"
        self.found.setdefault(inner, Volume({"type": "host", "path": path}, mounted=1))
        self.found[name].mounted -= 1
        return inner


def _subpath(mount: Part, env: Environment) -> str | None:
    """Return `subPath`, or `subPathExpr` with the variables of the container; None: the whole volume."""
    key = "subPathExpr" if mount.peek("subPathExpr") else "subPath"
    mount.text("subPath"), mount.text("subPathExpr")
    text = mount.text(key) or ""
    found = env.expanded(text) if key == "subPathExpr" else text
    if key == "subPathExpr" and (env.hides(text) or "$(" in found):
        raise mount.wrong(key, "a variable in it has no value here", "write the path as `subPath`")
    parts = [part for part in found.split("/") if part not in {"", "."}]
    if ".." in parts or found.startswith("/"):
        raise mount.wrong(key, f"{found[:60]!r} is not a path below the volume")
    return "/".join(parts) or None


def _placed(mount: Part, path: str, below: str | None, files: dict[str, Content]) -> Iterator[dict[str, Any]]:
    if below and below in files:
        yield _file(path, files[below])
        return
    inside = f"{below.strip('/')}/" if below else ""
    chosen = {name.removeprefix(inside): each for name, each in files.items() if name.startswith(inside)}
    if not chosen:
        mount.drop("subPath", f"the volume has no {below}")
    yield from (_file(f"{path.rstrip('/')}/{name}", each) for name, each in chosen.items())


def _file(path: str, content: Content) -> dict[str, Any]:
    text = {"content": content.text} if content.secret is None else {"secret": content.secret}
    return {"path": path} | text | filled(mode=content.mode, fill=content.fill or None)


def claim_volume(spec: Part) -> dict[str, Any]:
    """Return the volume for a claim: a folder of one node with reserved size."""
    asked = spec.part("resources")
    room = asked.text_map("requests").get("storage")
    asked.drop("limits", "the size of a volume is reserved, but not enforced")
    modes = spec.texts("accessModes")
    if odd := set(modes) - _ACCESS:
        raise spec.wrong("accessModes", f"{min(odd)[:40]!r} is none of {', '.join(sorted(_ACCESS))}")
    if {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
        spec.guess("accessModes", "instances that share a volume run on its node")
    if spec.text("volumeMode") == "Block":
        spec.drop("volumeMode", "block devices are not supported")
    for key in ("storageClassName", "volumeAttributesClassName"):
        spec.drop(key, "there is one class of volumes: folders of nodes")
    for key in ("selector", "volumeName", "dataSource", "dataSourceRef"):
        spec.drop(key, "a volume is created empty")
    try:
        return filled(size=size(room) if room else None)
    except ValueError as error:
        raise asked.wrong("requests", str(error)) from None


def _empty(source: Part, mounted: int) -> dict[str, Any]:
    limit = source.text("sizeLimit")
    try:
        room = size(limit) if limit and limit != "0" else None
    except ValueError as error:
        raise source.wrong("sizeLimit", str(error)) from None
    medium = source.text("medium") or ""
    if medium == "Memory" and mounted <= 1:
        if room is None:
            source.guess("medium", f"memory of {_MEMORY}: there is no size in the file")
        return {"type": "tmpfs", "size": room or _MEMORY}
    if medium:
        source.guess("medium", "it is on the node's disk, because several containers share it")
    return filled(type="scratch", size=room, mode="0777")


def _host(source: Part) -> dict[str, Any]:
    kind = source.text("type") or ""
    if kind not in _FOLDERS:
        source.guess("type", "the path must exist")
    return {"type": "host", "path": source.text("path") or ""}


def _mode(part: Part, key: str) -> str | None:
    """Return the file mode: Kubernetes has a number, often written in octal."""
    text = part.text(key)
    if text is None:
        return None
    try:
        number = int(text, 8) if text.startswith("0") else int(text)
    except ValueError:
        raise part.wrong(key, f"{text[:20]!r} is no file mode") from None
    if not 0 <= number <= 0o777:
        raise part.wrong(key, f"{text[:20]!r} is no file mode")
    return f"{number:04o}"
