"""Pure translation of frontends into objects of an nftables table, and of differences into one transaction.

The name of a chain contains a digest of its rules, so that names alone tell whether the kernel has the desired state.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from ipaddress import ip_address
from math import gcd, log

from mandor.network.base import Endpoint, Frontend, FrontendKey

SLOTS_MOST = 64  # interleaved elements of one round-robin map; larger sums of weights are drawn at random
HASH_SLOTS = 128  # elements of one hash map
AFFINITY_CLIENTS_MOST = 65_536  # remembered clients of one endpoint
MAPS = ("services4", "services6", "sent4", "sent6", "received4", "received6")

Element = tuple[str, str]
"""Name of a map and key of an element."""


@dataclass
class Objects:
    """Objects of a table by name; elements with their value."""

    chains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Rules by chain; chains that others refer to come first."""
    sets: dict[str, str] = field(default_factory=dict)
    """Definitions of the sets of clients with affinity."""
    counters: set[str] = field(default_factory=set)
    elements: dict[Element, str] = field(default_factory=dict)

    def add(self, other: "Objects") -> None:
        """Include the objects of another frontend."""
        self.chains |= other.chains
        self.sets |= other.sets
        self.counters |= other.counters
        self.elements |= other.elements


def skeleton(table: str, ranges: Sequence[str]) -> str:
    """Return the statements that make the table with its hooks; `ranges`: virtual addresses, refused where unused."""
    body = "".join(_declare(number) for number in "46")
    lookups = "".join(f"{_word(n)} daddr . meta l4proto . th dport vmap @services{n}\n" for n in "46")
    own = "".join(f"ct status dnat {_word(n)} saddr . {_word(n)} daddr @self{n} masquerade\n" for n in "46")
    refused = "".join(
        f"ip{'6' if ':' in each else ''} daddr {each} {verdict}\n"
        for each in ranges
        for verdict in ("meta l4proto tcp reject with tcp reset", "reject with icmpx port-unreachable")
    )
    count = "".join(
        f"meta l4proto {protocol} ct status dnat ct direction {direction} counter name "
        f"ct original {_word(n)} daddr . meta l4proto . ct original proto-dst map @{name}{n}\n"
        for n in "46"
        for protocol in ("tcp", "udp")
        for direction, name in (("original", "sent"), ("reply", "received"))
    )
    body += f"""\
set links {{
type ifname . ifname
}}
counter failures {{
}}
chain refuse {{
counter name failures
meta l4proto tcp reject with tcp reset
reject with icmpx port-unreachable
}}
chain arriving {{
type nat hook prerouting priority -105; policy accept;
{lookups}}}
chain local {{
type nat hook output priority -105; policy accept;
{lookups}}}
chain leaving {{
type nat hook postrouting priority 95; policy accept;
ct status dnat iifname . oifname @links masquerade
{own}}}
chain count_arriving {{
type filter hook prerouting priority -90; policy accept;
iifname "lo" return
{count}}}
chain count_local {{
type filter hook output priority -90; policy accept;
{count}}}
chain unused_forward {{
type filter hook forward priority -10; policy accept;
{refused}}}
chain unused_local {{
type filter hook output priority -10; policy accept;
{refused}}}
"""
    return f"table inet {table} {{\ncounter {skeleton_mark(ranges, body)} {{\n}}\n{body}}}\n"


def skeleton_mark(ranges: Sequence[str], body: str = "") -> str:
    """Return the name of the counter that marks a table of this version with these ranges."""
    if not body:
        return skeleton("x", ranges).split("counter ", 1)[1].split()[0]
    return f"skeleton_{_digest(body)}"


def objects(frontend: Frontend) -> Objects:
    """Return the objects that balance one frontend."""
    identity = frontend_id(frontend.key)
    found = Objects(counters={f"{kind}_{identity}" for kind in ("new", "sent", "received")})
    for number in "46":
        addresses = [each for each in frontend.addresses if (":" in each) == (number == "6")]
        if not addresses:
            continue
        endpoints = [
            each for each in frontend.endpoints if (":" in each.address) == (number == "6") and each.weight > 0
        ]
        target = "refuse" if not endpoints else _add_chains(found, frontend, identity, number, endpoints)
        for address in addresses:
            key = f"{ip_address(address)} . {frontend.protocol} . {frontend.port}"
            found.elements[f"services{number}", key] = f"goto {target}"
            found.elements[f"sent{number}", key] = f'"sent_{identity}"'
            found.elements[f"received{number}", key] = f'"received_{identity}"'
    return found


def frontend_id(key: FrontendKey) -> str:
    """Return the part of names that stands for one frontend."""
    return _digest("\0".join(key))


def _add_chains(found: Objects, frontend: Frontend, identity: str, number: str, endpoints: list[Endpoint]) -> str:
    rules = [f"counter name new_{identity}"]
    match = f"meta l4proto {frontend.protocol}"
    source = f"{_word(number)} saddr"
    if frontend.affinity_seconds > 0:
        seconds = max(1, round(frontend.affinity_seconds))
        targets = []
        for each in endpoints:
            where = _digest(f"{each.address} {each.port} {frontend.protocol} {seconds}")
            clients, chain = f"clients{number}_{identity}_{where}", f"endpoint{number}_{identity}_{where}"
            found.sets[clients] = (
                f"type ipv{number}_addr; size {AFFINITY_CLIENTS_MOST}; flags dynamic,timeout; timeout {seconds}s;"
            )
            found.chains[chain] = (
                f"update @{clients} {{ {source} }}",
                f"{match} dnat {_word(number)} to {_place(each)}",
            )
            rules.append(f"{source} @{clients} goto {chain}")
            targets.append(f"goto {chain}")
        choice = _choice(frontend, number, endpoints, targets)
        rules.append(choice.replace(" map ", " vmap "))
    else:
        places = [f"{ip_address(each.address)} . {each.port}" for each in endpoints]
        rules.append(f"{match} dnat {_word(number)} to {_choice(frontend, number, endpoints, places)}")
    name = f"service{number}_{identity}_{_digest(repr(rules))}"
    found.chains[name] = tuple(rules)
    return name


