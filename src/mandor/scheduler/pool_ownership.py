"""Which pools a scheduler owns: claimed in the store, so that each node belongs to exactly one scheduler.

A claim is the lease `pool-<name>` (`pools-all` for all), whose holder is the election of the schedulers that own it.
Servers with the same pools stand in the same election; one of them leads.
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
"""None: all."""

ROLE = "scheduler"
ONE, EVERY = "pool-", "pools-all"
LOOK_SECONDS = 0.5
TRIES_MOST = 20


def election_of(pools: Pools) -> str:
    """One for each set of pools."""
    if pools is None:
        return ROLE
    return f"{ROLE}-{hashlib.sha256(','.join(sorted(pools)).encode()).hexdigest()[:12]}"


def shown(pools: Pools) -> str:
    return "all pools" if pools is None else f"the pools {', '.join(sorted(pools))}"


def _owned(known: Iterable[Lease], election: str) -> Pools:
    names = {each.meta.name for each in known if each.spec.holder == election}
    return None if EVERY in names else frozenset(each.removeprefix(ONE) for each in names if each.startswith(ONE))


async def claim(store: Store, clock: Clock, pools: Pools) -> None:
    """Returns when they are ours. `Invalid`: another scheduler, that lives, owns one of them."""
    for _ in range(TRIES_MOST):
        known = {each.meta.name: each for each in (await store.list(Lease.kind)).items if isinstance(each, Lease)}
        rivals = [each for each in known.values() if _stands_against(each, pools)]
        for rival in {each.spec.holder for each in rivals}:
            address = await _leader(store, clock, rival)
            if address is not None:
                raise Invalid(
                    f"{shown(pools)} cannot be scheduled here: the scheduler of {shown(_owned(known.values(), rival))} "
                    f"at {address or 'another server'} owns some of them",
                    hint="give each pool to one scheduler (`--pools`), and stop the other one first",
                )
        writes = _writes(known, rivals, pools)
        if not writes:
            return
        try:
            await store.commit(*writes)
        except Conflict:
            continue  # Somebody else claims at the same time; look again.
        return
    raise Invalid(f"{shown(pools)} could not be claimed: others claim them again and again")


def _stands_against(lease: Lease, pools: Pools) -> bool:
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
        # Whoever led there and does not know yet that it is over can write nothing more.
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
    """The address of whoever leads there; None: nobody does any more, by our own clock."""
    key = Key(Lease.kind, "", f"leader-{election}")
    seen, since = 0, clock.monotonic()
    while True:
        lease = await store.get(key)
        if not isinstance(lease, Lease) or not lease.spec.holder:
            return None
        if seen and lease.meta.version != seen:
            return lease.spec.address  # It renews its lease: it lives.
        seen = lease.meta.version
        if clock.monotonic() - since >= lease.spec.seconds:
            return None
        await clock.sleep(LOOK_SECONDS)
