"""Grants: compares the rights that roles, bindings and tokens grant with those of their author."""

from collections.abc import Iterable

from mandor.api.caller import Caller
from mandor.api.rights import ADMIN, BUILT_IN, Rules, narrowed
from mandor.errors import Invalid
from mandor.lib.words import did_you_mean
from mandor.model.codec import KINDS
from mandor.model.meta import Key, Object
from mandor.model.role import ANY, CustomRole, Issuer, RoleBinding
from mandor.store.base import Store


async def rules_of(store: Store, role: str, pending: Iterable[Object] = ()) -> Rules | None:
    """Return the rules of a built-in or custom role; None: there is no such role.

    `pending`: objects of the same request.
    """
    if role in BUILT_IN:
        return BUILT_IN[role]
    for each in pending:
        if isinstance(each, CustomRole) and each.meta.name == role:
            return each.spec.rules
    found = await store.get(Key(CustomRole.kind, "", role))
    return found.spec.rules if isinstance(found, CustomRole) else None


async def known_rules(store: Store, role: str, pending: Iterable[Object] = (), *, path: str) -> Rules:
    """Return the rules of a role; raise `Invalid` if it does not exist."""
    rules = await rules_of(store, role, pending)
    if rules is None:
        names = [each.meta.name for each in (await store.list(CustomRole.kind)).items]
        raise Invalid(f"there is no role {role[:63]!r}", hint=did_you_mean(role[:63], [*BUILT_IN, *names]), path=path)
    return rules


async def check_grants(store: Store, caller: Caller, value: Object, pending: Iterable[Object]) -> None:
    """Raise `Forbidden` for a role, binding or issuer that would grant rights which its author does not have."""
    if isinstance(value, CustomRole):
        _check_kinds(value)
        caller.require_all(value.spec.rules, what=f"write {value.key}")
    elif isinstance(value, RoleBinding):
        rules = await known_rules(store, value.spec.role, pending, path="spec.role")
        granted = narrowed(rules, frozenset(value.spec.namespaces))
        caller.require_all(granted, what=f"write {value.key}")
    elif isinstance(value, Issuer):
        # Bindings trust an issuer by its name: replacing the issuer would take over all that they grant.
        caller.require_all(ADMIN, what=f"write {value.key}")


def _check_kinds(role: CustomRole) -> None:
    for place, rule in enumerate(role.spec.rules):
        for kind in rule.kinds:
            if kind != ANY and kind not in KINDS:
                raise Invalid(
                    f"there is no kind {kind[:40]!r}",
                    hint=did_you_mean(kind, KINDS),
                    path=f"spec.rules[{place}].kinds",
                )
