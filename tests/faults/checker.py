"""The rules that a history keeps, whatever was killed, paused or cut off: pure; a broken one is a sentence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from operator import attrgetter

from mandor.model.phase import Phase, may_move
from tests.faults.history import Call, History, Life, Stored

Rule = Callable[[History], Iterator[str]]


def violations(history: History) -> list[str]:
    return [broken for rule in RULES for broken in rule(history)]


# Writes and reads.


def changes_are_seen_in_order(history: History) -> Iterator[str]:
    """Every change once, none left out: each object's next version follows the one it had."""
    known: dict[tuple[str, str], int] = {}
    last = 0
    for each in history.stored:
        if each.revision < last:
            yield f"revision {each.revision} was seen after {last}"
        last = each.revision
        key = (each.kind, each.name)
        if each.before != known.get(key, 0):
            yield f"{each.kind} {each.name}: {each.revision} follows {each.before}, and {known.get(key, 0)} was seen"
        known[key] = 0 if each.gone else each.revision
    left = {f"{kind}/{name}": version for (kind, name), version in known.items() if version}
    if left != dict(history.final.versions):
        differing = sorted(dict(left.items() ^ history.final.versions.items()))
        yield f"the store has others than the changes lead to: {', '.join(differing[:5])}"


def acknowledged_writes_are_stored(history: History) -> Iterator[str]:
    written = {(each.kind, each.name, each.revision): each for each in history.stored if not each.gone}
    deleted = {(each.kind, each.name, each.before) for each in history.stored if each.gone}
    for call in history.calls:
        if call.outcome != "acknowledged":
            continue
        key = (_kind(call), call.name, call.revision)
        if call.verb == "delete":
            if key not in deleted:
                yield f"{_shown(call)} is lost: version {call.revision} was never deleted"
        elif (found := written.get(key)) is None:
            yield f"{_shown(call)} is lost: nothing was stored at revision {call.revision}"
        elif call.count is not None and found.facts.get("replicas") != call.count:
            yield f"{_shown(call)} is lost: {found.facts.get('replicas')} replicas were stored"
        elif call.mark and found.facts.get("mark") != call.mark:
            yield f"{_shown(call)} is lost: revision {call.revision} is of {found.facts.get('mark')}"


def refused_writes_are_not_stored(history: History) -> Iterator[str]:
    marks = {each.facts.get("mark"): each.revision for each in history.stored}
    for call in history.calls:
        if call.outcome == "refused" and call.mark and call.mark in marks:
            yield f"{_shown(call)} was refused ({call.why}), and stored at {marks[call.mark]}"


def revisions_keep_to_the_clock(history: History) -> Iterator[str]:
    """A call that was answered before another one began has the smaller revision, on any server."""
    calls = [each for each in history.calls if each.outcome == "acknowledged" and each.verb != "delete"]
    seen = [(each.ended, each.revision, _shown(each)) for each in calls]
    seen += [(each.ended, each.revision, f"a read on server {each.server}") for each in history.reads]
    seen.sort()
    newest, number = (0, ""), 0
    for call in sorted(calls, key=attrgetter("begun")):
        while number < len(seen) and seen[number][0] < call.begun:
            newest = max(newest, seen[number][1:])
            number += 1
        if call.revision < newest[0] or (call.revision == newest[0] and not newest[1].startswith("a read")):
            yield f"{_shown(call)} has revision {call.revision}, after {newest[1]} had {newest[0]}"


def no_server_goes_back(history: History) -> Iterator[str]:
    """A client reads its earlier reads and writes from a server, also after a restart of the server."""
    known: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for read in history.reads:
        known[read.server].append((read.ended, read.revision))
    for call in history.calls:
        if call.outcome == "acknowledged" and call.verb != "delete":
            known[call.server].append((call.ended, call.revision))
    for read in history.reads:
        newest = max((revision for ended, revision in known[read.server] if ended < read.begun), default=0)
        if read.revision < newest:
            yield f"server {read.server} went back from revision {newest} to {read.revision}"


# Instances.


def an_order_has_one_node(history: History) -> Iterator[str]:
    """An instance is bound once and runs on no other node."""
    nodes: dict[str, str] = {}
    for each in _instances(history):
        uid, node = each.facts["uid"], each.facts["node"]
        if node and nodes.setdefault(uid, node) != node:
            yield f"{each.name} ({uid}) was bound to {nodes[uid]}, then to {node}"
    for life in history.lives:
        if nodes.get(life.uid) != life.node:
            yield f"{life.name} ({life.uid}) was started by {life.node}, and is bound to {nodes.get(life.uid)}"


def a_unit_begins_once(history: History) -> Iterator[str]:
    begun = Counter((life.uid, life.task, life.attempt) for life in history.lives)
    yield from (f"the unit {unit} was started {count} times" for unit, count in begun.items() if count > 1)
    for lives in _by(history.lives, lambda life: (life.uid, life.task)).values():
        for one, other in _overlapping(lives):
            yield f"attempts {one.attempt} and {other.attempt} of {one.name}/{one.task} ({one.uid}) run at once"


