"""Applies the timeline of a scenario to a simulated cluster."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from mandor.errors import Conflict
from mandor.model.codec import KINDS
from mandor.model.manifest import Document
from mandor.model.meta import Key, Object
from mandor.model.node import Drain
from mandor.model.resources import Resources
from mandor.model.workload import Workload
from mandor.sim.cluster import SimCluster
from mandor.sim.disturbance import Messages
from mandor.sim.history_recorder import HistoryRecorder
from mandor.sim.node import SimNode
from mandor.sim.scenario import Limit, Pressure, Rollout, Scale, Slow, Spike, TimelineEntry
from mandor.sim.submission import Submission
from mandor.sim.usage_rule import UsageRule
from mandor.store.base import Put

NAMESPACE = "default"


class TimelineRunner:
    """Applies timeline entries to a cluster and notes them in its history."""

    def __init__(
        self, cluster: SimCluster, history: HistoryRecorder, *, stored: bool, places: Mapping[Key, Document]
    ) -> None:
        """
        `stored`: the objects of the scenario are those of a server, which has admitted them before.
        `places`: file and line of objects, for errors.
        """
        self._cluster, self._history = cluster, history
        self._submission = Submission(cluster.store, cluster.clock, cluster.heartbeats, stored=stored, places=places)
        self._later: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in list(self._later):
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)

    async def submit(self, objects: Sequence[Object]) -> None:
        for each in objects:
            self._say("submit", f"{each.kind} {each.meta.name}")
        await self._submission.submit(objects)

    async def happen(self, what: TimelineEntry) -> None:
        for name in what.delete:
            await self._delete(name)
        for name in what.up:
            self._up(self._cluster.nodes[name])
        for name in what.down:
            self._say("down", f"{name} loses power")
            self._history.power_off(name)
            await self._cluster.nodes[name].crash()
        self._disturb(what)
        for name in what.restart_agent:
            if not self._cluster.nodes[name].up:
                continue  # without power there is no agent, and its units are gone
            self._say("restart", f"the agent of {name} is started again")
            await self._cluster.nodes[name].restart_agent()
        for part in what.restart:
            self._say("restart", f"the {part} of the control plane is started again")
            await self._cluster.restart(part)
        for name in what.crash:
            self._crash(name)
        for key, spec in (
            ("cordon", {"cordoned": True}),
            ("uncordon", {"cordoned": False, "drain": None}),
            ("drain", {"drain": Drain(since=self._cluster.clock.now())}),
        ):
            for name in getattr(what, key):
                self._say(key, name)
                await self._cluster.change_node(name, **spec)
        for slow in what.slow:
            self._slow(slow)
        for limit in what.limit:
            self._limit(limit)
        for pressure in what.pressure:
            self._press(pressure)
        for spike in what.spike:
            self._spike(spike)
        if what.usage:
            self._cluster.usage_rules.by_workload |= what.usage
            self._cluster.usage_changed()
        for scale in what.scale:
            await self._change(scale.workload, partial(_scaled, to=scale))
        for rollout in what.rollout:
            await self._change(rollout.workload, partial(self._rolled, to=rollout))

    # One method per kind of entry.

    async def _delete(self, text: str) -> None:
        """Delete the named object, if it exists still: `[KIND ][NAMESPACE/]NAME`."""
        kind, _, path = text.rpartition(" ")
        namespace, _, name = path.rpartition("/")
        wanted = KINDS[kind or Workload.kind]
        found = self._cluster.find(wanted, name, (namespace or NAMESPACE) if wanted.namespaced else "")
        if found is not None:
            await self._cluster.delete(found)
            self._say("delete", text)

    def _disturb(self, what: TimelineEntry) -> None:
        """Disturb connections, engines, messages and clocks; all programs keep running."""
        nodes = self._cluster.nodes
        for name in what.partition:
            self._say("partition", f"{name} is cut off")
            nodes[name].connection.cut()
        for name in what.mute:
            self._say("mute", f"messages of {name} do not arrive")
            nodes[name].connection.sends = False
        for name in what.deaf:
            self._say("deaf", f"{name} receives nothing")
            nodes[name].connection.deafen()
        for name in what.engine_down:
            self._say("engine_down", f"the engines of {name} do not answer")
            nodes[name].engines_down()
        for each in what.messages:
            self._say("messages", f"of {each.node or 'the control plane'}: {_describe(each)}")
            for connection in [nodes[each.node].connection] if each.node else self._cluster.connections:
                connection.delay_seconds, connection.repeated_share = float(each.delay), each.repeated / 100
                connection.lost_share = connection.dropped_share = each.lost / 100
        for jump in what.clock:
            way = f"forward by {jump.forward}" if jump.forward else f"back by {jump.back}"
            self._say("clock", f"of {jump.node or 'the control plane'}: {way}")
            (nodes[jump.node].clock if jump.node else self._cluster.clock).jump(jump.seconds)

    def _crash(self, workload: str) -> None:
        """Kill the first running instance of a workload with a signal."""
        for each in self._cluster.instances(workload):
            node = self._cluster.nodes.get(each.node)
            if node is not None and node.up and node.kill(each.meta.uid):
                self._say("crash", f"{each.meta.name} dies")
                return

    def _up(self, node: SimNode) -> None:
        self._say("up", f"{node.name} is back")
        node.mend()
        if not node.up:
            node.boot()

    def _slow(self, slow: Slow) -> None:
        self._say("slow", f"{slow.node} is {slow.times:g} times as slow")
        self._cluster.nodes[slow.node].slow_down(slow.times)

    def _limit(self, limit: Limit) -> None:
        machine = self._cluster.nodes[limit.node].machine
        has = machine.has
        machine.become(
            Resources(
                has.cpu_milli if limit.cpu is None else int(limit.cpu),
                has.memory_bytes if limit.memory is None else int(limit.memory),
                has.disk_bytes if limit.disk is None else int(limit.disk),
                has.devices,
            )
        )
        self._say("limit", f"{limit.node} has {machine.has}")
        agent = self._cluster.nodes[limit.node].agent
        if agent is not None:
            agent.node.wake()

    def _press(self, pressure: Pressure) -> None:
        node = self._cluster.nodes[pressure.node]
        takes = Resources(int(pressure.cpu), int(pressure.memory), int(pressure.disk))
        self._say("pressure", f"other programs on {node.name} use {takes} for {pressure.duration}")
        node.take(takes)
        self._after(pressure.duration, lambda: node.take(Resources()))

    def _spike(self, spike: Spike) -> None:
        usage_rules, name = self._cluster.usage_rules, spike.workload
        wants = spike.over(usage_rules.by_workload.get(name) or usage_rules.usual)
        self._say("spike", f"{name} uses cpu {wants.cpu}, memory {wants.memory} for {spike.duration}")
        self._feed(name, wants)
        self._after(spike.duration, lambda: self._feed(name, None))

    def _feed(self, name: str, wants: UsageRule | None) -> None:
        if wants is None:
            self._cluster.usage_rules.spikes.pop(name, None)
        else:
            self._cluster.usage_rules.spikes[name] = wants
        self._cluster.usage_changed()

    async def _change(self, name: str, change: Callable[[Workload], Workload]) -> None:
        while True:
            changed = change(self._cluster.workload(name))
            try:
                await self._cluster.store.commit(Put(changed))
            except Conflict:
                continue
            return

    def _rolled(self, workload: Workload, to: Rollout) -> Workload:
        self._say("rollout", f"{workload.meta.name}{f' to {to.image}' if to.image else ''}")
        if to.image is None:
            again = workload.spec.restarted + 1
            return workload.changed(spec=msgspec.structs.replace(workload.spec, restarted=again))
        groups = {
            name: msgspec.structs.replace(
                group,
                tasks={
                    each: msgspec.structs.replace(task, image=to.image) if task.image is not None else task
                    for each, task in group.tasks.items()
                },
            )
            for name, group in workload.spec.groups.items()
        }
        return workload.changed(spec=msgspec.structs.replace(workload.spec, groups=groups))

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        async def wait() -> None:
            await self._cluster.clock.sleep(seconds)
            then()

        task = asyncio.ensure_future(wait())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _say(self, kind: str, text: str) -> None:
        self._history.note(kind, text)


def _describe(messages: Messages) -> str:
    found = [f"{name} {each}" for name in ("delay", "lost", "repeated") if (each := getattr(messages, name))]
    return ", ".join(found) or "no faults"


def _scaled(workload: Workload, to: Scale) -> Workload:
    groups = {
        name: msgspec.structs.replace(group, replicas=to.replicas) for name, group in workload.spec.groups.items()
    }
    return workload.changed(spec=msgspec.structs.replace(workload.spec, groups=groups))
