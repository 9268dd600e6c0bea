"""A real dockerd on a small disk: an image goes when the disk is short and nothing uses it, and not before."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.components.disk import small_disk
from tests.components.docker import Docker
from tests.components.image import NAME, busybox_layer
from tests.components.registry import start_registry, write_image
from tests.e2e.cluster import Cluster, eventually

pytestmark = pytest.mark.real("docker")

MEBIBYTE = 1 << 20
WORKLOAD = "name: {name}\nimage: {image}\npriority: 1\ncommand: [sleep, '1000']\nstop: {{grace: 1s}}\n"


def with_ballast(layer: bytes, size: int) -> bytes:
    """The same layer with a big file in it."""
    made = io.BytesIO(layer)
    with tarfile.open(fileobj=made, mode="a") as tar:
        ballast = tarfile.TarInfo("ballast")
        ballast.size = size
        tar.addfile(ballast, io.BytesIO(os.urandom(size)))
    return made.getvalue()


@pytest.mark.req("S3-9")
def test_an_image_that_nothing_uses_goes_before_any_instance(tmp_path: Path, new_docker: Callable[..., Docker]) -> None:
    home = Cluster(tmp_path / "cluster").home("n1")
    with small_disk(tmp_path / "disk", home, 256), Cluster(tmp_path / "cluster") as cluster:
        docker = new_docker(f"--data-root={home / 'docker'}")
        write_image(tmp_path / "registry", with_ballast(busybox_layer(), 80 * MEBIBYTE))
        registry = start_registry(docker.enclosure.command([]), tmp_path / "registry")
        try:
            cluster.start_server()
            environ = {"DOCKER_HOST": f"unix://{docker.socket}"}
            options = ("--pressure", "disk=75%:1%:1h", "--pressure", "memory=off", "--pressure", "inodes=off")
            cluster.start_agent("n1", engines=("docker",), options=options, environ=environ)
            cluster.wait_nodes("n1")
            for name in ("keeps", "goes"):
                # Of the image that was loaded by hand, and of one that has to be fetched.
                image = NAME if name == "keeps" else registry.image
                cluster.apply(
                    f"name: {name}\nimage: {image}\npriority: 1\ncommand: [sleep, '1000']\nstop: {{grace: 1s}}\n"
                )
                cluster.wait_running(name, 1)
            eventually("it is short", lambda: cluster.items("nodes")[0]["status"].get("pressure") == ["disk"])
            assert registry.image in docker.cli("images", "--format", "{{.Repository}}:{{.Tag}}")

            assert cluster.call("DELETE", "/v1/workloads/goes")[0] == 200
            told = eventually("it is told", lambda: events(cluster, "ImageCleaned"))
            assert registry.image in told[0]
            assert docker.cli("images", "--format", "{{.Repository}}:{{.Tag}}").splitlines() == [NAME]
            assert shutil.disk_usage(home).free > 180 * MEBIBYTE
            cluster.wait_running("keeps", 1)
            assert not events(cluster, "Evicted")
        finally:
            registry.close()


def events(cluster: Cluster, reason: str) -> list[str]:
    return [each["spec"]["message"] for each in cluster.items("events") if each["spec"]["reason"] == reason]
