"""Images for tests, made of the machine's own static busybox: nothing comes from a registry."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mandor.client.image_file import open_image
from mandor.model.image import ImageFile
from scripts.components import find, missing

NAME = "mandor.test/busybox:1"
_SKIPPED = {"linuxrc", "busybox"}


def busybox_image(
    name: str = NAME,
    *,
    config: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    only: str = "",
) -> bytes:
    """An archive that is a docker archive and an OCI layout at once, so that every engine can load it.

    `only="docker"`, `only="oci"`: just one of the two.
    """
    layer = _layer(files or {})
    settings = {"Env": ["PATH=/bin"], "Cmd": ["sh"]} | dict(config or {})
    image = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_hash(layer)}"]},
            "history": [{"created_by": "mandor tests"}],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _entry("application/vnd.oci.image.config.v1+json", image),
            "layers": [_entry("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    )
    index = {
        "schemaVersion": 2,
        "manifests": [
            _entry("application/vnd.oci.image.manifest.v1+json", manifest)
            | {"annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}}
        ],
    }
    blobs = {f"blobs/sha256/{_hash(blob)}": blob for blob in (layer, image, manifest)}
    config_path, layer_path = f"blobs/sha256/{_hash(image)}", f"blobs/sha256/{_hash(layer)}"
    described = [{"Config": config_path, "RepoTags": [name], "Layers": [layer_path]}]
    oci = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    docker = {"manifest.json": _json(described)}
    return _tar(({} if only == "docker" else oci) | ({} if only == "oci" else docker) | blobs)


def busybox_images(configs: Mapping[str, Mapping[str, Any]], files: Mapping[str, bytes]) -> bytes:
    """A docker archive of several images, by name, that differ only in their settings."""
    layer = _layer(files)
    blobs, described = {f"blobs/sha256/{_hash(layer)}": layer}, []
    for name, config in configs.items():
        image = _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]} | dict(config),
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_hash(layer)}"]},
                "history": [{"created_by": "mandor tests"}],
            }
        )
        blobs[f"blobs/sha256/{_hash(image)}"] = image
        paths = [f"blobs/sha256/{_hash(each)}" for each in (image, layer)]
        described.append({"Config": paths[0], "RepoTags": [name], "Layers": [paths[1]]})
    return _tar({"manifest.json": _json(described)} | blobs)


def image_files() -> list[tuple[ImageFile, bytes]]:
    """Archives of both forms, of images that nobody has: what a node is told of each, and what it gets."""
    found = []
    for only in ("docker", "oci"):
        word = uuid.uuid4().hex[:8]
        content = busybox_image(f"mandor.test/{only}:{word}", files={"etc/word": word.encode()}, only=only)
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            source = open_image([Path(file.name)], names=[f"also/{only}:{word}"])
            found.append((source.image, b"".join(source.read())))
    return found


def busybox_layer(files: Mapping[str, bytes] | None = None) -> bytes:
    return _layer(files or {})


def _layer(files: Mapping[str, bytes]) -> bytes:
    busybox = find("busybox")
    if busybox is None:
        raise RuntimeError(missing("busybox"))
    program = busybox.read_bytes()
    if b"/ld-linux" in program[:4096]:
        raise RuntimeError(f"{busybox} is not static; {missing('busybox')}")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ("bin", "etc", "proc", "sys", "dev", "tmp", "var"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        _add(tar, "bin/busybox", program, 0o755)
        for applet in _applets(busybox):
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
        _add(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\nworker:x:1234:1235:worker:/tmp:/bin/sh\n")
        _add(tar, "etc/group", b"root:x:0:\nworker:x:1235:\n")
        entry = tarfile.TarInfo("share")
        entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o750, 1234, 1235
        tar.addfile(entry)
        _add(tar, "share/text", b"from the image\n")
        for path, content in files.items():
            _add(tar, path, content)
    return out.getvalue()


def _applets(busybox: Path) -> Sequence[str]:
    import subprocess

    answer = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=20)
    return [name for name in answer.stdout.split() if name not in _SKIPPED]


def _add(tar: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, content in files.items():
            _add(tar, path, content)
    return out.getvalue()


def _entry(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{_hash(blob)}", "size": len(blob)}


def _hash(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
