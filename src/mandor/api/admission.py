"""What the cluster lets in: namespaces that exist, engines that exist, and what a namespace allows."""

from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from mandor.api.allowance import check_most, check_rules, forms_of
from mandor.api.beside import Beside
from mandor.api.counts import check_targets
from mandor.api.parts import ApiParts
from mandor.api.pools import admit_pool, check_pool
from mandor.api.secret import sealed
from mandor.engines.registry import check_options
from mandor.engines.registry import known_engines as registered
from mandor.errors import Conflict, Invalid
from mandor.lib.steps import chosen, in_turns
from mandor.lib.words import did_you_mean
from mandor.model.allowance import with_allowed
from mandor.model.depends import HINT as UNTIE
from mandor.model.instance import Instance, instance_prefix
from mandor.model.limit_defaults import LimitDefaults, filled
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Key, Meta, Object
from mandor.model.near_cycle import HINT
from mandor.model.node import Node
from mandor.model.phase import OVER, Phase
from mandor.model.pool import NodePool
from mandor.model.priority import NO_CLASS, PriorityClass
from mandor.model.quota import Quota
from mandor.model.record import Namespace
from mandor.model.secret import Secret
from mandor.model.volume import Volume
from mandor.model.workload import GroupTemplate, Workload
from mandor.store.base import Check, Filter, Store

O = TypeVar("O", bound=Object)  # noqa: E741 - O for object

NAME_MOST = 63
_AWAY = OVER | {Phase.LOST}


async def known_engines(store: Store, extra: Collection[str] = ()) -> frozenset[str]:
    """Engines that are installed here, that some node reports, or that the settings name."""
    found = {*registered(), *extra}
    for node in (await store.list(Node.kind)).items:
        found.update(node.status.engines)
    return frozenset(found)


async def admit(value: Object, engines: Collection[str], beside: Beside) -> list[Check]:
    """Raise `Invalid` or `Forbidden` for what may not be stored; else what must still be so at the commit.

    `beside`: what is stored in the same breath, such as the namespace of a workload, and this value itself.
    """
    if isinstance(value, Namespace) and len(value.meta.name) > NAME_MOST:
        raise Invalid(f"the name of a namespace has at most {NAME_MOST} characters")
    if isinstance(value, Volume | Secret):
        return (await _namespace(value, beside))[1]
    if isinstance(value, PriorityClass):
        await _check_default(value, beside)
    if isinstance(value, Quota):
        return await _admit_quota(value, beside)
    if isinstance(value, LimitDefaults):
        return await _admit_defaults(value, beside)
    if isinstance(value, NodePool):
        admit_pool(value)
    if not isinstance(value, Workload):
        return []
    if len(value.meta.name) > NAME_MOST:
        raise Invalid(
            f"the name {value.meta.name[:20]!r}… has {len(value.meta.name)} characters; at most {NAME_MOST} are allowed"
        )
    for path, form in forms_of(value):
        _check_engines(form, engines, path)
        _check_options(form, path)
    check_targets(value)
    await _check_names(value, beside)
    await _check_near(value, beside)
    await _check_depends_on(value, beside)
    priority, checks = await _priority(value, beside)
    namespace, more = await _namespace(value, beside)
    check_rules(value, namespace or Namespace(meta=Meta(name=DEFAULT_NAMESPACE)), priority)
    defaults = await defaults_of(value.meta.namespace, beside)
    if defaults is not None:
        check_most(value, defaults)
    return checks + more


async def completed(parts: ApiParts, stored: Object | None, value: Object, beside: Beside) -> Object:
    """The object with the defaults of its namespace, and with its secrets sealed. A template that does not change stays
    as it is stored, so that scaling restarts nothing."""
    if not isinstance(value, Workload):
        return sealed(parts.sealer, stored, value, counted="secret-changes" in parts.everywhere())
    if isinstance(stored, Workload) and stored.spec.template == value.spec.template:
        return value
    namespace = await beside.find(Namespace, Key(Namespace.kind, "", value.meta.namespace))
    value = value if namespace is None else with_allowed(value, namespace.spec)
    defaults = await defaults_of(value.meta.namespace, beside)
    return filled(value, defaults.spec) if defaults is not None else value


