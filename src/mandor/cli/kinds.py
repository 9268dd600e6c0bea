"""Kinds of objects by the names used on the command line."""

from typing import NamedTuple

import click


class Kind(NamedTuple):
    name: str
    plural: str
    namespaced: bool = True
    short: tuple[str, ...] = ()


KINDS = (
    Kind("workload", "workloads", short=("wl", "w")),
    Kind("instance", "instances", short=("inst", "i")),
    Kind("node", "nodes", namespaced=False, short=("no", "n")),
    Kind("release", "releases", short=("rel",)),
    Kind("namespace", "namespaces", namespaced=False, short=("ns",)),
    Kind("volume", "volumes", short=("vol",)),
    Kind("secret", "secrets", short=("sec",)),
    Kind("priority-class", "priority-classes", namespaced=False, short=("pc",)),
    Kind("quota", "quotas"),
    Kind("node-pool", "node-pools", namespaced=False, short=("np",)),
    Kind("reservation", "reservations", short=("res",)),
    Kind("service", "services", short=("svc",)),
    Kind("route", "routes", short=("rt",)),
    Kind("network", "networks", namespaced=False, short=("net",)),
    Kind("rebalance", "rebalances", namespaced=False, short=("rb",)),
    Kind("webhook", "webhooks", namespaced=False, short=("wh",)),
    Kind("event-bus", "event-buses", namespaced=False, short=("bus",)),
    Kind("log-sink", "log-sinks", namespaced=False, short=("ls",)),
    Kind("role", "roles", namespaced=False),
    Kind("role-binding", "role-bindings", namespaced=False, short=("rbd",)),
    Kind("issuer", "issuers", namespaced=False),
    Kind("identity-key", "identity-keys", namespaced=False),
    Kind("task", "tasks"),
    Kind("spare", "spares"),
    Kind("inventory", "inventories", namespaced=False, short=("inv",)),
    Kind("limit-defaults", "limit-defaults", short=("ld",)),
    Kind("decision", "decisions", short=("dec",)),
    Kind("event", "events", short=("ev",)),
    Kind("audit", "audits", namespaced=False),
    Kind("token", "tokens", namespaced=False),
    Kind("session", "sessions"),
    Kind("server", "servers", namespaced=False),
    Kind("lease", "leases", namespaced=False),
    Kind("hearing", "hearings", namespaced=False),
    Kind("tally", "tallies", namespaced=False),
    Kind("cluster", "clusters", namespaced=False),
    Kind("authority", "authorities", namespaced=False),
    Kind("acme-account", "acme-accounts", namespaced=False),
)
_BY_WORD = {word: kind for kind in KINDS for word in (kind.name, kind.plural, *kind.short)}


def find_kind(word: str) -> Kind:
    found = _BY_WORD.get(word.lower())
    if found is None:
        from mandor.lib.words import did_you_mean

        raise click.UsageError(f"unknown kind {word!r}; {did_you_mean(word, [kind.plural for kind in KINDS])}")
    return found


def split_names(words: tuple[str, ...]) -> tuple[Kind, list[str]]:
    """Split `node n1 n2`, `node/n1` or `nodes` into the kind and the names."""
    first, *rest = words
    if "/" not in first:
        return find_kind(first), rest
    kind, names = None, []
    for word in words:
        one, _, name = word.partition("/")
        if not name or (kind is not None and find_kind(one) is not kind):
            raise click.UsageError(f"{word!r} is not KIND/NAME of the same kind as the others")
        kind = find_kind(one)
        names.append(name)
    assert kind is not None
    return kind, names