def a_name_runs_once(history: History) -> Iterator[str]:
    """Another one of its name begins when it has ended, or when it was given up, where that is allowed."""
    lost = {each.facts["uid"] for each in _instances(history) if each.facts["phase"] == Phase.LOST}
    owners = {each.facts["uid"]: each.facts["workload"] for each in _instances(history)}
    for lives in _by(history.lives, lambda life: (life.name, life.task)).values():
        for one, other in _overlapping(lives):
            if one.uid == other.uid:
                continue
            if owners.get(one.uid) in history.single:
                yield f"{one.name} runs twice, on {one.node} and {other.node}, and has `stop_after`"
            elif one.uid not in lost:
                yield f"{one.name} runs twice, on {one.node} and {other.node}, and was never given up"


def phases_move_as_allowed(history: History) -> Iterator[str]:
    phases: dict[str, Phase] = {}
    for each in _instances(history):
        uid, phase = each.facts["uid"], Phase(each.facts["phase"])
        if not may_move(phases.get(uid, phase), phase):
            yield f"{each.name} ({uid}) went from {phases[uid]} to {phase}"
        phases[uid] = phase


# Who leads.


def a_deposed_leader_writes_nothing(history: History) -> Iterator[str]:
    """Terms are counted without a gap, and in each only its holder renews the lease, or gives it back."""
    terms: dict[str, tuple[str, int]] = {}
    leases = (each for each in history.stored if each.kind == "lease" and not each.gone)
    # A term and the first lease in it are one commit.
    for each in sorted(leases, key=lambda each: (each.revision, not each.name.startswith("term-"))):
        what, _, election = each.name.partition("-")
        holder, number = each.facts["holder"], each.facts["renewals"]
        known, counted = terms.get(election, ("", 0))
        if what == "term":
            if number != counted + 1:
                yield f"{election}: term {number} of {holder} follows term {counted}"
            terms[election] = (holder, number)
        elif what == "leader" and holder not in {"", known}:
            yield f"{election}: {holder} wrote at {each.revision}, in term {counted} of {known}"


# Afterwards.


def servers_agree(history: History) -> Iterator[str]:
    wanted: dict[str, int] = {}
    for each in history.stored:
        if each.kind == "workload":
            wanted.pop(each.name, None)
            if not each.gone:
                wanted[each.name] = each.facts["replicas"]
    for server, listing in enumerate(history.final.listings):
        if dict(listing) != wanted:
            yield f"server {server} lists {dict(listing)}, and {wanted} is stored"


def counts_converged(history: History) -> Iterator[str]:
    wanted = next(iter(history.final.listings), {})
    running = Counter(each["workload"] for each in history.final.instances if each["phase"] == Phase.RUNNING)
    for name in sorted({*wanted, *running}):
        if running[name] != wanted.get(name, 0):
            yield f"{running[name]} of {name} run, and {wanted.get(name, 0)} are wanted"


def machines_run_what_is_ordered(history: History) -> Iterator[str]:
    """And nothing else."""
    ordered = {(each["uid"], each["node"]) for each in history.final.instances if each["phase"] == Phase.RUNNING}
    live = Counter((life.uid, life.node) for life in history.lives if life.ended is None)
    for uid, node in sorted(ordered - live.keys()):
        yield f"{uid} does not run on {node}"
    for uid, node in sorted(live.keys() - ordered):
        yield f"{uid} runs on {node}, and nobody ordered it"


RULES: tuple[Rule, ...] = (
    changes_are_seen_in_order,
    acknowledged_writes_are_stored,
    refused_writes_are_not_stored,
    revisions_keep_to_the_clock,
    no_server_goes_back,
    an_order_has_one_node,
    a_unit_begins_once,
    a_name_runs_once,
    phases_move_as_allowed,
    a_deposed_leader_writes_nothing,
    servers_agree,
    counts_converged,
    machines_run_what_is_ordered,
)


def _kind(call: Call) -> str:
    return "node" if call.verb in {"cordon", "uncordon", "drain"} else "workload"


def _shown(call: Call) -> str:
    count = "" if call.count is None else f" to {call.count}"
    return f"{call.verb} {call.name}{count} ({call.mark or f'revision {call.revision}'}) on server {call.server}"


def _instances(history: History) -> Iterator[Stored]:
    return (each for each in history.stored if each.kind == "instance" and not each.gone)


def _by(lives: Iterable[Life], key: Callable[[Life], tuple[str, str]]) -> dict[tuple[str, str], list[Life]]:
    found = defaultdict(list)
    for life in lives:
        found[key(life)].append(life)
    return found


def _overlapping(lives: list[Life]) -> Iterator[tuple[Life, Life]]:
    """The earlier one and the later one."""
    for one, other in combinations(sorted(lives, key=attrgetter("begun")), 2):
        if one.overlaps(other):
            yield one, other
