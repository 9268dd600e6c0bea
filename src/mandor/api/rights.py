"""Evaluation of rules, the same for built-in and custom roles; no I/O.

A rule allows verbs on kinds, for objects within its namespaces, names and labels. A role that is granted for some
namespaces only is narrowed first: its rules then cover the objects of those namespaces, and reading what belongs to
no namespace (nodes, pools), but nothing that concerns the cluster as a whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from mandor.model.codec import KINDS
from mandor.model.limit_defaults import LimitDefaults
from mandor.model.meta import Object
from mandor.model.quota import Quota
from mandor.model.record import ALL_NAMESPACES
from mandor.model.reservation import Reservation
from mandor.model.role import ANY, BY_NAME_ONLY, READS, SERVE, WRITES, RoleRule

Rules = tuple[RoleRule, ...]

GUARDED = frozenset(
    {"token", "audit", "session", "role", "role-binding", "issuer", "identity-key", "authority", "acme-account"}
)
"""Kinds about access itself: a role for some namespaces does not read them."""
CLUSTER_WIDE = frozenset({"webhook", "event-bus", "log-sink", "inventory", "tally", "hearing", "server", "lease"})
"""Kinds about the whole cluster, or about several namespaces: a role for some namespaces does not read them."""
BOUNDS = frozenset({Quota.kind, LimitDefaults.kind, Reservation.kind})
"""Kinds that bound a namespace: a role for some namespaces reads them and does not write them."""
_OPEN = tuple(sorted(KINDS.keys() - GUARDED))
_WRITTEN = ("workload", "volume", "rebalance", "secret", "service", "route")
_NO_LABELS: Mapping[str, str] = {}

VIEWER: Rules = (
    RoleRule(verbs=READS, kinds=_OPEN),
    RoleRule(verbs=("logs",), kinds=("instance",)),
    RoleRule(verbs=("explain",), kinds=("instance", "service", "workload")),
    RoleRule(verbs=("plan", "simulate"), kinds=("workload",)),
    RoleRule(verbs=("metrics", "simulate"), kinds=("cluster",)),
)
OPERATOR: Rules = (
    *VIEWER,
    RoleRule(verbs=(*WRITES, "scale", "rollout"), kinds=_WRITTEN),
    RoleRule(verbs=("update", "delete", "exec", "forward"), kinds=("instance",)),
    RoleRule(verbs=("update", "drain", "load"), kinds=("node",)),
    RoleRule(verbs=("create", "update"), kinds=("task", "spare")),
    RoleRule(verbs=("debug",), kinds=("cluster",)),
)
ADMIN: Rules = (RoleRule(verbs=(ANY,), kinds=(ANY,)),)
GATEWAY: Rules = (
    RoleRule(verbs=READS, kinds=("instance", "route", "service")),
    RoleRule(verbs=(SERVE,), kinds=("route",)),
)
BUILT_IN: Mapping[str, Rules] = {"admin": ADMIN, "operator": OPERATOR, "viewer": VIEWER, "gateway": GATEWAY}


def allowed(
    rules: Iterable[RoleRule],
    verb: str,
    kind: str,
    namespace: str = "",
    name: str = "",
    labels: Mapping[str, str] = _NO_LABELS,
) -> bool:
    """Return whether one of the rules allows the verb on this object."""
    return any(_names(rule, verb, kind) and _within(rule, namespace, name, labels) for rule in rules)


def allowed_on(rules: Iterable[RoleRule], verb: str, value: Object) -> bool:
    meta = value.meta
    return allowed(rules, verb, value.kind, meta.namespace, meta.name, meta.labels)


def about(rules: Rules, verb: str, kind: str, namespace: str | None = None) -> Rules:
    """Return the rules that allow the verb on some objects of the kind, in the namespace if one is given."""
    found = (each for each in rules if _names(each, verb, kind))
    if namespace is None:
        return tuple(found)
    return tuple(each for each in found if ALL_NAMESPACES in each.namespaces or namespace in each.namespaces)


def without_limit(rules: Iterable[RoleRule]) -> bool:
    """Return whether one of them covers all objects of its kinds."""
    return any(ALL_NAMESPACES in each.namespaces and ANY in each.names and not each.labels for each in rules)


def _names(rule: RoleRule, verb: str, kind: str) -> bool:
    if verb not in rule.verbs and (ANY not in rule.verbs or verb in BY_NAME_ONLY):
        return False
    return kind in rule.kinds or ANY in rule.kinds


def _within(rule: RoleRule, namespace: str, name: str, labels: Mapping[str, str]) -> bool:
    if ALL_NAMESPACES not in rule.namespaces and (not namespace or namespace not in rule.namespaces):
        return False
    if rule.names != (ANY,) and not any(_covers_name(each, name) for each in rule.names):
        return False
    return not rule.labels or rule.labels.items() <= labels.items()


def _covers_name(pattern: str, name: str) -> bool:
    """Return whether a pattern covers a name, or all names that another pattern covers."""
    if pattern.endswith(ANY):
        return name.startswith(pattern[:-1])
    return pattern == name


# Granting.


@lru_cache(maxsize=1024)
def narrowed(rules: Rules, namespaces: frozenset[str]) -> Rules:
    """Return the rules limited to some namespaces."""
    if ALL_NAMESPACES in namespaces:
        return rules
    return tuple(part for rule in rules for part in _narrowed(rule, namespaces))


def _narrowed(rule: RoleRule, namespaces: frozenset[str]) -> Iterable[RoleRule]:
    kinds = [each for each in (KINDS if ANY in rule.kinds else rule.kinds) if each in KINDS]
    reads = tuple(each for each in READS if each in rule.verbs or ANY in rule.verbs)
    open_kinds = [each for each in kinds if each not in GUARDED]
    inside = [each for each in open_kinds if KINDS[each].namespaced]
    there = namespaces if ALL_NAMESPACES in rule.namespaces else namespaces & set(rule.namespaces)
    if there:
        free = tuple(each for each in inside if each not in BOUNDS)
        bounds = tuple(each for each in inside if each in BOUNDS)
        if free:
            yield replace(rule, kinds=free, namespaces=tuple(sorted(there)))
        if bounds and reads:
            yield replace(rule, verbs=reads, kinds=bounds, namespaces=tuple(sorted(there)))
    if ALL_NAMESPACES not in rule.namespaces:
        return
    private = CLUSTER_WIDE | {"namespace"}
    shared = tuple(each for each in open_kinds if not KINDS[each].namespaced and each not in private)
    if shared and reads:
        yield replace(rule, verbs=reads, kinds=shared)
    names = tuple(sorted(each for each in namespaces if any(_covers_name(name, each) for name in rule.names)))
    if "namespace" in kinds and reads and names:
        yield replace(rule, verbs=reads, kinds=("namespace",), names=names)
    if "token" in kinds and ("create" in rule.verbs or ANY in rule.verbs):
        # Tokens belong to no namespace; what they grant is compared with what their maker has.
        yield replace(rule, verbs=("create",), kinds=("token",))


def lacking(held: Rules, wanted: Rules) -> RoleRule | None:
    """Return the first part of `wanted` that `held` does not include; None: `held` includes all of it."""
    for rule in wanted:
        for part in _parts(rule):
            if not any(_includes(each, part) for each in held):
                return part
    return None


def _parts(rule: RoleRule) -> Iterable[RoleRule]:
    """Yield the rule split into rules of one verb, kind, namespace and name each."""
    for verb in rule.verbs:
        for kind in rule.kinds:
            for namespace in rule.namespaces:
                for name in rule.names:
                    yield replace(rule, verbs=(verb,), kinds=(kind,), namespaces=(namespace,), names=(name,))


def _includes(held: RoleRule, part: RoleRule) -> bool:
    """Return whether a rule includes a part; only a wildcard includes a wildcard, which covers later additions, too.

    `read-value` is held by a rule with all verbs on secrets: such a caller can run a task that reads the secret. The
    same applies to `serve`.
    """
    return (
        (ANY in held.verbs or part.verbs[0] in held.verbs)
        and (ANY in held.kinds or part.kinds[0] in held.kinds)
        and (ALL_NAMESPACES in held.namespaces or part.namespaces[0] in held.namespaces)
        and any(_covers_name(each, part.names[0]) for each in held.names)
        and held.labels.items() <= part.labels.items()
    )


@lru_cache(maxsize=1024)
def built_in(role: str, namespaces: frozenset[str]) -> Rules:
    """Return the rules of a built-in role; empty for nodes, join tokens and components, which are checked by role."""
    return narrowed(BUILT_IN.get(role, ()), namespaces)


def rule_text(rule: RoleRule) -> str:
    """Return a rule as text, as in `get,list on secret in a, b`."""
    text = f"{','.join(rule.verbs)} on {','.join(rule.kinds)}"
    text += "" if rule.namespaces == (ALL_NAMESPACES,) else f" in {', '.join(rule.namespaces)}"
    text += "" if rule.names == (ANY,) else f" named {', '.join(rule.names)}"
    labels = ",".join(f"{key}={value}" for key, value in sorted(rule.labels.items()))
    return text + (f" labelled {labels}" if labels else "")


def verbs_of(rules: Sequence[RoleRule], kind: str) -> frozenset[str]:
    """All verbs that some rule allows on objects of the kind; `*`: all."""
    return frozenset(verb for rule in rules if kind in rule.kinds or ANY in rule.kinds for verb in rule.verbs)
