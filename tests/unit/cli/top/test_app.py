"""The dashboard by its keys, against a real API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from mandor.cli.kinds import find_kind
from mandor.cli.top.app import Top
from mandor.cli.top.list_page import ListPage
from mandor.cli.top.page import Page, Question
from mandor.client import aio, sync
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.record import Event, EventSpec
from mandor.model.workload import make_release
from tests.unit.cli.conftest import LiveApi
from tests.unit.cli.test_looking import instance, node, workload

PATIENCE = 60.0


class Seat:
    """Somebody at the dashboard."""

    def __init__(self, app: Top, pilot: Pilot[None]) -> None:
        self.app, self._pilot = app, pilot

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def type(self, sign: str, text: str) -> None:
        await self.press(sign, *text, "enter")

    async def sees(self, what: str, true: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"{what}: {self.screen}"
            await self._pilot.pause(0.05)

    async def reads(self, text: str) -> None:
        await self.sees(text, lambda: text in self.screen)

    @property
    def page(self) -> ListPage:
        assert isinstance(self.app.screen, ListPage)
        return self.app.screen

    @property
    def names(self) -> list[str]:
        return [row.place[1] for row in self.page.table._rows] if isinstance(self.app.screen, ListPage) else []

    @property
    def screen(self) -> str:
        """What stands on the screen."""
        size = self.app.size
        strips = self.app.screen._compositor.render_strips(size)
        return "\n".join(strip.text.rstrip() for strip in strips)

    @property
    def foot(self) -> str:
        assert isinstance(self.app.screen, Page)
        return str(self.app.screen.query_one("#foot", Static).render())


@asynccontextmanager
async def seat(
    api: LiveApi, *, kind: str = "instances", namespace: str | None = "default", token: str = "", width: int = 80
) -> AsyncIterator[Seat]:
    asker = sync.Client([api.url], token=token)
    async with aio.Client([api.url], token=token) as client:
        app = Top(client, asker, namespace, find_kind(kind))
        async with app.run_test(size=(width, 24)) as pilot:
            yield Seat(app, pilot)


def fill(api: LiveApi) -> None:
    web = workload("name: web\nreplicas: 2\nimage: nginx\n", ready=1, wanted=2)
    api.put(
        node("n1"),
        node("n2"),
        web,
        make_release(web, 1),
        instance("web-0", on="n1"),
        instance("web-1", Phase.PENDING, on=""),
        instance("db-0", on="n2"),
    )


@pytest.mark.req("S2-10")
async def test_instances_are_shown_and_follow_what_happens(api: LiveApi) -> None:
    await asyncio.to_thread(fill, api)
    async with seat(api) as at:
        await at.sees("three", lambda: at.names == ["db-0", "web-0", "web-1"])
        await at.reads("Pending")
        await at.reads("instances (3) in default")
        await at.reads("nodes 2/2 ready")
        await asyncio.to_thread(api.put, instance("web-1", Phase.FAILED, on="n2"), instance("web-2", on="n1"))
        await at.reads("web-2")
        await at.reads("Failed")
        assert all(len(line) <= 80 for line in at.screen.splitlines())


async def test_a_level_down_and_back_up(api: LiveApi) -> None:
    await asyncio.to_thread(fill, api)
    async with seat(api, kind="nodes") as at:
        await at.sees("both", lambda: at.names == ["n1", "n2"])
        await at.press("j", "enter")
        await at.sees("its instances", lambda: at.names == ["db-0"])
        await at.reads("of node n2")
        await at.press("d")
        await at.reads("describe instance default/db-0")
        await at.reads("Running, not ready, on n2")
        await at.press("escape", "escape")
        await at.sees("nodes again", lambda: at.names == ["n1", "n2"])
        row = at.page.chosen
        assert row is not None
        assert row.place[1] == "n2", "the cursor is where it was"
        await at.press("escape")
        assert at.names == ["n1", "n2"], "there is nothing above the first page"


async def test_views_are_switched_by_name_and_filtered(api: LiveApi) -> None:
    await asyncio.to_thread(fill, api)
    async with seat(api) as at:
        await at.type("colon", "no")
        await at.sees("nodes", lambda: at.names == ["n1", "n2"])
        await at.type("colon", "wl")
        await at.sees("workloads", lambda: at.names == ["web"])
        await at.press("enter")
        await at.sees("its instances", lambda: at.names == ["web-0", "web-1"])
        await at.type("slash", "pend")
        await at.sees("one", lambda: at.names == ["web-1"])
        await at.reads("/pend")
        await at.press("escape")
        await at.sees("both", lambda: at.names == ["web-0", "web-1"])
        await at.type("colon", "wrkloads")
        assert "did you mean `workloads`?" in at.foot
        await at.press("j")
        await at.sees("the keys again", lambda: "?:help" in at.foot)


async def test_rows_are_sorted_by_keys_and_the_cursor_stays_on_its_object(api: LiveApi) -> None:
    await asyncio.to_thread(fill, api)
    async with seat(api) as at:
        await at.sees("three, and one is chosen", lambda: len(at.names) == 3 and at.page.chosen is not None)
        before = at.page.chosen
        assert before is not None
        await at.press("N")
        await at.sees("the names from behind", lambda: at.names == ["web-1", "web-0", "db-0"])
        after = at.page.chosen
        assert after is not None
        assert after.place == before.place
        await at.press("S")
        await at.sees("who waits, first", lambda: at.names[0] == "web-1")
        await at.press("C")
        await at.sees("why not", lambda: "cannot be sorted by CPU%" in at.foot)


async def test_events_lead_to_what_they_are_about(api: LiveApi) -> None:
    await asyncio.to_thread(fill, api)
    told = EventSpec(about="instance default/web-0", reason="Placed", message="on n1", source="scheduler", last_at=5.0)
    await asyncio.to_thread(api.put, Event(meta=Meta(name="e1", namespace="default"), spec=told))
    async with seat(api, kind="events") as at:
        await at.reads("Placed")
        await at.press("d")
        await at.reads("describe instance default/web-0")
        await at.press("escape", "ctrl+d")
        await at.sees("why not", lambda: "events cannot be deleted" in at.foot)


async def test_a_tick_that_comes_after_the_last_screen_is_gone_does_no_harm(api: LiveApi) -> None:
    async with seat(api) as at:
        app = at.app
    assert not app.screen_stack
    app._tick()


@pytest.mark.req("S0-35")
async def test_a_pending_instance_is_explained(api: LiveApi) -> None:
    await asyncio.to_thread(fill, api)
    async with seat(api) as at:
        await at.type("slash", "web-1")
        await at.sees("one", lambda: at.names == ["web-1"])
        await at.press("x")
        await at.reads("explain instance default/web-1")
        await at.reads("0/2 nodes fit")


async def test_a_deletion_asks_first(api: LiveApi) -> None:
    await asyncio.to_thread(fill, api)
    async with seat(api, kind="workloads") as at:
        await at.sees("it", lambda: at.names == ["web"])
        await at.press("ctrl+d")
        await at.reads("delete workload default/web?")
        await at.press("enter")
        assert at.names == ["web"]
        await at.press("ctrl+d")
        await at.sees("the question", lambda: isinstance(at.app.screen, Question))
        await at.press("y")
        await at.sees("it is done", lambda: "deleted" in at.foot)


async def test_a_node_is_cordoned_by_a_key(api: LiveApi) -> None:
    await asyncio.to_thread(fill, api)
    async with seat(api, kind="nodes") as at:
        await at.sees("both", lambda: at.names == ["n1", "n2"])
        await at.press("c")
        await at.reads("Ready,cordoned")
        await at.press("u")
        await at.sees("free again", lambda: "cordoned" not in at.screen)


async def test_another_namespace_and_all_of_them(api: LiveApi) -> None:
    await asyncio.to_thread(fill, api)
    await asyncio.to_thread(api.put, instance("shop-0").changed(meta=Meta(name="shop-0", namespace="shop")))
    async with seat(api) as at:
        await at.sees("three", lambda: len(at.names) == 3)
        await at.type("colon", "ns shop")
        await at.sees("one", lambda: at.names == ["shop-0"])
        await at.press("0")
        await at.sees("all", lambda: at.names == ["db-0", "web-0", "web-1", "shop-0"])
        await at.reads("NAMESPACE")


async def test_help_and_quitting(api: LiveApi) -> None:
    async with seat(api) as at:
        await at.press("question_mark")
        await at.reads("describe: state, next step")
        await at.press("q")
        await at.sees("the end", lambda: not at.app.is_running)
    async with seat(api) as at:
        await at.type("colon", "q")
        await at.sees("the end", lambda: not at.app.is_running)


async def test_what_a_viewer_may_not_do_is_reported_in_the_foot(guarded_api: LiveApi) -> None:
    token = await asyncio.to_thread(guarded_api.do, lambda api: api.token("viewer", "user:budi"))
    await asyncio.to_thread(fill, guarded_api)
    async with seat(guarded_api, kind="workloads", token=token) as at:
        await at.sees("it", lambda: at.names == ["web"])
        await at.press("ctrl+d")
        await at.sees("the question", lambda: isinstance(at.app.screen, Question))
        await at.press("y")
        await at.sees("a refusal", lambda: "may not" in at.foot or "needs" in at.foot)
        await at.type("colon", "tokens")
        await at.sees("a refusal", lambda: "may not list tokens" in at.foot)
