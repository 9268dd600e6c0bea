"""Delivers changed secrets to the running tasks of one instance: replaces their live files and sends the signal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from mandor.agent.launch import make_launch, make_live_files
from mandor.agent.live_file_plan import file_secrets, outdated_secrets, outdated_tasks, spread_seconds
from mandor.agent.live_files import LiveFileKeeper
from mandor.agent.order import Memory, Order, TaskMemory
from mandor.agent.sync_inputs import SyncInputs
from mandor.engines.base import Engine, Launch, Observed, Unit
from mandor.errors import MandorError, NotFound, Unavailable
from mandor.lib.clock import Clock
from mandor.model.live_file import LiveFile


class DeliveryEngines(Protocol):
    """The engines of the node, as a delivery uses them."""

    def engine(self, name: str) -> Engine: ...

    def user_on_node(self, engine: str, user: str | int | None) -> str | int | None: ...


class RecordSecretChange(Protocol):
    """Records an event about the delivery of a changed secret."""

    def __call__(self, order: Order, message: str, *, failed: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class DeliveryServices:
    """Parts of the agent that a delivery uses."""

    clock: Clock
    live_files: LiveFileKeeper | None
    engines: DeliveryEngines
    record_secret_change: RecordSecretChange


class DeliveryTarget(Protocol):
    """The instance that the files belong to."""

    order: Order
    memory: Memory

    async def read_all(self) -> SyncInputs:
        """Read the secrets of the order and everything else that its launches contain."""

    async def remember(self, memory: Memory) -> None:
        """Write the memory to the journal."""


class Delivery:
    """One for each instance. An agent that is restarted continues: the journal has the content ids of the delivered
    secrets, and a mark for a signal that is still to be sent."""

    def __init__(self, target: DeliveryTarget, services: DeliveryServices) -> None:
        self._target, self._services = target, services
        self._due_at: float | None = None
        self._failure = ""

    async def sync(self, units: Iterable[Observed]) -> float | None:
        """Deliver changed secrets to running tasks. Return the seconds until the next call; None: at the next change.

        An error is recorded once as an event, and the caller retries."""
        if self._services.live_files is None:
            return None
        outdated = outdated_tasks(self._target.order, self._target.memory, units)
        if not outdated:
            self._due_at = None
            return None
        now = self._services.clock.monotonic()
        if self._due_at is None:
            self._due_at = now + spread_seconds(self._target.order.uid)
        if now < self._due_at:
            return self._due_at - now
        try:
            await self._deliver(outdated)
        except (MandorError, OSError) as error:
            if str(error) != self._failure:
                self._failure = str(error)
                message = f"a changed secret has not reached {', '.join(outdated)}: {error}; trying again"
                self._services.record_secret_change(self._target.order, message, failed=True)
            raise
        self._due_at, self._failure = None, ""
        return None

    async def write(self, task: str, launch: Launch, files: Sequence[LiveFile]) -> list[str]:
        """Write the live files of a task that differ from those on the node; return their paths in the task."""
        if self._services.live_files is None:
            return []
        user = self._services.engines.user_on_node(self._target.memory.engine, launch.user)
        uid, image = self._target.order.uid, launch.image is not None
        return await self._services.live_files.write(uid, task, files, user, image=image)

    async def _deliver(self, tasks: Sequence[str]) -> None:
        inputs = await self._target.read_all()
        if inputs.missing:
            raise Unavailable(inputs.missing)
        for name in tasks:
            await self._deliver_to(name, inputs)

    async def _deliver_to(self, name: str, inputs: SyncInputs) -> None:
        target = self._target
        order, known = target.order, target.memory.task(name)
        assert order.template is not None
        task, now = order.template.tasks[name], file_secrets(order, name)
        if late := outdated_secrets(now, order.instance.spec.secrets, now):
            raise Unavailable(f"the control plane answered with an older value of secret {', '.join(late)}")
        launch = make_launch(order, name, target.memory.engine, inputs)
        files = make_live_files(order, name, target.memory.engine, inputs)
        changed = await self._changed(name, launch, files)
        if changed and not known.signal_due:
            # Written before the first file is replaced: an agent that ends in between sends the signal later.
            await self._remember(name, replace(known, signal_due=True))
        if changed or known.signal_due:
            paths = await self.write(name, launch, files)
            try:
                await self._services.engines.engine(target.memory.engine).signal(
                    Unit(order.uid, name, known.attempt), task.change_signal
                )
            except NotFound:
                return  # The task has ended: its next start reads the new value.
            secrets = sorted(each for each in now if now[each] != known.file_secrets.get(each))
            self._services.record_secret_change(order, _sentence(name, secrets, paths, task.change_signal))
        await self._remember(name, replace(known, file_secrets=now, signal_due=False))

    async def _changed(self, name: str, launch: Launch, files: Sequence[LiveFile]) -> bool:
        assert self._services.live_files is not None
        image = launch.image is not None
        return await self._services.live_files.changed(self._target.order.uid, name, files, image=image)

    async def _remember(self, name: str, task: TaskMemory) -> None:
        await self._target.remember(self._target.memory.with_task(name, task))


def _sentence(task: str, secrets: Sequence[str], paths: Sequence[str], signal: str) -> str:
    changed = f"secret{'s' * (len(secrets) > 1)} {', '.join(secrets)} changed: " if secrets else ""
    files = f"replaced {', '.join(paths)} and " if paths else ""
    return f"{changed}{files}sent {signal} to task {task}"
