"""Describes changes of the store, one line each, for the report of a run with faults."""

from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.record import Event, HeartbeatSummary
from mandor.model.workload import Workload
from mandor.store.base import Change


def describe_change(change: Change) -> str:
    """Return one line about a change, or an empty text for changes that do not help to understand a run."""
    value = change.value
    if isinstance(value, Instance):
        return _instance(change.before, value, gone=change.after is None)
    if isinstance(value, Node):
        drain = f", {value.status.drain.phase}" if value.status.drain is not None else ""
        closed = " cordoned" * value.spec.cordoned + " to be drained" * (value.spec.drain is not None)
        return f"{value.meta.name} is {value.status.phase.value}{drain}{closed}"
    if isinstance(value, Workload):
        return _workload(value, gone=change.after is None)
    if isinstance(value, Event) and change.after is not None:
        return f"{value.spec.about}: {value.spec.reason}: {value.spec.message}"
    if isinstance(value, HeartbeatSummary):
        return f"heartbeats received from: {', '.join(value.spec.nodes) or 'no node'}"
    return ""


def _instance(before: object, value: Instance, *, gone: bool) -> str:
    was = before if isinstance(before, Instance) and before.meta.uid == value.meta.uid else None
    words = [value.meta.name, "is gone" if gone else f"{was.phase.value} →" if was is not None else "is new:"]
    words += [] if gone else [value.phase.value, "ready" if value.status.ready else ""]
    words += [f"on {value.node}" if value.node else "", f"of {value.spec.release}"]
    words += [f"attempt {value.spec.attempt}" if value.spec.attempt else "", value.status.reason, value.status.message]
    if value.spec.stop is not None:
        words.append(f"[to stop: {value.spec.stop.reason}]")
    if value.spec.move is not None:
        words.append(f"[to move{' to ' + value.spec.move.to if value.spec.move.to else ''}: {value.spec.move.reason}]")
    if value.spec.instead_of:
        words.append(f"[instead of {value.spec.instead_of}]")
    return " ".join((*filter(None, words), f"({value.meta.uid.lstrip('0')})"))


def _workload(value: Workload, *, gone: bool) -> str:
    if gone:
        return f"workload {value.meta.name} is gone"
    status, rollout = value.status, value.status.rollout
    wanted = sum(group.count for group in value.spec.groups.values())
    told = f": {status.message}" if status.message else ""
    of = f", roll-out of {rollout.release} {rollout.phase}" if rollout is not None else ""
    return f"workload {value.meta.name} wants {wanted}: {status.phase} {status.ready}/{status.wanted}{of}{told}"
