"""`depends_on` over REST: what is refused, what is only warned of, and what an explanation says."""

from __future__ import annotations

from mandor.model.codec import from_plain
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Meta
from mandor.model.workload import make_release
from tests.api.conftest import Api
from tests.api.test_daemon import apply
from tests.api.test_explain import ask
from tests.api.test_plan import files, plan, put
from tests.scenarios.make import make_node, make_workload

WEB = "name: web\ncommand: [run]\ndepends_on: {db: healthy}\n"


async def test_an_unknown_name_is_a_warning(dev: Api) -> None:
    found = await apply(dev, WEB)
    assert found["results"][0]["warnings"] == ["it depends on db, but there is no group or workload of that name yet"]
    await apply(dev, "name: db\ncommand: [run]\n")
    assert not (await apply(dev, WEB + "env: {A: b}\n"))["results"][0].get("warnings")


async def test_a_cycle_with_what_is_stored_is_refused(dev: Api) -> None:
    await apply(dev, WEB)
    found = await apply(dev, "name: db\ncommand: [run]\ndepends_on: {web: healthy}\n", 400)
    assert "db → web → db" in found["detail"]
    assert found["line"] == 3


async def test_a_cycle_through_stored_workloads_is_reported_at_the_first_given_one(dev: Api) -> None:
    await apply(dev, "name: a\ncommand: [run]\ndepends_on: {c: healthy}\n---\nname: b\ncommand: [run]\n")
    given = (
        f"name: {name}\ncommand: [run]\ndepends_on: {{{other}: healthy}}\n" for name, other in (("c", "b"), ("b", "a"))
    )
    found = await apply(dev, "---\n".join(given), 400)
    assert "c → b → a → c" in found["detail"]
    assert found["line"] == 3


async def test_a_dependency_that_can_never_be_met_is_refused(dev: Api) -> None:
    await apply(dev, "name: db\ncommand: [run]\n")
    found = await apply(dev, "name: web\ncommand: [run]\ndepends_on: {db: completed}\n", 400)
    assert "a service never completes" in found["detail"]
    await apply(dev, "name: tidy\ntype: batch\ncommand: [run]\nschedule: '* * * * *'\n")
    found = await apply(dev, "name: web\ncommand: [run]\ndepends_on: {tidy: completed}\n", 400)
    assert "runs repeatedly on a schedule" in found["detail"]


async def test_an_instance_that_waits_shows_for_what_and_a_plan_reports_where_it_would_go(dev: Api) -> None:
    workload = make_workload("web", depends_on={"db": "healthy"}, version=0)
    spec = from_plain({"workload": "web", "release": "web.1", "index": 0, "waits": ["db to be healthy"]}, InstanceSpec)
    waiting = Instance(meta=Meta(name="web-0", namespace="default"), spec=spec)
    await put(dev, make_node("n1"), workload, make_release(workload, 1), waiting)
    assert (await ask(dev, "instances/web-0"))["summary"] == "waits for db to be healthy"
    found = await plan(dev, files("name: job\ncommand: [run]\ndepends_on: {web: healthy}\n"))
    assert [each["instance"] for each in found["placements"]] == ["job-0"]
