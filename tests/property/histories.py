"""Random histories of a cluster: objects of every kind that placement reads come, change and go.

Changes go into a cluster model, and so through the cluster state of the product.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from msgspec import structs

from mandor.lib.quantity import Cpu, Size
from mandor.model.claim import Claim
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Capabilities, Node, Occupied
from mandor.model.phase import Phase
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota, QuotaSpec, QuotaStatus
from mandor.model.reservation import Reservation, ReservationSpec, ReservationStatus
from mandor.model.resources import TaskResources
from mandor.model.volume import Volume, VolumeSpec, VolumeStatus
from mandor.model.workload import Release, Workload, make_release
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.conversion import PlacementState, placement_state
from mandor.placement.framework.capacity_columns import EXACT_BELOW
from mandor.placement.framework.volumes import wanted_volumes
from tests.property.neighbourhood import MATCHES, groups, nodes
from tests.property.tables import NAMES
from tests.scenarios.make import GI, MI, make_class, make_node, make_workload

NAMESPACES = {"web": "default", "db": "default", "far": "other", "mpi": "default"}
"""Namespace of each workload; `mpi` is a gang."""
VOLUMES: list[dict[str, Any]] = [{"own": {"size": "1Gi", "per_instance": True}}, {"shared": {"size": "2Gi"}}]
UNSHRUNK = (HypothesisPhase.explicit, HypothesisPhase.reuse, HypothesisPhase.generate)
"""Phases of a test of histories: a history depends on one seed, so that a smaller seed is no simpler example."""
CLASSES = ["high", "low"]
LABELS: list[dict[str, str]] = [{}, *MATCHES]


def able(node: Node) -> Node:
    """Return the node with an engine that runs images."""
    engines = {"process": Capabilities(images=False), "docker": Capabilities(images=True)}
    return node.changed(status=structs.replace(node.status, engines=engines))


USUAL = make_node("any", cpu=2, memory=GI)
UNUSUAL = [
    make_node("any", cpu=10**6, memory=EXACT_BELOW + 12345, labels={"zone": "a"}),
    make_node("any", cpu=2, memory=GI, devices={"gpu": 2}),
    make_node("any", cpu=2, memory=GI, cordoned=True),
    USUAL.changed(status=structs.replace(USUAL.status, occupied=Occupied(cpu_milli=500, memory_bytes=MI))),
]


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a group without rules: all sizes, devices, ports and volumes."""
    fields: dict[str, Any] = {
        "cpu": f"{draw(st.sampled_from([0, 1, 100, 250, 999]))}m",
        "memory": draw(st.sampled_from([0, 1, 10 * MI, 64 * MI, 10**14])),
        "placement": {"where": draw(st.sampled_from([[], [{"rule": "zone == a", "strength": "should"}]]))},
    }
    if draw(st.integers(0, 3)) == 0:
        fields["ports"] = {"http": {"port": 80, "host": draw(st.sampled_from([80, 81, "auto"]))}}
    if draw(st.integers(0, 3)) == 0:
        fields["volumes"] = draw(st.sampled_from(VOLUMES))
    return fields


