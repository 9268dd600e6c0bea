"""Ownership of node pools: claimed in the store, so that each node belongs to exactly one scheduler.

A claim is the lease `pool-<name>` (`pools-all` for all), whose holder is the election of the schedulers that own it.
Servers with the same pools take part in the same election; one of them leads.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from mandor.errors import Conflict, Invalid
from mandor.lib.clock import Clock
from mandor.model.meta import Key, Meta
from mandor.model.record import Lease, LeaseSpec
from mandor.store.base import Check, Delete, Put, Store, Write

Pools = frozenset[str] | None
"""Names of pools; None: all pools."""

ROLE = "scheduler"
ONE, EVERY = "pool-", "pools-all"
LOOK_SECONDS = 0.5
"""Seconds between two reads of another leader's lease."""
TRIES_MOST = 20
"""Tries of a claim before it fails."""


def election_of(pools: Pools) -> str:
    """Return the name of the election of a set of pools."""
    if pools is None:
        return ROLE
    return f"{ROLE}-{hashlib.sha256(','.join(sorted(pools)).encode()).hexdigest()[:12]}"


def shown(pools: Pools) -> str:
    return "all pools" if pools is None else f"the pools {', '.join(sorted(pools))}"


def _owned(known: Iterable[Lease], election: str) -> Pools:
    names = {each.meta.name for each in known if each.spec.holder == election}
    return None if EVERY in names else frozenset(each.removeprefix(ONE) for each in names if each.startswith(ONE))


async def claim(store: Store, clock: Clock, pools: Pools) -> None:
    """Claim pools for this scheduler; raise `Invalid` if a live scheduler owns one of them."""
    for _ in range(TRIES_MOST):
        known = {each.meta.name: each for each in (await store.list(Lease.kind)).items if isinstance(each, Lease)}
        rivals = [each for each in known.values() if _conflicts(each, pools)]
        for rival in {each.spec.holder for each in rivals}:
            address = await _leader(store, clock, rival)
            if address is not None:
                raise Invalid(
                    f"{shown(pools)} cannot be claimed by this scheduler: the scheduler of "
                    f"{shown(_owned(known.values(), rival))} at {address or 'another server'} owns some of them",
                    hint="give each pool to one scheduler (`--pools`), and stop the other scheduler first",
                )
        writes = _writes(known, rivals, pools)
        if not writes:
            return
        try:
            await store.commit(*writes)
        except Conflict:
            continue  # Another scheduler claims at the same time: read again.
        return
    raise Invalid(
        f"{shown(pools)} could not be claimed: other schedulers changed the claims during each of {TRIES_MOST} tries"
    )


def _conflicts(lease: Lease, pools: Pools) -> bool:
    name = lease.meta.name
    if not (name == EVERY or name.startswith(ONE)) or lease.spec.holder == election_of(pools):
        return False
    return pools is None or name == EVERY or name.removeprefix(ONE) in pools


def _writes(known: dict[str, Lease], rivals: Iterable[Lease], pools: Pools) -> list[Write]:
    mine = election_of(pools)
    wanted = {EVERY} if pools is None else {ONE + name for name in pools}
    writes: list[Write] = [
        Put(_claim(known.get(name), name, mine)) for name in sorted(wanted) if _new(known, name, mine)
    ]
    writes += [Delete(each.key, each.meta.version) for each in rivals if each.meta.name not in wanted]
    for holder in sorted({each.spec.holder for each in rivals}):
        # Fence the former leader: it may not have noticed that its term is over.
        term = known.get(f"term-{holder}")
        if term is not None:
            spec = msgspec.structs.replace(term.spec, renewals=term.spec.renewals + 1)
            writes.append(Put(term.changed(spec=spec)))
    if writes and pools is not None and EVERY not in known:
        writes.append(Check(Key(Lease.kind, "", EVERY), 0))
    return writes


def _new(known: dict[str, Lease], name: str, holder: str) -> bool:
    return name not in known or known[name].spec.holder != holder


def _claim(known: Lease | None, name: str, holder: str) -> Lease:
    return Lease(meta=known.meta if known is not None else Meta(name=name), spec=LeaseSpec(holder, 0.0))


async def _leader(store: Store, clock: Clock, election: str) -> str | None:
    """Return the address of an election's leader; None: its lease has not been renewed for its whole duration."""
    key = Key(Lease.kind, "", f"leader-{election}")
    seen, since = 0, clock.monotonic()
    while True:
        lease = await store.get(key)
        if not isinstance(lease, Lease) or not lease.spec.holder:
            return None
        if seen and lease.meta.version != seen:
            return lease.spec.address  # Renewed, so the leader is alive.
        seen = lease.meta.version
        if clock.monotonic() - since >= lease.spec.seconds:
            return None
        await clock.sleep(LOOK_SECONDS)
