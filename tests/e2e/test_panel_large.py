"""The web panel and a large cluster: what it draws does not grow with what there is, and nobody's typing is lost."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import expect

from bench._api import Server, server
from bench.panel import Traffic, fill, log_in
from mandor.client.aio import Client
from mandor.store.remote import RemoteStore
from tests.components.browser import open_page

NODES, INSTANCES, COPIES = 1_000, 10_000, 20
LINES_MOST = 60
COMMITS = 30
TEXT = "service-12 while everything changes"
# Frames are counted: two that come late may tell the same time.
LISTEN = """import("/ui/live.js").then((live) => {
  let frame = 0;
  const count = () => { frame += 1; requestAnimationFrame(count); };
  count();
  window.frames_drawn = [];
  live.listen(() => window.frames_drawn.push(frame));
})"""


def change(target: Server, typed: threading.Event) -> None:
    """A cluster in which much happens, until it has been typed and then `COMMITS` times more."""

    async def run() -> None:
        async with RemoteStore(Client([target.url], token=target.tokens["component"])) as store:
            traffic = Traffic(store, list((await store.list("instance")).items))
            await traffic.run(until=typed.is_set)
            for _ in range(COMMITS):
                await traffic.step()

    asyncio.run(run())


async def fill_store(target: Server) -> None:
    async with RemoteStore(Client([target.url], token=target.tokens["component"])) as store:
        await fill(store, NODES, INSTANCES, COPIES)


@pytest.mark.real("chromium")
@pytest.mark.req("S2-10")
def test_ten_thousand_instances_are_a_few_lines_one_drawing_a_frame_and_no_lost_key(tmp_path: Path) -> None:
    with ExitStack() as stack:
        target = stack.enter_context(server())
        asyncio.run(fill_store(target))
        page = stack.enter_context(open_page(tmp_path))
        page.add_init_script(log_in(target))
        page.goto(f"{target.url}/ui/#/")
        expect(page.get_by_label(f"{NODES} nodes, {INSTANCES} instances")).to_be_visible()
        page.screenshot(path=str(tmp_path / "overview.png"))
        page.evaluate(LISTEN)
        typed = threading.Event()
        traffic = threading.Thread(target=change, args=(target, typed))
        traffic.start()
        try:
            page.get_by_label("Search").focus()
            for number, letter in enumerate(TEXT):
                page.keyboard.type(letter)
                if number % 9 == 5:
                    page.evaluate(f"location.hash = '#/{('nodes', 'workloads', 'instances', '')[number // 9 % 4]}'")
            expect(page.get_by_label("Search")).to_have_value(TEXT)
            page.evaluate("location.hash = '#/instances'")
            expect(page.get_by_role("heading", name="Instances")).to_be_visible()
        finally:
            typed.set()
            traffic.join()
        table = page.get_by_role("table", name="Instances")
        expect(table.get_by_role("row").nth(20)).to_be_visible()
        assert int(table.get_attribute("aria-rowcount") or 0) > INSTANCES
        assert page.locator(".space .line").count() < LINES_MOST
        table.evaluate("(table) => table.scrollTo(0, 300000)")
        expect(table.get_by_role("row").nth(20)).to_contain_text("service-")
        assert page.locator(".space .line").count() < LINES_MOST
        drawn = page.evaluate("window.frames_drawn")
        assert len(drawn) == len(set(drawn))
