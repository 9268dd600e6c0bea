"""What the agent keeps about one instance: its order, complete without a control plane, and a small memory."""

from typing import Literal

import msgspec
from msgspec import Struct

from mandor.lib.quantity import NEVER, SecondsOrNever
from mandor.model.allowance import Allowance
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.lifecycle import Restart
from mandor.model.record import Namespace, NamespaceSpec
from mandor.model.workload import GroupTemplate, Workload

Policy = Literal["always", "on-failure", "never"]


class Supervision(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """How an instance is looked after: not part of its release, so it may change while it runs."""

    restart: Restart = Restart()
    policy: Policy = "always"
    stop_after: SecondsOrNever = NEVER
    priority: int = 0
    """Who goes last when the host is short of something."""
    labels: dict[str, str] = {}
    """Of the workload: by them log sinks choose."""

    @classmethod
    def of(cls, workload: Workload, group: str, priority: int = 0) -> "Supervision | None":
        """None: the workload no longer has such a group."""
        found = workload.spec.groups.get(group)
        if found is None:
            return None
        return cls(
            restart=found.restart,
            policy=workload.spec.restart_policy(group),
            stop_after=found.disconnect.stop_after,
            priority=priority,
            labels=workload.meta.labels,
        )


class NamespaceView(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """The namespace of an instance, as far as its node has to know it."""

    rules: NamespaceSpec = NamespaceSpec()
    first_user: int = 0

    @classmethod
    def of(cls, namespace: Namespace) -> "NamespaceView":
        return cls(rules=namespace.spec, first_user=namespace.status.first_user)


class Order(
    Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    kw_only=True,
    rename={"namespace_view": "space", "supervision": "care"},  # as journals of earlier versions name them
):
    """An instance with everything needed to run it, and which cluster said so, in which epoch."""

    instance: Instance
    template: GroupTemplate | None = None
    """None: its release has not been read yet."""
    namespace_view: NamespaceView | None = None
    """None: its namespace has not been read yet, or does not exist: it counts as `restricted`."""
    supervision: Supervision = Supervision()
    cluster: str = ""
    epoch: int = 0
    secrets: str = ""
    """The values of secrets that its tasks need, sealed with this node's own key."""
    secret_ids: dict[str, str] = {}
    """Content ids of the secrets in `secrets`, by name."""

    @property
    def allowance(self) -> Allowance:
        """What its namespace allows it."""
        namespace_view = self.namespace_view or NamespaceView()
        return Allowance(self.instance.meta.namespace, namespace_view.rules, namespace_view.first_user)

    @property
    def uid(self) -> str:
        return self.instance.meta.uid

    @property
    def name(self) -> str:
        return self.instance.meta.name


class TaskMemory(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What is remembered about one task between two looks at the engine."""

    attempt: int = 0
    """The latest unit ordered; 0: none yet."""
    due: float = 0.0
    """The attempt does not start before then."""
    pause: float = 0.0
    """How long it was told to wait; with `due` it survives a clock that jumps."""
    ran_seconds: float = 0.0
    """How long its ended units ran, all together."""
    restarts: tuple[float, ...] = ()
    """`ran_seconds` at each recent restart: pauses do not count towards `restart.interval`."""
    exit_code: int | None = None
    reason: str = ""
    """How the unit before this attempt ended."""
    unhealthy: bool = False
    """This attempt failed its probe and is being stopped."""
    completed: bool = False
    """It ended well and is not started again."""
    file_secrets: dict[str, str] = {}
    """Content ids of the secrets in the live files of this attempt, by name."""
    signal_due: bool = False
    """Live files of this attempt were replaced, and the signal to the task is not known to have been sent."""


class Memory(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """All of it is kept in the journal, so that an agent restart forgets nothing."""

    engine: str = ""
    tasks: dict[str, TaskMemory] = {}
    ending: InstanceStatus | None = None
    """What will be reported once nothing of it is alive any more."""
    at_once: bool = False
    """It ends without its grace."""
    over: bool = False
    held: str = ""
    """Why it is neither stopped nor started again, though nobody seems to know it."""

    def task(self, name: str) -> TaskMemory:
        return self.tasks.get(name) or TaskMemory()

    def with_task(self, name: str, task: TaskMemory) -> "Memory":
        return msgspec.structs.replace(self, tasks={**self.tasks, name: task})


class Entry(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One file of the journal."""

    order: Order
    memory: Memory = Memory()
