"""`mandor image`: an image goes from a file to several nodes, through the server, without a registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.components.docker import Docker
from tests.components.image import busybox_image
from tests.e2e.cluster import Cluster, eventually

MANDOR = Path(sys.executable).with_name("mandor")
FAKE = {"MANDOR_ENGINE_OPTION": "fake.images=true"}

Told = subprocess.CompletedProcess[str]
Mandor = Callable[..., Told]


def commands(cluster: Cluster) -> Mandor:
    def call(*words: str, code: int = 0) -> Told:
        env = {**os.environ, "MANDOR_SERVER": cluster.urls[0]}
        done = subprocess.run([MANDOR, *words], capture_output=True, text=True, env=env, timeout=120, check=False)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    return call


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`n1` and `n2` run images (of nothing), `n3` runs processes."""
    with Cluster(tmp_path_factory.mktemp("cluster"), settings={"MANDOR_IMAGE_MOST": "20Mi"}) as running:
        running.start_server()
        running.start_agent("n1", engines=("fake",), environ={**FAKE, "MANDOR_LABEL": "zone=a"})
        running.start_agent("n2", engines=("fake",), environ={**FAKE, "MANDOR_LABEL": "zone=b", "MANDOR_POOL": "edge"})
        running.start_agent("n3", environ={"MANDOR_LABEL": "zone=a"})
        running.wait_nodes("n1", "n2", "n3")
        yield running


@pytest.fixture
def mandor(cluster: Cluster) -> Mandor:
    return commands(cluster)


def archive(folder: Path, name: str) -> str:
    path = folder / "image.tar"
    path.write_bytes(busybox_image(name))
    return str(path)


def results(told: Told) -> dict[str, str]:
    return {each["node"]: each["result"] for each in json.loads(told.stdout)["items"]}


def had(mandor: Mandor, *words: str) -> dict[str, list[str]]:
    return {
        each["name"]: each["nodes"]
        for each in json.loads(mandor("image", "list", "-o", "json", *words).stdout)["items"]
    }


@pytest.mark.req("S0-2")
def test_an_image_goes_to_every_node_that_can_have_it_and_a_second_time_it_is_there(
    mandor: Mandor, tmp_path: Path
) -> None:
    file = archive(tmp_path, "shop/all:1")
    assert results(mandor("image", "load", file, "--all", "-o", "json")) == {
        "n1": "loaded",
        "n2": "loaded",
        "n3": "skipped",
    }
    assert had(mandor)["shop/all:1"] == ["n1", "n2"]  # At once: the agents told before the command ended.
    assert results(mandor("image", "load", file, "--all", "-o", "json"))["n1"] == "already there"
    assert "shop/all:1" in mandor("image", "list", "--node", "n2").stdout


def test_nodes_are_chosen_by_name_pool_and_label(mandor: Mandor, tmp_path: Path) -> None:
    for number, (words, nodes) in enumerate(
        [
            (("--node", "n2"), {"n2"}),
            (("--pool", "edge"), {"n2"}),
            (("--label", "zone=a"), {"n1", "n3"}),
            (("--label", "zone=a", "--node", "n2"), {"n1", "n2", "n3"}),
        ]
    ):
        file = archive(tmp_path, f"shop/chosen:{number}")
        assert set(results(mandor("image", "load", file, *words, "-o", "json"))) == nodes


