"""Live files of tasks: which are outdated, how a launch mounts them, and that a change is delivered at least once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mandor.agent.launch import make_launch, make_live_files, pick_engine
from mandor.agent.live_file_delivery import Delivery, DeliveryServices
from mandor.agent.live_file_plan import SPREAD_SECONDS, outdated_secrets, outdated_tasks, spread_seconds
from mandor.agent.live_files import LiveFileKeeper
from mandor.agent.order import Memory, Order, TaskMemory
from mandor.agent.sync_inputs import SyncInputs
from mandor.engines.base import Observed, Unit, UnitPhase
from mandor.engines.fake import FakeEngine
from mandor.errors import EngineDown, Unavailable
from mandor.lib.clock import Clock, ManualClock
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, StopOrder
from mandor.model.live_file import live_files, live_folders
from mandor.model.meta import Meta
from mandor.model.node import Capabilities
from mandor.model.phase import Phase
from mandor.model.task import File, Task

UNIT = Unit("i1", "main", 1)
TASK = Task(
    image="busybox",
    files=(
        File(path="/run/app/password", secret="db/password"),
        File(path="/run/app/deep/node", content="${MANDOR_NODE}", fill=True),
        File(path="/etc/other", secret="db/password", on_change="none"),
    ),
    on_change="signal",
)


def make_order(wanted: dict[str, str] | None = None, ids: dict[str, str] | None = None, **spec: Any) -> Order:
    instance = Instance(
        meta=Meta(name="web-0", namespace="default", uid="i1"),
        spec=InstanceSpec(workload="web", release="web.1", index=0, node="n1", secrets=wanted, **spec),
        status=InstanceStatus(phase=Phase.RUNNING),
    )
    return Order(instance=instance, template=GroupTemplate(tasks={"main": TASK}), secret_ids=ids or {})


def observed(phase: UnitPhase = UnitPhase.RUNNING) -> list[Observed]:
    return [Observed(unit=UNIT, phase=phase)]


def make_memory(**task: Any) -> Memory:
    return Memory(engine="fake", tasks={"main": TaskMemory(attempt=1, **task)})


def make_inputs(order: Order, folder: str, value: str = "new") -> SyncInputs:
    return SyncInputs(
        units=tuple(observed()),
        status=order.instance.status,
        secrets={"db/password": value},
        live_files=folder,
        extras=frozenset({"mounts"}),
    )


def test_the_files_beside_a_live_file_are_in_its_folder_and_others_are_not() -> None:
    assert live_folders(TASK) == ["/run/app"]
    assert [(each.number, each.name, each.secret) for each in live_files(TASK)] == [
        (0, "password", True),
        (0, "deep/node", False),
    ]
    order = make_order()
    launch = make_launch(order, "main", "docker", make_inputs(order, "/run/mandor/n1/files"))
    assert [each.path for each in launch.files] == ["/etc/other"]
    (mount,) = launch.mounts
    assert (mount.path, mount.source, mount.read_only) == (
        "/run/app",
        "/run/mandor/n1/files/containers/i1.main/0",
        True,
    )
    made = make_live_files(order, "main", "docker", make_inputs(order, "/x"))
    assert [each.file.content for each in made] == ["new", "n1"]


def test_without_a_folder_for_them_live_files_are_files_of_the_launch() -> None:
    order = make_order()
    launch = make_launch(order, "main", "docker", make_inputs(order, ""))
    assert len(launch.files) == 3
    assert launch.mounts == ()


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        ({"db": "u.1"}, None, []),
        ({"db": "u.1"}, {"db": "u.1"}, []),
        ({"db": "u.1"}, {"db": "u.2"}, ["db"]),
        ({"db": "u.9"}, {"db": "u.10"}, ["db"]),
        ({"db": "u.3"}, {"db": "u.2"}, []),
        ({"db": "u.3"}, {"db": "v.0"}, ["db"]),
        ({}, {"db": "u.1"}, ["db"]),
        ({"db": "u.1"}, {"other": "u.2"}, []),
    ],
    ids=["none", "same", "later", "by number", "newer than wanted", "made anew", "unknown", "another secret"],
)
def test_a_secret_is_outdated_if_a_later_content_id_is_wanted(
    given: dict[str, str], wanted: dict[str, str] | None, expected: list[str]
) -> None:
    assert outdated_secrets(given, wanted, {"db"}) == expected


def test_only_running_tasks_of_instances_that_go_on_are_outdated() -> None:
    order, memory = make_order({"db": "u.2"}), make_memory(file_secrets={"db": "u.1"})
    assert outdated_tasks(order, memory, observed()) == ["main"]
    assert outdated_tasks(order, memory, observed(UnitPhase.STARTING)) == []
    assert outdated_tasks(order, memory, observed(UnitPhase.EXITED)) == []
    assert outdated_tasks(make_order({"db": "u.2"}, stop=StopOrder(reason="drain")), memory, observed()) == []
    assert outdated_tasks(make_order(), make_memory(signal_due=True), observed()) == ["main"]


def test_instances_spread_their_reads() -> None:
    pauses = {spread_seconds(f"uid-{number}") for number in range(100)}
    assert len(pauses) > 50
    assert 0 <= min(pauses) <= max(pauses) < SPREAD_SECONDS


class Instance0:
    """An instance of a fake engine whose agent can be made to fail."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.order, self.memory = make_order({"db": "u.2"}), make_memory(file_secrets={"db": "u.1"})
        self.time = clock
        self.clock: Clock = clock
        self.live_files: LiveFileKeeper | None = LiveFileKeeper(folder, "n1", run_inline)
        self.live_files.folder = str(folder)
        self.fake = FakeEngine(clock, images=True)
        self.journal: list[Memory] = []
        self.events: list[tuple[str, bool]] = []
        self.answered = "u.2"

    def new_delivery(self) -> Delivery:
        return Delivery(self, DeliveryServices(self.clock, self.live_files, self, self.record_secret_change))

    async def read_all(self) -> SyncInputs:
        self.order = make_order({"db": "u.2"}, {"db": self.answered})
        assert self.live_files is not None
        return make_inputs(self.order, self.live_files.folder)

    async def remember(self, memory: Memory) -> None:
        self.memory = memory
        self.journal.append(memory)

    def engine(self, name: str) -> FakeEngine:
        return self.fake

    def user_on_node(self, engine: str, user: str | int | None) -> str | int | None:
        return user

    def record_secret_change(self, order: Order, message: str, *, failed: bool = False) -> None:
        self.events.append((message, failed))

    async def start(self) -> None:
        order = make_order(None, {"db": "u.1"})
        assert self.live_files is not None
        inputs = make_inputs(order, self.live_files.folder, "old")
        launch = make_launch(order, "main", "fake", inputs)
        await self.new_delivery().write("main", launch, make_live_files(order, "main", "fake", inputs))
        await self.fake.start(UNIT, launch)

    @property
    def text(self) -> str:
        assert self.live_files is not None
        return Path(self.live_files.folder, "containers", "i1.main", "0", "password").read_text()

    @property
    def signals(self) -> list[str]:
        (record,) = self.fake.state.all()
        return [name for _, name in record.signals]


