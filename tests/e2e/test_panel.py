"""The web panel in a real browser: what an operator does on an ordinary day."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.components.browser import open_page
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

PRESSED = """async () => {
  const { List, h } = await import("/ui/dom.js");
  const list = new List([{ name: "Name", of: (each) => h("a", {}, each.name) }], "pressed");
  document.body.append(list.element);
  list.show([{ name: "old" }]);
  const link = list.element.querySelector("a");
  link.dispatchEvent(new PointerEvent("pointerdown", { bubbles: true }));
  list.show([{ name: "new" }]);
  const held = link.isConnected;
  link.dispatchEvent(new PointerEvent("pointerup", { bubbles: true }));
  await new Promise((done) => setTimeout(done));
  const now = list.element.querySelector("a").textContent;
  list.element.remove();
  return [held, link.isConnected, now];
}"""
"""Whether the line under the pointer stays until it is released, and what it shows then."""


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
    expect(page.locator("h1")).to_have_count(1)  # it is drawn
    wrong: Any = page.evaluate(CHECKS)
    assert wrong == []


def use_shell(page: Page) -> None:
    """As at a terminal: history, a program that is interrupted, colours, the size, one that fills the screen."""
    screen, spoken = page.locator(".terminal .grid"), page.get_by_role("log", name="Output")
    expect(spoken).to_contain_text(re.compile(r"[$#] ?$"))  # its prompt
    page.keyboard.type("echo $((6*7)) && printf '\\033[31mme\\033[0mrah\\n'\n")
    expect(screen).to_contain_text(re.compile("42 *merah"))
    expect(screen.locator(".f1", has_text="me")).to_have_text("me")
    page.keyboard.type("echo begun-$((1+0)); sleep 1000\n")
    expect(screen).to_contain_text("begun-1")
    page.keyboard.press("Control+c")
    page.keyboard.type("echo after-$((1+1))\n")
    expect(screen).to_contain_text("after-2")
    page.keyboard.press("ArrowUp")
    for _ in "1))":
        page.keyboard.press("Backspace")
    page.keyboard.type("5))\n")
    expect(screen).to_contain_text("after-6")
    page.keyboard.type("stty size\n")
    size = page.evaluate("[...document.querySelectorAll('.terminal .grid > div')].length")
    expect(spoken).to_contain_text(re.compile(rf"^{size} \d+$", re.MULTILINE))
    page.keyboard.type("printf '\\033[?1049h\\033[2J\\033[3;5Hwhole'; read x; printf '\\033[?1049l'\n")
    expect(screen.locator("> div").nth(2)).to_have_text(re.compile("^    whole *$"))
    page.keyboard.type("\n")
    expect(screen).to_contain_text("after-6")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_label("Shell", exact=True)).not_to_be_focused()
    page.get_by_label("Shell", exact=True).focus()


@pytest.mark.real("chromium")
@pytest.mark.req("S2-10", "S0-35")
def test_an_operator_applies_watches_reads_scales_drains_and_asks_why(cluster: Cluster, tmp_path: Path) -> None:
    with open_page(tmp_path) as page:
        go(page, cluster, "plan")
        page.get_by_label("A manifest, or a Compose").fill(WORK)
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_text("Some instances would stay pending.")).to_be_visible()
        expect(page.get_by_text("default/talker-0 →")).to_be_visible()
        check_accessible(page)
        page.get_by_role("button", name="Simulate").click()
        expect(page.get_by_text("All expectations are met.")).to_be_visible(timeout=120_000)
        expect(page.get_by_text(re.compile(": talker-0"))).to_be_visible()
        check_accessible(page)
        page.screenshot(path=str(tmp_path / "simulate.png"))
        assert cluster.items("workloads") == []
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_text("workload default/talker created")).to_be_visible()

        page.get_by_role("link", name="Workloads").click()
        assert page.evaluate(PRESSED) == [True, False, "new"], "a click is not lost because a line changes"
        page.get_by_role("link", name="talker").click()
        expect(page.get_by_role("heading", name="default/talker Running")).to_be_visible()
        check_accessible(page)

        page.get_by_label("Replicas").fill("3")
        page.get_by_role("button", name="Scale").click()
        expect(page.get_by_role("link", name="talker-2")).to_be_visible()
        cluster.wait_running("talker", 3)

        page.get_by_role("link", name="talker-0").click()
        expect(page.get_by_label("Logs")).to_contain_text("selamat pagi")
        expect(page.get_by_text("placed on n").first).to_be_visible()
        check_accessible(page)
        page.get_by_role("button", name="Open a shell").click()
        use_shell(page)
        page.screenshot(path=str(tmp_path / "shell.png"))
        page.keyboard.type("exit 3\n")
        expect(page.locator(".grid")).to_contain_text("Exit status 3")
        expect(page.get_by_role("button", name="Open a shell")).to_be_visible()
        check_accessible(page)

        page.keyboard.press("o")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.get_by_label("2 nodes")).to_be_visible()
        page.get_by_label("Colour by").select_option("phase")
        check_accessible(page)
        page.screenshot(path=str(tmp_path / "overview.png"))

        page.get_by_role("link", name="Explanation").click()
        page.get_by_role("link", name="huge-0").click()
        expect(page.get_by_text("Suggested changes")).to_be_visible()

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
            expect(page.get_by_text("requested by")).to_be_visible()
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