def _choice(frontend: Frontend, number: str, endpoints: list[Endpoint], targets: list[str]) -> str:
    if frontend.balance == "hash":
        slots = hash_slots(endpoints)
        start = f"jhash {_word(number)} saddr mod {HASH_SLOTS} seed 0x6d616e64"
        return f"{start} map {{ {_ranges(slots, targets)} }}"
    slots, ordered = round_robin_slots([each.weight for each in endpoints])
    kind = "inc" if ordered else "random"
    return f"numgen {kind} mod {len(slots)} map {{ {_ranges(slots, targets)} }}"


def round_robin_slots(weights: Sequence[int]) -> tuple[list[int], bool]:
    """Return the endpoint of each slot, and whether slots are taken in order (else at random)."""
    divisor = reduce(gcd, weights)
    shares = [each // divisor for each in weights]
    total = sum(shares)
    if total > SLOTS_MOST:
        if total > 10_000:
            shares = [max(1, each * 10_000 // total) for each in shares]
        return [index for index, share in enumerate(shares) for _ in range(share)], False
    current, slots = [0] * len(shares), []
    for _ in range(total):  # smooth weighted round-robin: shares are spread evenly over the slots
        current = [value + share for value, share in zip(current, shares, strict=True)]
        best = max(range(len(shares)), key=lambda index: (current[index], -index))
        current[best] -= total
        slots.append(best)
    return slots, True


def hash_slots(endpoints: Sequence[Endpoint]) -> list[int]:
    """Return the endpoint of each slot; a change of one endpoint changes only the slots that it had or gets."""
    return [max(range(len(endpoints)), key=lambda index: _score(slot, endpoints[index])) for slot in range(HASH_SLOTS)]


def _score(slot: int, endpoint: Endpoint) -> float:
    """Weighted rendezvous hash."""
    text = f"{slot} {endpoint.address} {endpoint.port}".encode()
    value = (int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big") + 1) / (2**56 + 2)
    return -log(value) / -endpoint.weight


def _ranges(slots: Sequence[int], targets: Sequence[str]) -> str:
    parts, first = [], 0
    for index in range(1, len(slots) + 1):
        if index == len(slots) or slots[index] != slots[first]:
            span = f"{first}" if index - first == 1 else f"{first}-{index - 1}"
            parts.append(f"{span} : {targets[slots[first]]}")
            first = index
    return ", ".join(parts)


def difference(table: str, before: Objects, after: Objects) -> str:
    """Return the statements that change the first state into the second; empty: no difference."""
    return "\n".join(_statements(f"inet {table}", before, after))


def _statements(table: str, before: Objects, after: Objects) -> Iterator[str]:
    for name in sorted(after.counters - before.counters):
        yield f"add counter {table} {name}"
    for name in after.sets.keys() - before.sets.keys():
        yield f"add set {table} {name} {{ {after.sets[name]} }}"
    for name, rules in after.chains.items():
        if name not in before.chains:
            yield f"add chain {table} {name}"
            yield from (f"add rule {table} {name} {rule}" for rule in rules)
    gone = [each for each, value in before.elements.items() if after.elements.get(each) != value]
    new = [(each, value) for each, value in after.elements.items() if before.elements.get(each) != value]
    yield from _change(table, "delete", ((name, key) for name, key in gone))
    yield from _change(table, "add", ((name, f"{key} : {value}") for (name, key), value in new))
    old = [name for name in before.chains if name not in after.chains]
    yield from (f"flush chain {table} {name}" for name in old)
    yield from (f"delete chain {table} {name}" for name in old)
    yield from (f"delete set {table} {name}" for name in before.sets.keys() - after.sets.keys())
    yield from (f"delete counter {table} {name}" for name in sorted(before.counters - after.counters))


def _change(table: str, verb: str, elements: Iterable[tuple[str, str]]) -> Iterator[str]:
    by_set: dict[str, list[str]] = {}
    for name, text in elements:
        by_set.setdefault(name, []).append(text)
    for name, texts in by_set.items():
        for start in range(0, len(texts), 1000):
            yield f"{verb} element {table} {name} {{ {', '.join(texts[start : start + 1000])} }}"


def change_set(table: str, name: str, before: set[str], after: set[str]) -> str:
    """Return the statements that change the elements of a plain set."""
    changes = (("delete", before - after), ("add", after - before))
    return "\n".join(
        line for verb, texts in changes for line in _change(f"inet {table}", verb, ((name, t) for t in sorted(texts)))
    )


def _declare(number: str) -> str:
    key = f"type ipv{number}_addr . inet_proto . inet_service"
    maps = (("services", "verdict"), ("sent", "counter"), ("received", "counter"))
    declared = "".join(f"map {name}{number} {{\n{key} : {value}\n}}\n" for name, value in maps)
    return f"{declared}set self{number} {{\ntype ipv{number}_addr . ipv{number}_addr\n}}\n"


def _place(endpoint: Endpoint) -> str:
    address = ip_address(endpoint.address)
    return f"[{address}]:{endpoint.port}" if address.version == 6 else f"{address}:{endpoint.port}"


def _word(number: str) -> str:
    return "ip6" if number == "6" else "ip"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
