"""Journal entry of one instance: its order, complete enough to run without a control plane, and its memory."""

from typing import Literal

import msgspec
from msgspec import Struct

from mandor.lib.quantity import NEVER, SecondsOrNever
from mandor.model.allowance import Allowance
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.lifecycle import Restart
from mandor.model.record import Namespace, NamespaceSpec
from mandor.model.workload import Workload

Policy = Literal["always", "on-failure", "never"]


class Supervision(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Restart policy and priority of an instance: not part of its release, so they can change while it runs."""

    restart: Restart = Restart()
    policy: Policy = "always"
    stop_after: SecondsOrNever = NEVER
    priority: int = 0
    """Instances with a higher priority are evicted later."""
    labels: dict[str, str] = {}
    """Labels of the workload, by which log sinks select."""

    @classmethod
    def of(cls, workload: Workload, group: str, priority: int = 0) -> "Supervision | None":
        """Return the policy of a group; None: the workload no longer has it."""
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
    """The part of a namespace that its instances need on a node."""

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
    """An instance assigned to this node, with everything needed to run it, and the cluster and epoch it is from."""

    instance: Instance
    template: GroupTemplate | None = None
    """Template of the group; None: the release has not been read yet."""
    namespace_view: NamespaceView | None = None
    """None: the namespace has not been read yet or does not exist; the level is then `restricted`."""
    supervision: Supervision = Supervision()
    cluster: str = ""
    epoch: int = 0
    secrets: str = ""
    """Values of the secrets that its tasks need, encrypted with this node's key."""
    secret_ids: dict[str, str] = {}
    """Content ids of the secrets in `secrets`, by name."""

    @property
    def allowance(self) -> Allowance:
        """Rules of the namespace for the instance."""
        namespace_view = self.namespace_view or NamespaceView()
        return Allowance(self.instance.meta.namespace, namespace_view.rules, namespace_view.first_user)

    @property
    def uid(self) -> str:
        return self.instance.meta.uid

    @property
    def name(self) -> str:
        return self.instance.meta.name


class TaskMemory(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """State of one task that its engine does not keep."""

    attempt: int = 0
    """Attempt of the latest unit that was started; 0: none yet."""
    due: float = 0.0
    """Time before which the attempt does not start."""
    pause: float = 0.0
    """Length of the wait in seconds: limits `due` if the clock is set back."""
    ran_seconds: float = 0.0
    """Total running time in seconds of its ended units."""
    restarts: tuple[float, ...] = ()
    """`ran_seconds` at each recent restart; pauses do not count towards `restart.interval`."""
    exit_code: int | None = None
    reason: str = ""
    """Reason of the end of the previous unit."""
    unhealthy: bool = False
    """Whether this attempt failed its health probe and is being stopped."""
    completed: bool = False
    """Whether the task succeeded and is not started again."""
    file_secrets: dict[str, str] = {}
    """Content ids of the secrets in the live files of this attempt, by name."""
    signal_due: bool = False
    """Live files of this attempt were replaced, and the signal to the task is not known to have been sent."""


class Memory(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """State of an instance that its engine does not keep; saved in the journal."""

    engine: str = ""
    tasks: dict[str, TaskMemory] = {}
    ending: InstanceStatus | None = None
    """Final status, reported once no unit runs any more; None: the instance is not ending."""
    at_once: bool = False
    """Whether the instance is stopped without its grace period."""
    over: bool = False
    held: str = ""
    """Why the instance is left as it is although the control plane does not list it; empty: it is not held."""

    def task(self, name: str) -> TaskMemory:
        return self.tasks.get(name) or TaskMemory()

    def with_task(self, name: str, task: TaskMemory) -> "Memory":
        return msgspec.structs.replace(self, tasks={**self.tasks, name: task})


class Entry(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One file of the journal."""

    order: Order
    memory: Memory = Memory()