async def _admit_quota(value: Quota, beside: Beside) -> list[Check]:
    checks: list[Check] = []
    if value.spec.priority_class is not None:
        _, checks = await _class(value.spec.priority_class, beside, "spec.priority_class")
    _, more = await _namespace(value, beside)
    return checks + more


async def _admit_defaults(value: LimitDefaults, beside: Beside) -> list[Check]:
    for other in await beside.all(LimitDefaults, value.meta.namespace):
        if other.key == value.key:
            continue
        raise Conflict(
            f"the namespace {value.meta.namespace} has limit-defaults already: {other.meta.name}",
            hint=f"change those, or delete them: `mandor delete limit-defaults {other.meta.name}`",
            path="meta.name",
        )
    return (await _namespace(value, beside))[1]


async def defaults_of(namespace: str, beside: Beside) -> LimitDefaults | None:
    """What is in the namespace, or about to be stored there: one at most, unless two are made at the same time."""
    return next(iter(await beside.all(LimitDefaults, namespace)), None)


async def _namespace(value: Object, beside: Beside) -> tuple[Namespace | None, list[Check]]:
    """Where it is to live, and what must still be there at the commit; `default` needs no object."""
    found, checks = await _find(Namespace, value.meta.namespace, beside)
    if found is not None:
        return found, checks
    if value.meta.namespace == DEFAULT_NAMESPACE:
        return None, []
    known = [each.meta.name for each in await beside.all(Namespace)]
    raise Invalid(
        f"there is no namespace {value.meta.namespace}",
        hint=f"{did_you_mean(value.meta.namespace, [*known, DEFAULT_NAMESPACE])} "
        "An admin makes one with a manifest: `kind: namespace`, `name: …`",
        path="meta.namespace",
    )


async def _check_names(value: Workload, beside: Beside) -> None:
    """`shop` with a group `web` and the workload `shop-web` would call their instances the same."""
    prefixes = {instance_prefix(value.meta.name, group): group for group in value.spec.groups}
    for prefix, group in prefixes.items():
        parts = prefix.split("-")
        for name in {"-".join(parts[:count]) for count in range(1, len(parts) + 1)} - {value.meta.name}:
            key = Key(Workload.kind, value.meta.namespace, name)
            other = await beside.find(Workload, key)
            if other is not None and _calls(other, prefix):
                raise Conflict(
                    f"the instances of its group {group} would be called {prefix}-0, {prefix}-1 …, "
                    f"as those of the workload {name}",
                    hint="rename the workload or the group",
                    path="meta.name",
                    workload=name,
                )


def _calls(workload: Workload, prefix: str) -> bool:
    return any(instance_prefix(workload.meta.name, group) == prefix for group in workload.spec.groups)


async def _priority(value: Workload, beside: Beside) -> tuple[int, list[Check]]:
    """The number behind its priority, and the class that must still be there at the commit."""
    given = value.spec.priority
    if isinstance(given, int):
        return given, []
    if given is None:
        classes = await beside.all(PriorityClass)
        return min((each.spec.value for each in classes if each.spec.default), default=NO_CLASS.value), []
    return await _class(given, beside, "spec.priority")


async def _class(given: str, beside: Beside, path: str) -> tuple[int, list[Check]]:
    found, checks = await _find(PriorityClass, given, beside)
    if found is not None:
        return found.spec.value, checks
    near = did_you_mean(given, [each.meta.name for each in await beside.all(PriorityClass)])
    raise Invalid(
        f"there is no priority class {given}",
        hint=f"{near} An admin makes one with a manifest: `kind: priority-class`, `name: {given}`, `value: …`",
        path=path,
    )


async def _check_default(value: PriorityClass, beside: Beside) -> None:
    """Only one class can be meant by those who name none."""
    if not value.spec.default:
        return
    others = (each.meta.name for each in await beside.all(PriorityClass) if each.spec.default)
    taken = next((name for name in others if name != value.meta.name), None)
    if taken is not None:
        raise Conflict(
            f"the priority class {taken} is the default already",
            hint=f"apply {taken} without `default: true` first, or together with this",
            path="spec.default",
        )


