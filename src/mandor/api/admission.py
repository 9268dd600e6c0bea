"""Admission: checks objects of users against the rest of the cluster, such as namespaces, engines and limits."""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple, TypeVar

from mandor.api.allowance import check_most, check_rules, forms_of
from mandor.api.counts import check_targets
from mandor.api.networks import admit_network, check_network_unused, check_networks_of, with_default_network
from mandor.api.parts import ApiParts
from mandor.api.pending_objects import PendingObjects
from mandor.api.pools import admit_pool, check_pool
from mandor.api.secret import sealed
from mandor.engines.registry import check_options
from mandor.engines.registry import known_engines as registered
from mandor.errors import Conflict, Invalid
from mandor.lib.steps import chosen
from mandor.lib.turns import in_turns
from mandor.lib.words import did_you_mean
from mandor.model.allowance import with_allowed
from mandor.model.dependency_cycle import HINT as UNTIE
from mandor.model.group import GroupTemplate
from mandor.model.image_reference import check_image
from mandor.model.instance import Instance, instance_prefix
from mandor.model.limit_defaults import LimitDefaults, filled
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Key, Meta, Object
from mandor.model.near_cycle import HINT
from mandor.model.network import Network
from mandor.model.node import Node
from mandor.model.phase import OVER, Phase
from mandor.model.pool import NodePool
from mandor.model.priority import NO_CLASS, PriorityClass
from mandor.model.quota import Quota
from mandor.model.record import Namespace
from mandor.model.secret import Secret
from mandor.model.volume import Volume
from mandor.model.workload import Workload
from mandor.store.base import Filter, Store

O = TypeVar("O", bound=Object)  # noqa: E741 - O for object

NAME_MOST = 63  # characters
_AWAY = OVER | {Phase.LOST}


async def known_engines(store: Store, extra: Collection[str] = ()) -> frozenset[str]:
    """Return the engines that this server knows, that a node reports, or that the settings name."""
    found = {*registered(), *extra}
    for node in (await store.list(Node.kind)).items:
        found.update(node.status.engines)
    return frozenset(found)


class Reference(NamedTuple):
    """An object that another one depends on, and the version of it that was checked."""

    key: Key
    version: int


async def admit(value: Object, engines: Collection[str], pending: PendingObjects) -> list[Reference]:
    """Raise `Invalid`, `Forbidden` or `Conflict` for an object that may not be stored; return what it depends on.

    `pending`: all objects of the same request, including this one.
    """
    if isinstance(value, Namespace) and len(value.meta.name) > NAME_MOST:
        raise Invalid(f"the name of a namespace has at most {NAME_MOST} characters")
    if isinstance(value, Volume | Secret):
        return (await _namespace(value, pending))[1]
    if isinstance(value, PriorityClass):
        await _check_default(value, pending)
    if isinstance(value, Quota):
        return await _admit_quota(value, pending)
    if isinstance(value, LimitDefaults):
        return await _admit_defaults(value, pending)
    if isinstance(value, NodePool):
        admit_pool(value)
    if isinstance(value, Network):
        await admit_network(value, pending)
    if not isinstance(value, Workload):
        return []
    if len(value.meta.name) > NAME_MOST:
        raise Invalid(
            f"the name {value.meta.name[:20]!r}… has {len(value.meta.name)} characters; at most {NAME_MOST} are allowed"
        )
    for path, form in forms_of(value):
        _check_engines(form, engines, path)
        _check_options(form, path)
        _check_images(form, path)
    check_targets(value)
    await _check_names(value, pending)
    await _check_near(value, pending)
    await _check_depends_on(value, pending)
    await check_networks_of(value, pending)
    priority, references = await _priority(value, pending)
    namespace, more = await _namespace(value, pending)
    check_rules(value, namespace or Namespace(meta=Meta(name=DEFAULT_NAMESPACE)), priority)
    defaults = await defaults_of(value.meta.namespace, pending)
    if defaults is not None:
        check_most(value, defaults)
    return references + more


async def completed(parts: ApiParts, stored: Object | None, value: Object, pending: PendingObjects) -> Object:
    """Return the object with the defaults of its namespace and with its secrets sealed.

    A template that does not change stays as it is stored, so that scaling restarts nothing.
    """
    if not isinstance(value, Workload):
        return sealed(parts.sealer, stored, value, counted="secret-changes" in parts.everywhere())
    if isinstance(stored, Workload) and stored.spec.template == value.spec.template:
        return value
    if "networks" in parts.everywhere():
        value = await with_default_network(value, pending)
    namespace = await pending.find(Namespace, Key(Namespace.kind, "", value.meta.namespace))
    value = value if namespace is None else with_allowed(value, namespace.spec)
    defaults = await defaults_of(value.meta.namespace, pending)
    return filled(value, defaults.spec) if defaults is not None else value