class History:
    """A cluster model and the objects that were put into it."""

    def __init__(self, data: st.DataObject) -> None:
        self.chance = Random(data.draw(st.integers(0, 2**32)))
        self._nodes = [data.draw(nodes("any")) for _ in range(5)]
        self._groups = [data.draw(groups()) for _ in range(3)] + [data.draw(sizes()) for _ in range(3)]
        self._seed = self.chance.choice(["", "seed"])
        self.model = ClusterModel(seed=self._seed)
        self.objects: dict[Key, Object] = {}
        self._serial = 0
        for each in NAMES[: self.chance.randint(1, 6)]:
            self.put_node(each)
        for name in ("web", "db"):
            self.put_workload(name)
            self.add_instances(name, 2)

    def put(self, value: Object) -> None:
        self.objects[value.key] = value
        self.model.put(value)

    def remove(self, key: Key) -> None:
        self.objects.pop(key, None)
        self.model.remove(key)

    def anew(self) -> ClusterModel:
        """Return a model of the same objects, made from one listing."""
        return ClusterModel(self.objects.values(), seed=self._seed)

    def instances(self, *states: PlacementState) -> list[Instance]:
        found = [each for each in self.objects.values() if isinstance(each, Instance)]
        return [each for each in found if placement_state(each) in states]

    @property
    def pending(self) -> list[Instance]:
        """Return the pending instances whose release and workload exist."""
        waiting = self.instances(PlacementState.WAITING)
        return [each for each in waiting if self.model.request(each) is not None]

    def change(self) -> None:
        """Make one random change."""
        self.chance.choice(CHANGES)(self)

    # Changes.

    def put_node(self, name: str = "") -> None:
        found = self.chance.choice(self._nodes if self.chance.randint(0, 4) else UNUSUAL)
        self.put(able(found.changed(meta=structs.replace(found.meta, name=name or self.chance.choice(NAMES)))))

    def relabel_node(self) -> None:
        found = [each for each in self.objects.values() if isinstance(each, Node)]
        if found:
            node = self.chance.choice(found)
            changed = {**node.meta.labels, "zone": self.chance.choice("abc")}
            self.put(node.changed(meta=structs.replace(node.meta, labels=changed)))

    def remove_node(self) -> None:
        self.remove(Key(Node.kind, "", self.chance.choice(NAMES)))

    def _workload(self, name: str) -> Workload:
        choose, fields = self.chance.choice, dict(self.chance.choice(self._groups))
        if name == "mpi":
            fields["gang"] = choose([{}, {"min": 2}])
        made = make_workload(
            name,
            priority=choose([0, 0, 5, 9, *CLASSES]),
            replicas=3,
            disruption=choose([{}, {"max_unavailable": 1}, {"preempt": "never"}]),
            gates=choose([[], [], ["later"]]),
            **fields,
        )
        return made.changed(meta=structs.replace(made.meta, namespace=NAMESPACES[name], labels=choose(LABELS)))

    def put_workload(self, name: str | None = None) -> None:
        """Add or replace a workload, mostly with a release."""
        made = self._workload(name or self.chance.choice(sorted(NAMESPACES)))
        self.put(made)
        if name is not None or self.chance.randint(0, 3):
            self.put_release(made)

    def put_release(self, workload: Workload | None = None) -> None:
        """Add a release, or replace one: its instances change their size."""
        found = [each for each in self.objects.values() if isinstance(each, Workload)]
        if workload is None and not found:
            return
        made = make_release(workload or self.chance.choice(found), self.chance.choice([1, 1, 2]))
        self.put(made.changed(meta=structs.replace(made.meta, uid=made.meta.name)))

    def relabel_workload(self) -> None:
        found = [each for each in self.objects.values() if isinstance(each, Workload)]
        if found:
            workload = self.chance.choice(found)
            spec = structs.replace(workload.spec, priority=self.chance.choice([0, 5, *CLASSES]))
            meta = structs.replace(workload.meta, labels=self.chance.choice(LABELS))
            self.put(workload.changed(meta=meta, spec=spec))

    def remove_unused(self) -> None:
        """Remove a release or a workload that no placed or nominated instance refers to."""
        counted = [each for each in self.objects.values() if each.key in self.model.table.allocations]
        found = [each for each in counted if isinstance(each, Instance)]
        used = {(each.meta.namespace, name) for each in found for name in (each.spec.workload, each.spec.release)}
        kinds = {Workload.kind, Release.kind}
        unused = [key for key in self.objects if key.kind in kinds and (key.namespace, key.name) not in used]
        if unused:
            self.remove(self.chance.choice(unused))

    def put_class(self) -> None:
        self.put(make_class(self.chance.choice(CLASSES), self.chance.randint(-3, 9)))

    def remove_class(self) -> None:
        self.remove(Key(PriorityClass.kind, "", self.chance.choice(CLASSES)))

    def put_quota(self) -> None:
        choices: list[dict[str, Any]] = [{"instances": 2}, {"cpu": Cpu(700)}, {"instances": 5}]
        limits = self.chance.choice(choices)
        named = self.chance.choice([None, None, "high"])
        spec = QuotaSpec(priority_class=named, **limits)
        self.put(Quota(meta=Meta(name="most", namespace="default"), spec=spec, status=QuotaStatus()))

    def remove_quota(self) -> None:
        self.remove(Key(Quota.kind, "default", "most"))

    def put_reservation(self) -> None:
        spec = ReservationSpec(
            resources=TaskResources(cpu=Cpu(300), memory=Size(10 * MI)),
            count=2,
            end="2099-01-01T00:00:00Z",
            workload=self.chance.choice(["web", "db"]),
        )
        phase = self.chance.choice(["Active", "Over"])
        held = {name: self.chance.randint(1, 2) for name in self.chance.sample(NAMES, self.chance.randint(0, 2))}
        status = ReservationStatus(phase=phase, held=held)  # type: ignore[arg-type]
        self.put(Reservation(meta=Meta(name="room", namespace="default"), spec=spec, status=status))

    def remove_reservation(self) -> None:
        self.remove(Key(Reservation.kind, "default", "room"))

    def put_volume(self) -> None:
        """Write a volume that a placed instance uses, on the node of the instance."""
        wanted = [
            (each.spec.node, volume)
            for each in self.instances(PlacementState.PLACED)
            if (known := self.model.table.allocation(each.key)) is not None
            for volume in wanted_volumes(known.shape.volumes, each.key, known.identity)
        ]
        if wanted:
            node, volume = self.chance.choice(wanted)
            path = self.chance.choice(["", "/volume"])
            status = VolumeStatus(node=node, path=path, workload=self.chance.choice(["", "web"]))
            meta = Meta(name=volume.key.name, namespace=volume.key.namespace)
            self.put(Volume(meta=meta, spec=VolumeSpec(size=volume.spec.size), status=status))

    def remove_volume(self) -> None:
        found = [key for key in self.objects if key.kind == Volume.kind]
        if found:
            self.remove(self.chance.choice(found))

    # Instances.

    def add_instances(self, name: str | None = None, count: int = 0) -> None:
        """Add pending instances of a workload, whether the workload exists or not."""
        name = name or self.chance.choice(sorted(NAMESPACES))
        release = f"{name}.{self.chance.choice([1, 1, 2])}"
        avoid = self.chance.choice([(), (), (), ("n1",), ("n0", "n2")])
        pin = self.chance.choice(["", "", "", "", "n1"])
        for _ in range(count or self.chance.randint(1, 3)):
            self._serial += 1
            spec = InstanceSpec(workload=name, release=release, index=self._serial, avoid=avoid, pin=pin)
            self._add(f"{name}-{self._serial}", NAMESPACES[name], spec)

    def add_claim(self) -> None:
        self._serial += 1
        claim = Claim(
            task=f"t{self._serial}",
            cpu_milli=self.chance.choice([100, 500]),
            memory_bytes=64 * MI,
            pool=self.chance.choice(["x", "y"]),
            dedicated=self.chance.randint(0, 4) == 0,
        )
        spec = InstanceSpec(workload=claim.owner, release=claim.size, index=0, claim=claim)
        self._add(claim.name, "default", spec)

    def _add(self, name: str, namespace: str, spec: InstanceSpec) -> None:
        meta = Meta(name=name, namespace=namespace, uid=f"u{self._serial}", created_at=float(self._serial))
        self.put(Instance(meta=meta, spec=spec, status=InstanceStatus(phase=Phase.PENDING)))

    def bind(self, instance: Instance, node: str, variant: int = 0) -> None:
        """Bind an instance, with the ports that the table has chosen."""
        self.put(instance.bound(node, at=0.0, variant=variant))
        known = self.model.table.allocations[instance.key]
        ports = {each.name: number for each, number in zip(known.shape.any_ports, known.ports, strict=False)}
        self.put(instance.bound(node, at=0.0, variant=variant, ports=ports or None))

    def run_instance(self) -> None:
        """Report a placed instance as running; a disruption budget counts it then."""
        self._report(InstanceStatus(phase=Phase.RUNNING, ready=self.chance.random() < 0.5))

    def end_instance(self) -> None:
        self._report(InstanceStatus(phase=Phase.SUCCEEDED))

    def _report(self, status: InstanceStatus) -> None:
        found = self.instances(PlacementState.PLACED)
        if found:
            self.put(self.chance.choice(found).changed(status=status))

    def stop_instance(self) -> None:
        found = self.instances(PlacementState.PLACED, PlacementState.WAITING)
        if found:
            self.put(self.chance.choice(found).stopping("scaled down", at=self.chance.choice([0.0, 5.0])))

    def nominate(self, instance: Instance, node: str) -> None:
        self.put(instance.changed(status=InstanceStatus(phase=Phase.PENDING, nominated=node)))

    def nominate_one(self) -> None:
        found = self.instances(PlacementState.WAITING)
        if found:
            self.nominate(self.chance.choice(found), self.chance.choice(["", *NAMES]))

    def remove_instance(self) -> None:
        found = [key for key in self.objects if key.kind == Instance.kind]
        if found:
            self.remove(self.chance.choice(found))


CHANGES = [
    *[History.add_instances] * 3,
    *[History.put_node, History.relabel_node, History.remove_instance, History.end_instance] * 2,
    History.remove_node,
    History.put_workload,
    History.put_release,
    History.relabel_workload,
    History.remove_unused,
    History.put_class,
    History.remove_class,
    History.put_quota,
    History.remove_quota,
    History.put_reservation,
    History.remove_reservation,
    History.put_volume,
    History.remove_volume,
    History.add_claim,
    History.run_instance,
    History.stop_instance,
    History.nominate_one,
]