async def _check_depends_on(value: Workload, beside: Beside) -> None:
    """Nobody waits for himself, by way of others, or for what never comes."""
    spec = value.spec
    if not any(group.depends_on for group in spec.groups.values()):
        return
    for group, each in spec.groups.items():
        for name, condition in each.depends_on.items():
            key = Key(Workload.kind, value.meta.namespace, name)
            other = await beside.find(Workload, key) if name not in spec.groups else None
            if other is not None and other.spec.schedule is not None:
                raise Invalid(
                    f"group {group} waits for {name}, which runs by a schedule, again and again",
                    hint="depend on a workload that begins once",
                    path=f"spec.groups.{group}.depends_on.{name}",
                )
            if other is not None and condition == "completed" and other.spec.type != "batch":
                raise Invalid(
                    f"group {group} waits for {name} to complete, and a {other.spec.type} never does",
                    hint="`healthy`, or `started`",
                    path=f"spec.groups.{group}.depends_on.{name}",
                )
    found = await beside.circle(value)
    if found is not None:
        path = f"spec.groups.{found.group}.depends_on.{found.name}"
        raise Invalid(found.message, hint=UNTIE, path=path)


async def _check_near(value: Workload, beside: Beside) -> None:
    """Groups that would wait for each other for ever are refused; others are looked at only if there is such a rule."""
    if not any(rule.strength == "must" for group in value.spec.groups.values() for rule in group.placement.near):
        return
    found = await beside.deadlock(value)
    if found is not None:
        raise Invalid(found.message, hint=HINT, path=f"spec.groups.{found.group}.placement.near[{found.rule}]")


def _check_options(group: GroupTemplate, path: str) -> None:
    for name, task in group.tasks.items():
        for engine, options in task.options.items():
            check_options(engine, options, f"{path}.tasks.{name}.options")


def _check_engines(group: GroupTemplate, known: Collection[str], path: str) -> None:
    for name in group.engine:
        if name not in known:
            hint = did_you_mean(name, known)
            raise Invalid(f"there is no engine {name!r}", hint=hint, engine=name, path=f"{path}.engine")


async def _find(kind: type[O], name: str, beside: Beside) -> tuple[O | None, list[Check]]:
    """One that belongs to no namespace, stored or about to be, and what must still be so at the commit."""
    key = Key(kind.kind, "", name)
    found = await beside.find(kind, key)
    if found is None:
        return None, []
    return found, [] if key in beside else [Check(key, found.meta.version)]


async def check_deletable(store: Store, value: Object) -> None:
    """Raise `Conflict` where deleting would leave something behind."""
    check_pool(value, None)
    if isinstance(value, Namespace):
        where = Filter(namespace=value.meta.name)
        kinds = ("workload", "instance", "quota", "limit-defaults", "volume")
        left = [each for kind in kinds for each in (await store.list(kind, where)).items]
        if left:
            raise Conflict(
                f"the namespace {value.meta.name} still holds {len(left)} objects, {left[0].key} among them",
                hint=f"`mandor delete {left[0].kind} NAME -n {value.meta.name}` first; instances take a moment to stop",
                left=len(left),
            )
    if isinstance(value, Volume):
        users = await _users(store, value)
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
                f"{len(named)} workloads have the priority class {value.meta.name}, {named[0].key} among them",
                hint="give them another `priority` first",
                left=len(named),
            )
    if isinstance(value, Node):
        listing = await store.list("instance", Filter(node=value.meta.name))
        held = [each for each in listing.items if isinstance(each, Instance) and each.phase.placed]
        if held:
            raise Conflict(
                f"the node {value.meta.name} still holds {len(held)} instances, {held[0].meta.name} among them",
                hint=f"`mandor drain {value.meta.name}` first, or wait until the node counts as lost",
                left=len(held),
            )


async def _users(store: Store, volume: Volume) -> list[str]:
    """Instances that have it; not those that were lost with its node, and may never come back."""
    listing = await store.list("instance", Filter(namespace=volume.meta.namespace))
    return await in_turns(chosen(listing.items, lambda piece: _having(piece, volume.meta.name)))


def _having(instances: Iterable[Object], volume: str) -> Iterator[str]:
    for each in instances:
        if isinstance(each, Instance) and volume in each.spec.volumes and each.phase not in _AWAY:
            yield each.meta.name


def _names(value: Object, priority_class: str) -> bool:
    return isinstance(value, Workload) and value.spec.priority == priority_class