async def _admit_quota(value: Quota, pending: PendingObjects) -> list[Reference]:
    references: list[Reference] = []
    if value.spec.priority_class is not None:
        _, references = await _class(value.spec.priority_class, pending, "spec.priority_class")
    _, more = await _namespace(value, pending)
    return references + more


async def _admit_defaults(value: LimitDefaults, pending: PendingObjects) -> list[Reference]:
    for other in await pending.all(LimitDefaults, value.meta.namespace):
        if other.key == value.key:
            continue
        raise Conflict(
            f"the namespace {value.meta.namespace} already has limit-defaults: {other.meta.name}",
            hint=f"change {other.meta.name}, or delete it: `mandor delete limit-defaults {other.meta.name}`",
            path="meta.name",
        )
    return (await _namespace(value, pending))[1]


async def defaults_of(namespace: str, pending: PendingObjects) -> LimitDefaults | None:
    """Return the limit-defaults of a namespace, pending or stored; there is at most one unless two are made at once."""
    return next(iter(await pending.all(LimitDefaults, namespace)), None)


async def _namespace(value: Object, pending: PendingObjects) -> tuple[Namespace | None, list[Reference]]:
    """Return the namespace of an object and the reference to it; `default` needs no object."""
    found, references = await _find(Namespace, value.meta.namespace, pending)
    if found is not None:
        return found, references
    if value.meta.namespace == DEFAULT_NAMESPACE:
        return None, []
    known = [each.meta.name for each in await pending.all(Namespace)]
    raise Invalid(
        f"there is no namespace {value.meta.namespace}",
        hint=f"{did_you_mean(value.meta.namespace, [*known, DEFAULT_NAMESPACE])} "
        "An admin creates a namespace with a manifest: `kind: namespace`, `name: …`",
        path="meta.namespace",
    )


async def _check_names(value: Workload, pending: PendingObjects) -> None:
    """Raise `Conflict` if another workload has the same instance names, as `shop` with group `web` and `shop-web`."""
    prefixes = {instance_prefix(value.meta.name, group): group for group in value.spec.groups}
    for prefix, group in prefixes.items():
        parts = prefix.split("-")
        for name in {"-".join(parts[:count]) for count in range(1, len(parts) + 1)} - {value.meta.name}:
            key = Key(Workload.kind, value.meta.namespace, name)
            other = await pending.find(Workload, key)
            if other is not None and _has_prefix(other, prefix):
                raise Conflict(
                    f"the instances of its group {group} would be named {prefix}-0, {prefix}-1 …, "
                    f"like those of the workload {name}",
                    hint="rename the workload or the group",
                    path="meta.name",
                    workload=name,
                )


def _has_prefix(workload: Workload, prefix: str) -> bool:
    return any(instance_prefix(workload.meta.name, group) == prefix for group in workload.spec.groups)


async def _priority(value: Workload, pending: PendingObjects) -> tuple[int, list[Reference]]:
    """Return the numeric priority of a workload, and the reference to its priority class."""
    given = value.spec.priority
    if isinstance(given, int):
        return given, []
    if given is None:
        classes = await pending.all(PriorityClass)
        return min((each.spec.value for each in classes if each.spec.default), default=NO_CLASS.value), []
    return await _class(given, pending, "spec.priority")


async def _class(given: str, pending: PendingObjects, path: str) -> tuple[int, list[Reference]]:
    found, references = await _find(PriorityClass, given, pending)
    if found is not None:
        return found.spec.value, references
    near = did_you_mean(given, [each.meta.name for each in await pending.all(PriorityClass)])
    raise Invalid(
        f"there is no priority class {given}",
        hint=f"{near} An admin creates a class with a manifest: `kind: priority-class`, `name: {given}`, `value: …`",
        path=path,
    )


async def _check_default(value: PriorityClass, pending: PendingObjects) -> None:
    """Raise `Conflict` if another priority class is the default."""
    if not value.spec.default:
        return
    others = (each.meta.name for each in await pending.all(PriorityClass) if each.spec.default)
    taken = next((name for name in others if name != value.meta.name), None)
    if taken is not None:
        raise Conflict(
            f"the priority class {taken} is already the default",
            hint=f"apply {taken} without `default: true` first, or in the same apply",
            path="spec.default",
        )


