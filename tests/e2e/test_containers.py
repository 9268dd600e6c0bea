"""Images on a real dockerd, from a manifest to a container and back: what users see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.components.browser import open_page
from tests.components.docker import Docker
from tests.components.image import NAME, busybox_layer
from tests.components.registry import start_registry, write_image
from tests.e2e.cluster import Cluster, eventually

pytestmark = pytest.mark.real("docker")

WEB = f"""
name: web
replicas: {{replicas}}
image: {NAME}
command: [sh, -c, "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done"]
resources: {{{{cpu: 100m, memory: 64Mi, limits: {{{{memory: 64Mi, processes: 50}}}}}}}}
placement: {{{{where: ["engine.docker.version version >= 20"]}}}}
restart: {{{{delay: 200ms}}}}
stop: {{{{grace: 2s}}}}
"""

COMPOSE = f"""
services:
  shop:
    image: {NAME}
    command: [sh, -c, "trap 'exit 0' TERM; echo selamat datang; while :; do sleep 0.1; done"]
    stop_grace_period: 2s
    deploy: {{replicas: 2}}
"""


@pytest.fixture
def own_docker(new_docker: Callable[..., Docker]) -> Docker:
    return new_docker("--live-restore")


@pytest.fixture
def cluster(own_docker: Docker, tmp_path: Path) -> Iterator[Cluster]:
    """One server and one agent, `n1`, with every engine that is there."""
    with Cluster(tmp_path / "cluster") as running:
        running.start_server()
        running.start_agent("n1", engines=("all",), environ={"DOCKER_HOST": f"unix://{own_docker.socket}"})
        running.wait_nodes("n1")
        yield running


def node(cluster: Cluster) -> dict[str, Any]:
    (found,) = cluster.items("nodes")
    assert isinstance(found, dict)
    return found


def containers(docker: Docker) -> list[str]:
    return docker.cli("ps", "--all", "--filter", "label=io.mandor.uid", "--format", "{{.ID}} {{.State}}").splitlines()


@pytest.mark.req("S0-2", "S2-5", "S2-24", "S2-25", "S2-27")
def test_an_image_runs_is_restarted_scaled_and_removed(cluster: Cluster, own_docker: Docker) -> None:
    assert node(cluster)["status"]["engines"]["docker"]["images"] is True
    cluster.apply(WEB.format(replicas=2))
    first, _ = cluster.wait_running("web", 2)
    assert first["status"]["engine"] == "docker"
    assert first["status"]["address"]
    own_docker.cli("kill", containers(own_docker)[0].split()[0])
    eventually(
        "the killed one was restarted",
        lambda: sum(one["status"].get("restarts", 0) for one in cluster.instances()) == 1,
    )
    cluster.wait_running("web", 2)
    cluster.apply(WEB.format(replicas=1))
    cluster.wait_running("web", 1)
    assert cluster.call("DELETE", "/v1/workloads/web")[0] == 200
    eventually("nothing is left", lambda: not containers(own_docker) and not cluster.instances())


@pytest.mark.real("chromium")
@pytest.mark.req("S0-35", "S2-10")
def test_a_compose_file_is_applied_in_a_browser_and_becomes_running(cluster: Cluster, tmp_path: Path) -> None:
    with open_page(tmp_path) as page:
        page.goto(f"{cluster.urls[0]}/ui/#/plan")
        page.get_by_label("A manifest, or a Compose").fill(COMPOSE)
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_text("Every instance would get a node.")).to_be_visible()
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_text("workload default/shop created")).to_be_visible()
        page.get_by_role("link", name="Workloads").click()
        page.get_by_role("link", name="shop").click()
        expect(page.get_by_role("heading", name="default/shop Running")).to_be_visible()
        page.get_by_role("link", name="shop-1").click()
        expect(page.get_by_label("Logs")).to_contain_text("selamat datang")
        expect(page.get_by_role("img", name=re.compile("^Memory "))).to_be_visible()
        page.screenshot(path=str(tmp_path / "instance.png"), full_page=True)


@pytest.mark.req("S0-28", "S0-29")
def test_an_agent_that_is_killed_adopts_its_containers(cluster: Cluster, own_docker: Docker) -> None:
    cluster.apply(WEB.format(replicas=3))
    cluster.wait_running("web", 3)
    before = sorted(containers(own_docker))
    cluster.agents["n1"].kill()
    cluster.agents["n1"].start()
    cluster.wait_nodes("n1")
    cluster.wait_running("web", 3)
    assert sorted(containers(own_docker)) == before
    assert all(not one["status"].get("restarts") for one in cluster.instances("web"))


@pytest.mark.req("S0-25")
def test_a_container_that_may_not_run_alone_is_stopped_though_its_agent_is_dead(
    cluster: Cluster, own_docker: Docker
) -> None:
    cluster.apply(WEB.format(replicas=1))
    cluster.apply(WEB.format(replicas=1).replace("web", "single") + "disconnect: {stop_after: 2s}\n")
    cluster.wait_running("web", 1)
    cluster.wait_running("single", 1)
    cluster.agents["n1"].kill()
    eventually(
        "the one is stopped, the other is not",
        lambda: sorted(line.split()[1] for line in containers(own_docker)) == ["exited", "running"],
    )
    cluster.agents["n1"].start()
    eventually("it is told why", lambda: "Disconnected" in {each["spec"]["reason"] for each in cluster.items("events")})
    cluster.wait_running("single", 1)


@pytest.mark.req("S0-2", "S0-14")
def test_a_docker_that_goes_away_costs_the_node_this_engine_and_comes_back(
    cluster: Cluster, own_docker: Docker
) -> None:
    cluster.apply(WEB.format(replicas=2))
    cluster.wait_running("web", 2)
    before = sorted(containers(own_docker))
    own_docker.stop()

    def down() -> bool:
        return node(cluster)["status"]["engines"]["docker"].get("up") is False

    eventually("the engine is shown as down", down)
    assert node(cluster)["status"]["phase"] == "Ready"
    assert node(cluster)["status"]["engines"]["process"].get("up", True)
    cluster.apply("name: plain\ncommand: [sleep, '1000']\nstop: {grace: 1s}\n")
    cluster.wait_running("plain", 1)

    def told() -> bool:
        shown = [each["status"] for each in cluster.instances("web")]
        return all((each["phase"], each.get("reason")) == ("Running", "EngineDown") for each in shown)

    eventually("its instances are as they were last seen, and say that nobody knows more", told)
    cluster.apply(f"name: next\nimage: {NAME}\nengine: docker\ncommand: [sleep, '1000']\nstop: {{grace: 0s}}\n")
    eventually("what wants it waits", lambda: cluster.instances("next", phase="Pending"))
    said = cluster.call("GET", "/v1/explain/instances/next-0")[1]["summary"]
    assert "no docker that is up and runs images; docker is down: " in said
    own_docker.start()
    eventually("the engine is up again", lambda: node(cluster)["status"]["engines"]["docker"].get("up", True))
    cluster.wait_running("next", 1)
    eventually("nothing is said any more", lambda: not any("reason" in each["status"] for each in cluster.instances()))
    cluster.wait_running("web", 2)
    assert set(containers(own_docker)) >= set(before)


@pytest.mark.req("S2-8", "S2-9", "S2-45", "S2-49")
def test_a_container_that_is_not_well_is_restarted(cluster: Cluster, own_docker: Docker) -> None:
    cluster.apply(
        f"name: sick\nimage: {NAME}\ncommand: [sh, -c, 'touch /tmp/well; sleep 1000']\n"
        "health: {command: [test, -e, /tmp/well], interval: 500ms, failures: 2}\n"
        "restart: {delay: 200ms}\nstop: {grace: 0s}\n"
    )
    cluster.wait_running("sick", 1)
    (first,) = containers(own_docker)
    own_docker.cli("exec", first.split()[0], "rm", "/tmp/well")
    eventually("it was restarted", lambda: cluster.instances("sick")[0]["status"].get("restarts") == 1)
    cluster.wait_running("sick", 1)
    eventually(
        "its trouble is told",
        lambda: any("Unhealthy" in event["spec"]["message"] for event in cluster.items("events")),
    )


def test_an_image_that_is_nowhere_is_shown_as_such(cluster: Cluster) -> None:
    cluster.apply("name: lost\nimage: mandor.test/nowhere:1\nengine: docker\noptions: {docker: {pull: never}}\n")

    def told() -> bool:
        events = [event["spec"] for event in cluster.items("events")]
        return any("mandor.test/nowhere:1 is not on this node" in event["message"] for event in events)

    eventually("the events name the image", told)


@pytest.mark.req("S0-30")
def test_an_instance_shows_how_far_its_image_is(cluster: Cluster, own_docker: Docker, tmp_path: Path) -> None:
    write_image(tmp_path / "registry", busybox_layer())
    registry = start_registry(own_docker.enclosure.command([]), tmp_path / "registry", pause=0.5)
    try:
        cluster.apply(f"name: slow\nimage: {registry.image}\ncommand: [sleep, '1000']\nstop: {{grace: 1s}}\n")

        def said() -> bool:
            return any("pulling" in one["status"].get("message", "") for one in cluster.instances("slow"))

        eventually("the pull shows", said)
        cluster.wait_running("slow", 1)
    finally:
        registry.close()


SERVER = f"""
name: web
replicas: {{replicas}}
image: {NAME}
command: [sh, -c, 'mkdir -p /tmp/www; echo "$TEXT" > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
env: {{{{TEXT: {{text}}}}}}
ports: {{{{http: 8080}}}}
stop: {{{{grace: 0s}}}}
update: {{{{order: stop-first}}}}
"""
CLIENT = f"""
name: client
image: {NAME}
command: [sh, -c, 'while :; do sleep 0.1; done']
stop: {{grace: 0s}}
"""


@pytest.mark.req("S2-6", "S2-31")
def test_containers_find_each_other_by_name_and_their_hosts_file_follows(cluster: Cluster, own_docker: Docker) -> None:
    cluster.apply(CLIENT)
    (client,) = cluster.wait_running("client", 1)
    (box,) = containers(own_docker)
    cluster.apply(SERVER.format(replicas=1, text="first"))
    cluster.wait_running("web", 1)

    def inside(*command: str) -> str:
        return own_docker.cli("exec", box.split()[0], *command)

    def says(name: str, text: str) -> bool:
        try:
            # A static busybox looks names up for ping alone; the page is fetched where that leads.
            found = re.search(r"\(([0-9.]+)\)", inside("ping", "-c", "1", "-W", "5", name))
            return found is not None and inside("wget", "-q", "-O-", f"http://{found[1]}:8080/") == text
        except AssertionError:
            return False

    for name in ("web", "main.web", "web-0"):
        eventually(f"{name} answers", partial(says, name, "first"))
    assert inside("hostname").strip() == "client-0"
    assert "client-0" in inside("cat", "/etc/hosts")

    cluster.apply(SERVER.format(replicas=2, text="second"))
    cluster.wait_running("web", 2)
    eventually("the other one is known, too", lambda: says("web-1", "second"))
    eventually("the first was replaced", lambda: says("web-0", "second"))
    addresses = {one["status"]["address"] for one in cluster.wait_running("web", 2)}

    def named() -> bool:
        lines = [line.split() for line in inside("cat", "/etc/hosts").splitlines()]
        return {line[0] for line in lines if "web" in line[1:]} == addresses

    eventually("the name leads to both", named)
    assert cluster.call("DELETE", "/v1/workloads/web")[0] == 200
    eventually("who is gone has no name", lambda: "web" not in inside("cat", "/etc/hosts"))
    (same,) = cluster.instances("client")
    assert same["meta"]["uid"] == client["meta"]["uid"]
    assert not same["status"].get("restarts")


@pytest.mark.parametrize("user", ["1000", "null"])
def test_a_container_finds_the_token_of_its_identity(cluster: Cluster, own_docker: Docker, user: str) -> None:
    script = "id -u; cut -d. -f1 < $MANDOR_IDENTITY_TOKEN_FILE; ls -l $MANDOR_IDENTITY_TOKEN_FILE; sleep 1000"
    cluster.apply(
        "kind: namespace\nname: default\nlevel: baseline\n---\n"
        f"name: named\nengine: docker\nimage: {NAME}\ncommand: [sh, -c, {script!r}]\n"
        f"identity: {{audience: [bank]}}\nsecurity: {{user: {user}}}\n"
    )
    cluster.wait_running("named", 1)
    printed = eventually("it has read its token", lambda: _printed(cluster, "named-0"))
    assert "\neyJ" in printed, printed
    mode = "-r--------" if user == "1000" else "-r--r--r--"
    assert mode in printed, printed


def _printed(cluster: Cluster, instance: str) -> str:
    text = cluster.mandor("logs", instance).stdout
    return text if text.count("\n") >= 3 else ""
