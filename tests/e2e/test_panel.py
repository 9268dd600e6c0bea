"""The web panel in a real browser: what an operator does on an ordinary day."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.components.browser import WAIT_MILLISECONDS, open_page
from tests.e2e.cluster import Cluster
from tests.e2e.test_spares import placing, prepare

WORK = """name: talker
count: 2
engine: process
command: [sh, -c, "while :; do echo selamat pagi; sleep 0.3; done"]
resources: {cpu: 50m, memory: 16Mi}
---
name: huge
engine: process
command: [sleep, "1000"]
resources: {cpu: 9000, memory: 16Mi}
"""
CHECKS = (Path(__file__).parent / "accessible.js").read_text().partition("\n")[2]
expect.set_options(timeout=WAIT_MILLISECONDS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as found:
        found.start_server()
        for name in ("n1", "n2"):
            found.start_agent(name)
        found.wait_nodes("n1", "n2")
        yield found


def go(page: Page, cluster: Cluster, place: str = "") -> None:
    page.goto(f"{cluster.urls[0]}/ui/#/{place}")
    expect(page.get_by_text("Connected")).to_be_visible()


def check_accessible(page: Page) -> None:
    wrong: Any = page.evaluate(CHECKS)
    assert wrong == []


@pytest.mark.real("chromium")
@pytest.mark.req("S2-10", "S0-35")
def test_an_operator_applies_watches_reads_scales_drains_and_asks_why(cluster: Cluster, tmp_path: Path) -> None:
    with open_page(tmp_path) as page:
        go(page, cluster, "plan")
        page.get_by_label("A manifest, or a Compose").fill(WORK)
        page.get_by_role("button", name="Rehearse").click()
        expect(page.get_by_text("Not everything would have a node.")).to_be_visible()
        expect(page.get_by_text("default/talker-0 →")).to_be_visible()
        check_accessible(page)
        assert cluster.items("workloads") == []
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_text("workload default/talker created")).to_be_visible()

        page.get_by_role("link", name="Workloads").click()
        page.get_by_role("link", name="talker").click()
        expect(page.get_by_role("heading", name="default/talker Running")).to_be_visible()
        check_accessible(page)

        page.get_by_label("Count").fill("3")
        page.get_by_role("button", name="Scale").click()
        expect(page.get_by_role("link", name="talker-2")).to_be_visible()
        cluster.wait_running("talker", 3)

        page.get_by_role("link", name="talker-0").click()
        expect(page.get_by_label("Logs")).to_contain_text("selamat pagi")
        expect(page.get_by_text("it is on")).to_be_visible()
        check_accessible(page)
        page.get_by_role("button", name="Open a shell").click()
        page.get_by_label("Input").fill("echo $((6*7)) && printf '\\033[31mme\\033[0mrah\\n'; exit 3")
        expect(page.get_by_label("Shell")).not_to_be_empty()  # its prompt
        page.screenshot(path=str(tmp_path / "shell.png"))
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_label("Shell")).to_contain_text(
            re.compile("^42\nmerah$.*Exit status 3", re.MULTILINE | re.DOTALL)
        )
        expect(page.get_by_role("button", name="Open a shell")).to_be_visible()
        check_accessible(page)

        page.keyboard.press("o")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.get_by_label("2 nodes")).to_be_visible()
        page.get_by_label("Colour by").select_option("phase")
        check_accessible(page)
        page.screenshot(path=str(tmp_path / "overview.png"))

        page.get_by_role("link", name="Why").click()
        page.get_by_role("link", name="huge-0").click()
        expect(page.get_by_text("What would help")).to_be_visible()

        page.keyboard.press("/")
        page.get_by_label("Search").fill("n1")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="n1 Ready")).to_be_visible()
        page.get_by_role("button", name="Drain").click()
        expect(page.get_by_role("button", name="Uncordon")).to_be_visible()
        check_accessible(page)


@pytest.mark.real("chromium")
def test_a_viewer_logs_in_by_token_and_sees_no_button_that_is_not_for_them(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server()
        cluster.apply(WORK)
        status, made = cluster.call("POST", "/v1/tokens", {"role": "viewer", "identity": "budi"})
        assert status in {200, 201}, made
        with open_page(tmp_path, width=390, height=800) as page:
            # This server asks nobody on its own machine; a token that is shown counts all the same.
            page.add_init_script("sessionStorage.mandorTried ??= sessionStorage['mandor.token'] = 'of.nobody'")
            page.goto(f"{cluster.urls[0]}/ui/#/workloads/default/talker")
            check_accessible(page)
            page.get_by_label("Token").fill(made["token"])
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("heading", name="default/talker")).to_be_visible()
            assert page.get_by_role("button", name="Scale").count() == 0
            assert page.get_by_role("button", name="Restart").count() == 0
            page.get_by_role("link", name="Settings").click()
            expect(page.get_by_text("(viewer)")).to_be_visible()
            page.get_by_label("Language").select_option("id")
            expect(page.get_by_role("heading", name="Pengaturan")).to_be_visible()
            page.get_by_label("Tema").select_option("dark")
            check_accessible(page)


@pytest.mark.real("chromium")
@pytest.mark.req("S2-10", "S4-35")
def test_an_operator_watches_bare_metal_calls_a_task_off_and_releases_spares(tmp_path: Path) -> None:
    with placing(tmp_path) as (cluster, *_):
        ask = {"requested_cpu": 2, "requested_memory": 1024, "requested_pool": "general"}
        task = str(cluster.call("POST", "/schedule", ask)[1]["task_id"])
        with open_page(tmp_path) as page:
            page.on("dialog", lambda dialog: dialog.accept())
            go(page, cluster, "baremetal?state=Placed")
            tasks = page.get_by_role("table", name="Tasks")
            expect(tasks.get_by_role("link", name=task)).to_be_visible()
            spare = prepare(cluster, "rehearsal")
            expect(page.get_by_role("row").filter(has_text=spare)).to_contain_text("1/1")
            expect(tasks.get_by_role("link")).to_have_count(2)  # the task, and its machine: the spare's are confirmed
            check_accessible(page)
            page.screenshot(path=str(tmp_path / "baremetal.png"))

            tasks.get_by_role("link", name=task).click()
            expect(page.get_by_role("heading", name=f"{task} Placed")).to_be_visible()
            expect(page.get_by_text("asked for by")).to_be_visible()
            check_accessible(page)
            page.get_by_role("button", name="Cancel").click()
            expect(page.get_by_role("heading", name=f"{task} Cancelled")).to_be_visible()
            assert page.get_by_role("button", name="Cancel").count() == 0
            page.screenshot(path=str(tmp_path / "task.png"))

            go(page, cluster, f"spares/default/{spare}")
            machines = page.get_by_role("table", name="Machines")
            expect(machines).to_contain_text("Ready")
            check_accessible(page)
            page.screenshot(path=str(tmp_path / "spare.png"))
            page.get_by_role("button", name="Release machines").click()
            expect(page.get_by_role("heading", name=f"{spare} Released")).to_be_visible()
            expect(machines).to_contain_text("Gone")
            machines.get_by_role("row").nth(1).get_by_role("link").last.click()
            expect(page.get_by_role("link", name=spare)).to_be_visible()
            expect(page.get_by_role("heading", name="Released")).to_be_visible()
