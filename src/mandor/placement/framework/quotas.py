"""Quotas of namespaces and the amounts that their instances take."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mandor.placement.framework.identity import Identity
from mandor.placement.framework.read_only import ReadOnly, Writable
from mandor.placement.framework.request import Shape

INSTANCES = "instances"
"""Name under which a quota limits the number of instances."""

_NOTHING: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Quota:
    """Maximum amounts of the instances of a namespace."""

    name: str
    most: Mapping[str, int]
    """Limits by resource, and for `instances`."""
    priority_class: str = ""
    """Priority class that the quota is limited to; empty: all instances."""


class Quotas(ReadOnly):
    """The quotas of each namespace and what its instances take: those that have a node or have been promised one."""

    _quotas: dict[str, dict[str, Quota]]
    _used: dict[tuple[str, str], dict[str, int]]
    """Amounts by namespace and priority class; without a class, of all instances of the namespace."""

    def of(self, identity: Identity, namespace: str) -> list[Quota]:
        """Return the quotas that apply to an instance."""
        found = self._quotas.get(namespace)
        if not found:
            return []
        return [each for each in found.values() if each.priority_class in {"", identity.priority_class}]

    def used(self, namespace: str, priority_class: str = "") -> Mapping[str, int]:
        """Return the amounts that are in use by resource."""
        return MappingProxyType(self._used.get((namespace, priority_class), _NOTHING))


class MutableQuotas(Writable, Quotas):
    """The quotas as the table counts them."""

    def __init__(self) -> None:
        self._quotas = {}
        self._used = {}

    def set(self, namespace: str, quota: Quota) -> None:
        frozen = replace(quota, most=MappingProxyType(dict(quota.most)))
        self._quotas.setdefault(namespace, {})[quota.name] = frozen

    def drop(self, namespace: str, name: str) -> None:
        left = self._quotas.get(namespace, {})
        left.pop(name, None)
        if not left:
            self._quotas.pop(namespace, None)

    def count(self, namespace: str, shape: Shape, identity: Identity, sign: int) -> None:
        self._add((namespace, ""), shape, sign)
        if identity.priority_class:
            self._add((namespace, identity.priority_class), shape, sign)

    def _add(self, key: tuple[str, str], shape: Shape, sign: int) -> None:
        used = self._used.get(key)
        if used is None:
            used = self._used[key] = {}
        used[INSTANCES] = used.get(INSTANCES, 0) + sign
        for resource, amount in shape.wanted:
            used[resource] = used.get(resource, 0) + sign * amount
        if not used[INSTANCES]:
            del self._used[key]