async def _check_depends_on(value: Workload, pending: PendingObjects) -> None:
    """Raise `Invalid` for dependencies that form a cycle or can never be met."""
    spec = value.spec
    if not any(group.depends_on for group in spec.groups.values()):
        return
    for group, each in spec.groups.items():
        for name, condition in each.depends_on.items():
            key = Key(Workload.kind, value.meta.namespace, name)
            other = await pending.find(Workload, key) if name not in spec.groups else None
            if other is not None and other.spec.schedule is not None:
                raise Invalid(
                    f"group {group} depends on {name}, which runs repeatedly on a schedule",
                    hint="depend on a workload without `schedule`",
                    path=f"spec.groups.{group}.depends_on.{name}",
                )
            if other is not None and condition == "completed" and other.spec.type != "batch":
                raise Invalid(
                    f"group {group} depends on the completion of {name}, but a {other.spec.type} never completes",
                    hint="use `healthy` or `started`",
                    path=f"spec.groups.{group}.depends_on.{name}",
                )
    found = await pending.dependency_cycle(value)
    if found is not None:
        path = f"spec.groups.{found.group}.depends_on.{found.name}"
        raise Invalid(found.message, hint=UNTIE, path=path)


async def _check_near(value: Workload, pending: PendingObjects) -> None:
    """Raise `Invalid` if groups with `near` rules of strength `must` would wait for each other for ever."""
    if not any(rule.strength == "must" for group in value.spec.groups.values() for rule in group.placement.near):
        return
    found = await pending.placement_deadlock(value)
    if found is not None:
        raise Invalid(found.message, hint=HINT, path=f"spec.groups.{found.group}.placement.near[{found.rule}]")


def _check_options(group: GroupTemplate, path: str) -> None:
    for name, task in group.tasks.items():
        for engine, options in task.options.items():
            check_options(engine, options, f"{path}.tasks.{name}.options")


def _check_images(group: GroupTemplate, path: str) -> None:
    for name, task in group.tasks.items():
        if task.image:
            try:
                check_image(task.image, group.engine)
            except ValueError as error:
                raise Invalid(str(error), path=f"{path}.tasks.{name}.image") from None


def _check_engines(group: GroupTemplate, known: Collection[str], path: str) -> None:
    for name in group.engine:
        if name not in known:
            hint = did_you_mean(name, known)
            raise Invalid(f"there is no engine {name!r}", hint=hint, engine=name, path=f"{path}.engine")


async def _find(kind: type[O], name: str, pending: PendingObjects) -> tuple[O | None, list[Reference]]:
    """Return a pending or stored object without a namespace, and the reference to it."""
    key = Key(kind.kind, "", name)
    found = await pending.find(kind, key)
    return found, [] if found is None else [Reference(key, found.meta.version)]


async def check_deletable(store: Store, value: Object) -> None:
    """Raise `Conflict` if other objects still need the object."""
    check_pool(value, None)
    if isinstance(value, Network):
        await check_network_unused(store, value)
    if isinstance(value, Namespace):
        where = Filter(namespace=value.meta.name)
        kinds = ("workload", "instance", "quota", "limit-defaults", "volume")
        left = [each for kind in kinds for each in (await store.list(kind, where)).items]
        if left:
            raise Conflict(
                f"the namespace {value.meta.name} still contains {len(left)} objects, for example {left[0].key}",
                hint=f"`mandor delete {left[0].kind} NAME -n {value.meta.name}` first; instances take a moment to stop",
                left=len(left),
            )
    if isinstance(value, Volume):
        users = await _instances_with(store, value)
        if users:
            raise Conflict(
                f"the volume {value.meta.name} is used by {', '.join(users[:5])}",
                hint=f"delete or scale down the workload {value.status.workload} first; deleting a volume deletes its "
                "data",
                left=len(users),
            )
    if isinstance(value, PriorityClass):
        named = [each for each in (await store.list("workload")).items if _names(each, value.meta.name)]
        if named:
            raise Conflict(
                f"{len(named)} workloads use the priority class {value.meta.name}, for example {named[0].key}",
                hint="give them another `priority` first",
                left=len(named),
            )
    if isinstance(value, Node):
        listing = await store.list("instance", Filter(node=value.meta.name))
        held = [each for each in listing.items if isinstance(each, Instance) and each.phase.placed]
        if held:
            raise Conflict(
                f"the node {value.meta.name} still has {len(held)} instances, for example {held[0].meta.name}",
                hint=f"run `mandor drain {value.meta.name}` first, or wait until the node is lost",
                left=len(held),
            )


async def _instances_with(store: Store, volume: Volume) -> list[str]:
    """Return the instances that use a volume, without those that were lost with their node."""
    listing = await store.list("instance", Filter(namespace=volume.meta.namespace))
    return await in_turns(chosen(listing.items, lambda piece: _having(piece, volume.meta.name)))


def _having(instances: Iterable[Object], volume: str) -> Iterator[str]:
    for each in instances:
        if isinstance(each, Instance) and volume in each.spec.volumes and each.phase not in _AWAY:
            yield each.meta.name


def _names(value: Object, priority_class: str) -> bool:
    return isinstance(value, Workload) and value.spec.priority == priority_class
