"""A tag that is moved in its registry changes nothing about a release: its images are pinned by their digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mandor.agent.fetch import Fetch
from mandor.api.order_dependencies import OrderDependencyCache
from mandor.controllers.image_pin import ImagePinController, with_pins
from mandor.lib.clock import SystemClock
from mandor.model.image_reference import pinned
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.workload import Release, ReleaseSpec
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_instance, make_workload
from tests.components.docker import Docker
from tests.components.image import busybox_layer
from tests.components.registry import Registry, start_registry, write_image
from tests.integration.containers.ship import Ship

FIRST, SECOND = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def release_of(image: str) -> Release:
    groups = dict(make_workload("web").spec.template)
    main = groups["main"]
    task = msgspec.structs.replace(main.tasks["main"], image=image)
    groups["main"] = msgspec.structs.replace(main, tasks={"main": task})
    spec = ReleaseSpec(workload="web", sequence=1, hash="h", groups=groups)
    return Release(meta=Meta(name="web.1", namespace="default"), spec=spec)


def reported(**images: str) -> InstanceStatus:
    return InstanceStatus(phase=Phase.RUNNING, images=images)


def running(name: str, images: dict[str, str]) -> Instance:
    made = make_instance(name, node="n1")
    spec = msgspec.structs.replace(made.spec, release="web.1")
    return made.changed(spec=spec, status=InstanceStatus(phase=Phase.RUNNING, images=images))


def test_the_first_digest_of_an_image_wins_and_only_images_of_the_release_have_one() -> None:
    first = with_pins(release_of("nginx"), reported(nginx=FIRST, redis=FIRST))
    assert first is not None
    assert first.status.images == {"nginx": FIRST}
    assert with_pins(first, reported(nginx=SECOND)) is None
    assert with_pins(release_of(f"nginx@{FIRST}"), reported(**{f"nginx@{FIRST}": FIRST})) is None


@pytest.mark.parametrize(
    ("image", "by_digest"),
    [
        ("nginx", f"nginx@{FIRST}"),
        ("nginx:1.27", f"nginx@{FIRST}"),
        ("registry:5000/a/b:1", f"registry:5000/a/b@{FIRST}"),
        ("registry:5000/a/b", f"registry:5000/a/b@{FIRST}"),
    ],
)
def test_an_image_by_its_digest_has_no_tag(image: str, by_digest: str) -> None:
    assert pinned(image, FIRST) == by_digest


async def test_a_later_order_brings_the_digest_along() -> None:
    async with MemoryStore() as store:
        release = release_of("nginx:1")
        await store.commit(
            Put(release), Put(running("web-0", {"nginx:1": FIRST})), Put(running("web-1", {"nginx:1": SECOND}))
        )
        supplies = OrderDependencyCache(store)
        before = await supplies.get(release.key)
        controller = ImagePinController(store)
        for name in ("web-0", "web-1"):
            await controller.reconcile(running(name, {}).key)
        after = await supplies.get(release.key)
        assert before is not None
        assert after is not None
        assert after.since > before.since, "it is sent again, because it is another now"
        assert FIRST.encode() in after.line
        assert SECOND.encode() not in after.line
        fetch = Fetch(store, SystemClock())
        template = await fetch.template(running("web-2", {}))
        await fetch.close()
        assert template.tasks["main"].image == f"nginx@{FIRST}"


@pytest.fixture
def own_docker(new_docker: Callable[..., Docker]) -> Docker:
    return new_docker()


@pytest.fixture
def registry(own_docker: Docker, tmp_path: Path) -> Iterator[Registry]:
    write_image(tmp_path / "registry", busybox_layer({"version": b"good\n"}))
    started = start_registry(own_docker.enclosure.command([]), tmp_path / "registry")
    yield started
    started.close()


@pytest.mark.real("docker")
async def test_a_moved_tag_does_not_change_a_release(own_docker: Docker, registry: Registry, tmp_path: Path) -> None:
    ship = Ship(own_docker, tmp_path / "engine")
    async with ship.engine, MemoryStore() as store:
        unit = await ship.start(image=registry.image)
        digest = (await ship.look(unit)).digest
        assert digest.startswith("sha256:")
        await store.commit(Put(release_of(registry.image)), Put(running("web-0", {registry.image: digest})))
        await ImagePinController(store).reconcile(running("web-0", {}).key)
        await ship.engine.remove(unit)

        write_image(tmp_path / "registry", busybox_layer({"version": b"evil\n"}))
        own_docker.cli("image", "rm", "--force", registry.image)  # as on a node that never had it
        moved = await ship.start("cat /version", image=registry.image, options={"pull": "always"})
        assert await ship.output(moved) == ["evil"], "the attack works without a digest"
        fetch = Fetch(store, SystemClock())
        image = (await fetch.template(running("web-1", {}))).tasks["main"].image
        await fetch.close()
        later = await ship.start("cat /version", image=image, options={"pull": "always"})
        assert await ship.output(later) == ["good"]
        assert (await ship.look(later)).digest in {"", digest}
        await ship.clear()