def test_a_node_that_was_named_and_cannot_have_it_is_a_failure_and_the_others_get_it(
    mandor: Mandor, tmp_path: Path
) -> None:
    file = archive(tmp_path, "shop/named:1")
    told = mandor("image", "load", file, "--node", "n1", "--node", "n3", code=1)
    rows = [line.split(None, 3) for line in told.stdout.splitlines()]
    assert rows[1][:3] == ["n1", "fake", "loaded"]
    assert rows[2][0] == "n3"
    assert "no engine of this node loads" in told.stdout
    assert "loading failed on 1 of 2 nodes" in told.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "there are 3 nodes: select some with --node, --pool, --label or --all"),
        (("--node", "n7"), 1, "no node n7"),
        (("--pool", "nowhere"), 1, "no node matches"),
        (("--label", "zone"), 2, "is not KEY=VALUE"),
        (("--node", "n1", "--engine", "docker"), 1, "this node has no engine docker"),
        (("--label", "zone=a", "--pool", "edge"), 1, "no node matches"),
    ],
)
def test_a_choice_that_cannot_be_is_reported(
    mandor: Mandor, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    told = mandor("image", "load", archive(tmp_path, "shop/none:1"), *words, code=code)
    assert said in told.stdout + told.stderr
    assert "shop/none:1" not in had(mandor)


def test_what_is_no_image_is_reported_before_anything_is_sent(mandor: Mandor, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert "notes.txt" in mandor("image", "load", str(path), "--all", code=1).stderr


def test_an_image_over_the_servers_limit_is_refused(mandor: Mandor, tmp_path: Path) -> None:
    path = tmp_path / "large.tar"
    path.write_bytes(busybox_image("shop/large:1", files={"large": b"\0" * (21 << 20)}))
    told = mandor("image", "load", str(path), "--node", "n1", code=1)
    assert "at most 20971520 are allowed" in told.stdout
    assert "image_most" in told.stdout


def test_a_node_that_does_not_answer_is_reported_and_the_others_get_it(
    cluster: Cluster, mandor: Mandor, tmp_path: Path
) -> None:
    cluster.agents["n2"].kill()
    try:
        cluster.wait_nodes("n2", phase="Down")
        file = archive(tmp_path, "shop/down:1")
        told = results(mandor("image", "load", file, "--all", "-o", "json", code=1))
        assert told == {"n1": "loaded", "n2": "failed", "n3": "skipped"}
    finally:
        cluster.agents["n2"].start()
        cluster.wait_nodes("n2")
    assert results(mandor("image", "load", file, "--all", "-o", "json")) == {
        "n1": "already there",
        "n2": "loaded",
        "n3": "skipped",
    }


# With a real engine.


@pytest.fixture
def real(own_docker: Docker, tmp_path: Path) -> Iterator[Cluster]:
    """One node, `n1`, with every engine that is there."""
    with Cluster(tmp_path / "real") as running:
        running.start_server()
        running.start_agent("n1", engines=("all",), environ={"DOCKER_HOST": f"unix://{own_docker.socket}"})
        running.wait_nodes("n1")
        yield running


@pytest.fixture
def small_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mandor-disk-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def own_docker(new_docker: Callable[..., Docker], small_disk: Path) -> Docker:
    """Its disk has room for little more than busybox."""
    return new_docker(f"--data-root={small_disk}")


@pytest.mark.real("docker")
@pytest.mark.req("S0-2", "S0-30")
def test_an_image_from_a_file_runs_and_a_full_disk_is_shown_as_what_it_is(real: Cluster, tmp_path: Path) -> None:
    mandor = commands(real)
    path = tmp_path / "oci.tar"
    for only in ("oci", "docker"):
        name = f"mandor.test/{only}:1"
        path.write_bytes(busybox_image(name, files={"etc/word": only.encode()}, only=only))
        told = mandor("image", "load", str(path), "--engine", "docker")  # There is one node: it needs no choice.
        assert told.stdout.split()[-3:] == ["n1", "docker", "loaded"]
        assert had(mandor)[name] == ["n1"]
        real.apply(
            f"name: {only}\nimage: {name}\nengine: docker\noptions: {{docker: {{pull: never}}}}\n"
            "command: [sh, -c, 'echo $(cat /etc/word); exec sleep 1000']\nstop: {grace: 0s}\n"
        )
        real.wait_running(only, 1)
        eventually("it is the one that was loaded", lambda: mandor("logs", only).stdout.strip() == only)  # noqa: B023
    told = mandor("image", "load", str(path), "--engine", "docker")
    assert "already there" in told.stdout

    path.write_bytes(busybox_image("mandor.test/large:1", files={"large": os.urandom(1 << 20) * 60}))
    told = mandor("image", "load", str(path), "--engine", "docker", code=1)
    assert "the disk of docker is full" in told.stdout
    assert "free disk space on the node" in told.stdout
    assert "mandor.test/large:1" not in had(mandor)
    path.write_bytes(busybox_image("mandor.test/after:1", files={"etc/word": b"after"}))
    assert "loaded" in mandor("image", "load", str(path), "--engine", "docker").stdout