async def run_inline(work: Any, /, *args: Any) -> Any:
    return work(*args)


@pytest.fixture
async def instance(tmp_path: Path) -> Instance0:
    made = Instance0(tmp_path, ManualClock())
    await made.start()
    return made


async def deliver(instance: Instance0, delivery: Delivery | None = None) -> None:
    delivery = delivery or instance.new_delivery()
    pause = await delivery.sync(observed())
    if pause is not None:
        await instance.time.advance(pause)
        assert await delivery.sync(observed()) is None


async def test_a_changed_file_is_replaced_before_the_signal_and_once(instance: Instance0) -> None:
    assert instance.text == "old"
    await deliver(instance)
    assert (instance.text, instance.signals) == ("new", ["SIGHUP"])
    assert [each.tasks["main"].signal_due for each in instance.journal] == [True, False]
    assert instance.memory.tasks["main"].file_secrets == {"db": "u.2"}
    assert instance.events == [("secret db changed: replaced /run/app/password and sent SIGHUP to task main", False)]
    await deliver(instance)
    assert instance.signals == ["SIGHUP"]


async def test_a_signal_that_could_not_be_sent_is_sent_later_though_the_file_is_replaced(instance: Instance0) -> None:
    instance.fake.down("away")
    delivery = instance.new_delivery()
    for _ in range(2):
        with pytest.raises(EngineDown):
            await deliver(instance, delivery)
    assert instance.text == "new"
    assert [failed for _, failed in instance.events] == [True]
    instance.fake.up()
    # Another agent goes on with what the journal has.
    await deliver(instance)
    assert instance.signals == ["SIGHUP"]
    assert instance.events[-1] == ("secret db changed: sent SIGHUP to task main", False)


async def test_an_older_value_than_the_announced_one_is_not_delivered(instance: Instance0) -> None:
    instance.answered = "u.1"
    with pytest.raises(Unavailable, match="older value of secret db"):
        await deliver(instance)
    assert (instance.text, instance.signals, instance.journal) == ("old", [], [])


async def test_a_value_that_no_file_contains_sends_no_signal(instance: Instance0) -> None:
    await deliver(instance)
    instance.memory = instance.memory.with_task("main", TaskMemory(attempt=1, file_secrets={"db": "u.1"}))
    await deliver(instance)
    assert instance.signals == ["SIGHUP"]
    assert instance.memory.tasks["main"].file_secrets == {"db": "u.2"}


def test_only_engines_that_announce_signals_and_mounts_fit() -> None:
    template = GroupTemplate(tasks={"main": TASK})
    assert template.needs("docker") == {"signal", "mounts"}
    relative = Task(command=("true",), files=(File(path="live/a", secret="db"),), on_change="signal")
    assert GroupTemplate(tasks={"main": relative}).needs("process") == {"signal", "links"}
    for extras, fits in (({"signal", "mounts"}, True), ({"mounts"}, False), ({"signal"}, False)):
        engine = Capabilities(images=True, extras=frozenset(extras))
        assert pick_engine(template, {"docker": engine})[0] == ("docker" if fits else "")
    assert "signal" in pick_engine(template, {"docker": Capabilities(images=True)})[1]
