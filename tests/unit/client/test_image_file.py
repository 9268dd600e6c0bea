"""What a file on this machine is, and the bytes that nodes get of it."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.client.image_file import open_image
from mandor.errors import Invalid, NotFound

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def blob(content: bytes) -> dict[str, Any]:
    return {"digest": f"sha256:{sha(content)}", "size": len(content)}


CONFIG = b'{"os": "linux"}'
LAYER = tar({"bin/sh": b"#!"})
MANIFEST = json.dumps({"config": blob(CONFIG), "layers": [blob(LAYER)]}).encode()


def docker(*names: str) -> bytes:
    described = [{"Config": f"{sha(CONFIG)}.json", "RepoTags": list(names) or None, "Layers": ["l/layer.tar"]}]
    return tar({f"{sha(CONFIG)}.json": CONFIG, "l/layer.tar": LAYER, "manifest.json": json.dumps(described).encode()})


def oci(*names: str, kind: str = OCI_MANIFEST, manifest: bytes = MANIFEST) -> bytes:
    entry = {"mediaType": kind, **blob(manifest)}
    notes = [{"org.opencontainers.image.ref.name": name} for name in names] or [{}]
    index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": each} for each in notes]}
    blobs = {f"blobs/sha256/{sha(each)}": each for each in (LAYER, CONFIG, manifest)}
    return tar({"oci-layout": b"{}", **blobs, "index.json": json.dumps(index).encode()})


def incus() -> bytes:
    return tar({"metadata.yaml": b"architecture: x86_64\n", "rootfs/bin/sh": b"#!"})


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(content: bytes, name: str = "image.tar") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return make


Write = Callable[..., Path]


def members(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as made:
        return {each.name: made.extractfile(each).read() for each in made if each.isreg()}  # type: ignore[union-attr]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_of_docker_is_sent_unpacked_and_as_it_is(write: Write, pack: Callable[[bytes], bytes]) -> None:
    content = docker("shop/web:1", "shop/web:latest")
    source = open_image([write(pack(content))])
    assert (source.image.kind, source.image.id) == ("archive", sha(CONFIG))
    assert source.image.names == ("shop/web:1", "shop/web:latest")
    assert b"".join(source.read()) == content
    assert source.image.size == len(content)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_oci_layout_gets_the_description_that_an_older_docker_needs(
    write: Write, pack: Callable[[bytes], bytes]
) -> None:
    source = open_image([write(pack(oci("shop/web:1")))], names=["web"])
    sent = b"".join(source.read())
    assert len(sent) == source.image.size
    assert source.image.id == sha(CONFIG)
    found = members(sent)
    (described,) = json.loads(found["manifest.json"])
    assert described["RepoTags"] == ["shop/web:1", "web:latest"]
    assert found[described["Config"]] == CONFIG
    assert [found[layer] for layer in described["Layers"]] == [LAYER]
    assert found.keys() == members(oci("shop/web:1")).keys() | {"manifest.json"}


def test_a_mere_tag_is_no_name(write: Write) -> None:
    with pytest.raises(Invalid, match="has no name"):
        open_image([write(oci("latest"))])
    assert open_image([write(oci("latest"))], names=["shop/web:1"]).image.names == ("shop/web:1",)


def test_an_image_for_several_platforms_is_left_to_the_engines(write: Write) -> None:
    index = "application/vnd.oci.image.index.v1+json"
    content = oci("shop/web:1", kind=index, manifest=b'{"manifests": []}')
    source = open_image([write(content)])
    assert source.image.id == ""
    assert b"".join(source.read()) == content


def test_several_images_in_one_archive_keep_their_names(write: Write) -> None:
    path = write(oci("shop/web:1", "shop/db:1"))
    assert open_image([path]).image.names == ("shop/web:1", "shop/db:1")
    with pytest.raises(Invalid, match="holds 2 images"):
        open_image([path], names=["all:1"])


def test_an_image_of_incus_is_known_by_the_hash_of_its_bytes(write: Write) -> None:
    content = lzma.compress(incus())
    source = open_image([write(content)], names=["debian/13"])
    assert source.image.kind == "incus"
    assert (source.image.id, source.image.size) == (sha(content), len(content))
    assert b"".join(source.read()) == content


def test_an_image_of_incus_in_two_files_is_both_one_after_the_other(write: Write) -> None:
    metadata, rootfs = tar({"metadata.yaml": b"x: 1\n"}), b"hsqs" + b"\0" * 5000
    paths = [write(metadata, "incus.tar"), write(rootfs, "rootfs.squashfs")]
    source = open_image(paths, names=["debian/13"])
    assert source.image.metadata_bytes == len(metadata)
    assert b"".join(source.read()) == metadata + rootfs
    assert source.image.id == sha(metadata + rootfs)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a tar file|damaged"),
        (b"hello", "not a tar file|damaged"),
        (gzip.compress(b"hello" * 200), "not a tar file|damaged"),
        (gzip.compress(docker("a:1"))[:-40], "damaged"),
        (docker("a:1")[:1500], "damaged|no tar file|no image"),
        (tar({"etc/passwd": b"root"}), "no image"),
        (tar({"manifest.json": b"{"}), "not JSON"),
        (tar({"manifest.json": b"{}"}), "describes no image"),
        (tar({"index.json": b"{}"}), "lists no image"),
        (oci("a:1").replace(MANIFEST, MANIFEST.replace(b"config", b"cOnfig")), "damaged"),
        (tar({"index.json": json.dumps({"manifests": [{"digest": "md5:1"}]}).encode()}), "not a SHA-256"),
        (tar({"metadata.yaml": b"x"}), "without its root file system"),
        (b"hsqs" + b"\0" * 600, "without its metadata"),
        (incus(), "without a name"),
        (docker("two words:1"), "matching regex"),
    ],
    # Without names of their own they are called by their bytes, in which gzip puts the time.
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_what_is_no_image_is_reported_by_its_file(write: Write, content: bytes, words: str) -> None:
    path = write(content, "some.tar")
    with pytest.raises(Invalid, match=words) as caught:
        open_image([path])
    assert "some.tar" in caught.value.message


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"the file .*nowhere\.tar does not exist"):
        open_image([tmp_path / "nowhere.tar"])
    with pytest.raises(Invalid, match="cannot be read"):
        open_image([tmp_path])


@given(st.binary(max_size=2000), st.integers(0, 9000), st.integers(1, 500))
def test_whatever_is_broken_in_a_file_it_is_an_image_or_an_error(junk: bytes, at: int, length: int) -> None:
    import tempfile

    whole = oci("shop/web:1")
    content = whole[: at % len(whole)] + junk + whole[at % len(whole) + length :]
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            source = open_image([Path(file.name)])
        except Invalid:
            return
        assert len(b"".join(source.read())) == source.image.size
