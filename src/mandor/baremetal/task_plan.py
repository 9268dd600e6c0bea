"""Plan for a task: what the next step is, from the task, its claim and the clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from mandor.baremetal.settings import TaskSettings
from mandor.lib.quantity import Seconds
from mandor.lib.steps import FEW, Steps, chosen, ordered, pieces
from mandor.model.instance import UNSCHEDULABLE, Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.spare import Spare
from mandor.model.vm_task import VmTask

NO_NODES = "No available nodes"


class Verdict(NamedTuple):
    """What the scheduler said about a claim."""

    node: str
    """Empty: it was refused."""
    why: str = ""


def verdict(claim: Instance) -> Verdict | None:
    """None: it has not said anything yet."""
    if claim.spec.node:
        return Verdict(claim.spec.node)
    status = claim.status
    if status.phase is Phase.PENDING and status.reason and not status.nominated:
        return Verdict("", status.message if status.reason == UNSCHEDULABLE else f"{status.reason}: {status.message}")
    return None


def begun(task: VmTask, now: float) -> VmTask:
    return task.moved("Processing", now, f"try {task.status.attempts + 1}")


def placed(task: VmTask, node: str, address: str, now: float) -> VmTask:
    return task.moved("Placed", now, f"on {node}", node=node, address=address, error="", reason="")


def refused(task: VmTask, why: str, settings: TaskSettings, now: float) -> VmTask:
    """A try has failed: it waits for the next one, or that was the last."""
    tries = task.status.attempts + 1
    if tries >= settings.attempts:
        return task.moved("Failed", now, why, attempts=tries, error=NO_NODES, reason="NoNode")
    return task.moved("Queued", now, why, attempts=tries, error=why, reason="NoNode")


@dataclass(slots=True)
class Sweep:
    """What is to be done about tasks that nobody else does."""

    failed: list[tuple[VmTask, str, str]] = field(default_factory=list)
    """Tasks that have failed: the reason in one word, and the error."""
    published: list[VmTask] = field(default_factory=list)
    """They are handed out again: whoever had them is gone."""
    forgotten: list[VmTask] = field(default_factory=list)
    orphans: list[Instance] = field(default_factory=list)
    """Claims whose task holds nothing any more."""


def plan_sweep(
    tasks: Sequence[VmTask], claims: Sequence[Instance], nodes: set[str], settings: TaskSettings, now: float
) -> Steps[Sweep]:
    sweep, over, holding = Sweep(), list[VmTask](), set[Key]()
    for piece in pieces(tasks, FEW):
        for task in piece:
            if task.holds:
                holding.add(task.claim_key)
            found = _fault(task, nodes, now)
            if found is not None:
                sweep.failed.append((task, *found))
            elif task.ended or task.status.counted:
                over.append(task)
            elif _stuck(task, settings, now):
                sweep.published.append(task)
        yield 12 * len(piece)
    sweep.forgotten = yield from outdated(over, settings.kept_most, settings.kept_seconds, now)
    sweep.orphans = yield from chosen(
        claims, lambda piece: [claim for claim in piece if claim.key not in holding], each=2
    )
    return sweep


Past = TypeVar("Past", VmTask, Spare)


def outdated(over: Sequence[Past], most: int, seconds: float, now: float) -> Steps[list[Past]]:
    """Of those that have ended: which are older than so long, or than so many others."""
    old = yield from chosen(over, lambda piece: [each for each in piece if now - each.status.since > seconds])
    if len(over) <= most:
        return old
    newest = yield from ordered(over, key=lambda each: -each.status.since)
    kept = yield from chosen(newest[:most], lambda piece: [each for each in piece if now - each.status.since > seconds])
    return kept + newest[most:]


def _fault(task: VmTask, nodes: set[str], now: float) -> tuple[Literal["Timeout", "NodeGone"], str] | None:
    spec, status = task.spec, task.status
    if status.state in {"Queued", "Processing"} and now - task.meta.created_at > spec.place_seconds:
        waited = Seconds(round(spec.place_seconds))
        return "Timeout", f"no machine was found within {waited}" + (f": {status.error}" if status.error else "")
    if status.state == "Placed":
        if now - status.since > spec.hold_seconds:
            return "Timeout", f"the virtual machine was not confirmed within {Seconds(round(spec.hold_seconds))}"
        if status.node not in nodes:
            return "NodeGone", f"the machine {status.node} does not exist any more"
    return None


def _stuck(task: VmTask, settings: TaskSettings, now: float) -> bool:
    """Longer than the longest pause between two tries."""
    status = task.status
    idle = now - status.since
    if idle <= settings.stuck_seconds or status.state not in {"Queued", "Processing"}:
        return False
    return idle > settings.stuck_seconds + settings.pause.pause(max(status.attempts, 1), chance=1.0)


def address_of(node: Node | None) -> str:
    return node.status.address if node is not None else ""
