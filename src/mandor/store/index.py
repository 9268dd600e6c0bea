"""The state of a store in memory: objects, the latest history, and who watches; no I/O, no waiting."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from mandor.errors import Expired, MandorError
from mandor.lib.steps import Steps
from mandor.lib.trickle import Trickle
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Filter, Place, filtered, filtered_all
from mandor.store.order import Order
from mandor.store.reminders import Reminders

MIB = 1 << 20
HISTORY_MOST = 20_000
HISTORY_BYTES_MOST = 64 * MIB
BUFFER_MOST = 10_000
"""Changes that one watcher leaves unread."""
BUFFER_BYTES_MOST = 32 * MIB
"""Of large objects among them, as the store keeps them."""
UNREAD_MOST = 20_000_000
"""All watchers together. A change is kept once, however many have not read it: this is the room for their places."""
NEAR_EACH_PASS = 8
"""So many of those who look at one node go on in one pass of the event loop."""

Interest = tuple[str | None, str | None]
"""What a subscriber is filed under: kind and node; None: any."""


@dataclass(slots=True)
class Shelf:
    """Where the objects of one kind stand."""

    order: Order = field(default_factory=Order)
    by_node: dict[str, dict[Place, None]] = field(default_factory=dict)

    def put(self, key: Place, before: Object | None, after: Object) -> None:
        node = after.node
        if before is None:
            self.order.add(key)
        else:
            self.order.touch(key)
            left = before.node
            if left == node:
                return
            self._forget_node(key, left)
        if node:
            # A plain tuple of strings is none of the collector's business; a named one is, for as long as it lives.
            self.by_node.setdefault(node, {})[tuple(key)] = None

    def drop(self, key: Place, before: Object) -> None:
        self.order.remove(key)
        self._forget_node(key, before.node)

    def _forget_node(self, key: Place, node: str) -> None:
        if node:
            keys = self.by_node[node]
            del keys[key]
            if not keys:
                del self.by_node[node]


@dataclass(slots=True, eq=False)
class Subscription:
    """A watcher's buffer: bounded, and failed for good when it overflows."""

    kind: str | None
    where: Filter
    buffer_most: int
    seen: int
    """Everything up to this revision was delivered or is in the buffer."""
    buffer: list[Change] = field(default_factory=list)
    buffer_bytes: int = 0
    """Of large objects in it."""
    wake: Callable[[], None] | None = None
    """Called once when something arrives, then forgotten."""
    quiet: Callable[[], bool] | None = None
    """Called when there was nothing for a while, if somebody waits; True: they need not be woken for that."""
    failure: MandorError | None = None

    @property
    def interest(self) -> Interest:
        return (self.kind, self.where.node)

    @property
    def ready(self) -> bool:
        return bool(self.buffer) or self.failure is not None

    def take(self) -> list[Change]:
        """All that has arrived; raises what the subscription failed with."""
        if self.failure is not None:
            raise self.failure
        taken, self.buffer = self.buffer, []
        self.buffer_bytes = 0
        return taken

    def fail(self, error: MandorError) -> None:
        self.failure = error
        self.buffer = []
        self.rouse()

    def remind(self) -> None:
        """There was nothing for a while."""
        if self.quiet is None or self.wake is None or self.ready or not self.quiet():
            self.rouse()

    def rouse(self) -> None:
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()


class Index:
    """Objects by key, kind and node; the last changes; subscribers by what they are interested in."""

    def __init__(
        self,
        *,
        history_most: int = HISTORY_MOST,
        history_bytes_most: int = HISTORY_BYTES_MOST,
        buffer_most: int = BUFFER_MOST,
        buffer_bytes_most: int = BUFFER_BYTES_MOST,
        unread_most: int = UNREAD_MOST,
    ) -> None:
        self.revision = 0
        self.objects: dict[Place, Object] = {}
        """Everything, by key; only this class changes it."""
        self._shelves: dict[str, Shelf] = {}
        self._history: deque[Change] = deque()
        self._history_bytes = 0
        self._history_most, self._history_bytes_most = history_most, history_bytes_most
        self._buffer_most, self._buffer_bytes_most = buffer_most, buffer_bytes_most
        self._unread_most = unread_most
        self._handed = 0
        """Changes handed out since it was last looked how many of them are unread."""
        self._floor = 0
        """What changed up to this revision is known only as the state it led to."""
        self._subscribers: dict[Interest, dict[Subscription, None]] = {}
        self._near = 0
        """So many of them look at one node only."""
        self._nowhere = 0
        """So many of those look at what has no node."""
        self.near = Trickle(NEAR_EACH_PASS)
        """They go on in this order."""
        self.reminders = Reminders()
        """For those who watch and have had nothing for a while."""
        self._bookmark = Change(0, None, None)

    # Reading.

    def get(self, key: Key) -> Object | None:
        return self.objects.get(key)

    @property
    def bookmark(self) -> Change:
        """Nothing up to now was missed: the same for all watchers, and so is its form on the wire."""
        if self._bookmark.revision != self.revision:
            self._bookmark = Change(self.revision, None, None)
        return self._bookmark

    def __len__(self) -> int:
        return len(self.objects)

    def latest(self, kind: str) -> Sequence[Object] | None:
        """What a `snapshot` of a whole kind would give, if it takes no work."""
        shelf = self._shelves.get(kind)
        return shelf.order.latest if shelf is not None else ()

    def refresh(self, kind: str | None, where: Filter = ALL) -> Steps[None]:
        """What a `snapshot` would do, little by little: it is left with what changes meanwhile."""
        for each in (kind,) if kind is not None else self._kinds(where):
            if each in self._shelves and not where.node:
                yield from self._shelves[each].order.refresh(self.objects, *_ends(each, where.namespace))

    def snapshot(self, kind: str | None, where: Filter = ALL) -> Sequence[Object]:
        """The objects in order, narrowed by namespace and by a node that is named; the rest is left to the caller."""
        if kind is None:
            return list(chain.from_iterable([self.snapshot(each, where) for each in self._kinds(where)]))
        shelf = self._shelves.get(kind)
        if shelf is None:
            return ()
        objects = self.objects
        if where.node:
            near = (objects[key] for key in sorted(shelf.by_node.get(where.node, ())))
            return [item for item in near if where.namespace in {None, item.meta.namespace}]
        if where.namespace is not None:
            return shelf.order.between(objects, *_ends(kind, where.namespace))
        return shelf.order.items(objects)

    def _kinds(self, where: Filter) -> list[str]:
        return sorted(self._shelves.keys() & where.kinds if where.kinds else self._shelves)

    def places(self, kind: str) -> Sequence[Place]:
        """Where the objects of a kind stand, in order: the very tuples they are filed under."""
        shelf = self._shelves.get(kind)
        return shelf.order.keys() if shelf is not None else ()

    # Writing.

    def load(self, items: Iterable[Object]) -> None:
        """Fill an index nobody watches yet; `start_at` ends it."""
        for item in items:
            key = tuple(item.key)
            self.objects[key] = item
            self._shelf(item.kind).put(key, None, item)

    def start_at(self, revision: int) -> None:
        """The state is that of this revision, and how it came about is not known."""
        self.revision = max(self.revision, revision)
        self._floor = self.revision
        self._history.clear()
        self._history_bytes = 0

    def advance(self, revision: int) -> None:
        """Nothing changed up to this revision."""
        self.revision = max(self.revision, revision)

    def publish(self, changes: Sequence[Change]) -> None:
        """Apply changes, which come in the order of their revisions, and hand them to the watchers."""
        runs: list[tuple[str, list[Change]]] = []
        """Those of one kind that follow each other."""
        of_run: str | None = None
        objects = self.objects
        for change in changes:
            assert change.revision >= self.revision, f"{change.revision} comes after {self.revision}"
            self.revision = change.revision
            key, before, after = change.place or tuple(change.key), change.before, change.after
            kind = key[0]
            shelf = self._shelves.get(kind) or self._shelf(kind)
            if after is not None:
                objects[key] = after
                shelf.put(key, before, after)
            elif before is not None:
                del objects[key]
                shelf.drop(key, before)
            if kind != of_run:
                of_run = kind
                runs.append((kind, []))
            runs[-1][1].append(change)
        size = sum([change.size for change in changes])
        if self._subscribers:
            for kind, run in runs:
                self._deliver(run, kind)
            if size:
                self._weigh(changes)
            # No more than what was handed out can be unread.
            if self._handed > self._unread_most // 4:
                self._handed = 0
                self._cut_longest()
        history = self._history
        history.extend(changes)
        self._history_bytes += size
        while len(history) > self._history_most or self._history_bytes > self._history_bytes_most:
            oldest = history.popleft()
            self._floor = oldest.revision
            self._history_bytes -= oldest.size

    def _shelf(self, kind: str) -> Shelf:
        shelf = self._shelves.get(kind)
        if shelf is None:
            shelf = self._shelves[kind] = Shelf()
        return shelf

    # Watching.

    def subscribe(self, kind: str | None, since: int, where: Filter = ALL) -> Subscription:
        """Its buffer holds at once what happened after `since`; `Expired` if that is not known any more."""
        if since < self._floor or since > self.revision:
            raise self._expired(since)
        subscription = Subscription(kind, where, self._buffer_most, self.revision)
        missed = []
        for change in reversed(self._history):
            if change.revision <= since:
                break
            if kind is None or change.value.kind == kind:
                seen = filtered(change, where)
                if seen is not None:
                    missed.append(seen)
        subscription.buffer = missed[::-1]
        subscription.buffer_bytes = sum(change.size for change in missed)
        self._subscribers.setdefault(subscription.interest, {})[subscription] = None
        self._near += where.node is not None
        self._nowhere += where.node == ""
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Also when it was dropped already."""
        peers = self._subscribers.get(subscription.interest)
        if peers is not None and subscription in peers:
            del peers[subscription]
            self._near -= subscription.where.node is not None
            self._nowhere -= subscription.where.node == ""
            if not peers:
                del self._subscribers[subscription.interest]

    @property
    def watchers(self) -> int:
        return sum(len(peers) for peers in self._subscribers.values())

    def fail_watchers(self, error: MandorError) -> None:
        """End every watch with this error."""
        for peers in list(self._subscribers.values()):
            for subscription in list(peers):
                self.unsubscribe(subscription)
                subscription.fail(error)

    def _expired(self, since: int) -> Expired:
        if since > self.revision:
            story = f"revision {since} is from another history; this store is at {self.revision}"
        else:
            story = f"what changed after revision {since} is not kept any more, only what changed after {self._floor}"
        return Expired(story, hint="list again and watch from there", since=since, oldest=self._floor)

    def _deliver(self, run: Sequence[Change], kind: str) -> None:
        subscribers = self._subscribers
        if (peers := subscribers.get((kind, None))) is not None:
            self._hand(run, peers)
        if (peers := subscribers.get((None, None))) is not None:
            self._hand(run, peers)
        if self._near:
            for change in run:
                self._deliver_near(change, kind)

    def _deliver_near(self, change: Change, kind: str) -> None:
        """To those who look at one node."""
        subscribers = self._subscribers
        before, after = change.before, change.after
        left = before.node if before is not None else None
        entered = after.node if after is not None else None
        for node in (left, entered) if left != entered else (entered,):
            if node is None or (not node and not self._nowhere):
                continue
            if (peers := subscribers.get((kind, node))) is not None:
                self._hand((change,), peers)
            if (peers := subscribers.get((None, node))) is not None:
                self._hand((change,), peers)

    def _hand(self, run: Sequence[Change], peers: dict[Subscription, None]) -> None:
        overflown = []
        for subscription in tuple(peers):  # A watcher that was dropped may be collected, and leave, at any moment.
            shown, where = run, subscription.where
            if where is not ALL:
                shown = filtered_all(run, where)
                if not shown:
                    continue
            buffer = subscription.buffer
            buffer += shown
            self._handed += len(shown)
            if subscription.wake is not None:
                subscription.rouse()
            if len(buffer) > subscription.buffer_most:
                overflown.append(subscription)
        for subscription in overflown:
            self._cut(subscription, f"the watcher left {subscription.buffer_most} changes unread")

    def _weigh(self, changes: Sequence[Change]) -> None:
        """Those who leave too much of large objects unread go, too; most changes are small, and cost nothing here."""
        for change in changes:
            for subscription in self._interested(change) if change.size else ():
                if filtered(change, subscription.where) is None:
                    continue
                subscription.buffer_bytes += change.size
                if subscription.buffer_bytes > self._buffer_bytes_most:
                    self._cut(subscription, f"the watcher left {subscription.buffer_bytes:,} bytes unread")

    def _interested(self, change: Change) -> list[Subscription]:
        places = {None, *(value.node for value in (change.before, change.after) if value is not None)}
        interests = [(kind, node) for kind in (change.value.kind, None) for node in places]
        return [each for interest in interests for each in tuple(self._subscribers.get(interest, ()))]

    def _cut(self, subscription: Subscription, story: str) -> None:
        self.unsubscribe(subscription)
        subscription.fail(Expired(story, hint="list again and watch from there", revision=self.revision))

    def _cut_longest(self) -> None:
        """Those who are furthest behind go, until half of the room is free again."""
        unread = [(len(each.buffer), each) for peers in self._subscribers.values() for each in peers]
        total = sum(length for length, _ in unread)
        if total <= self._unread_most:
            return
        unread.sort(key=lambda each: each[0])
        while unread and total > self._unread_most // 2:
            length, subscription = unread.pop()
            total -= length
            self._cut(subscription, f"all watchers together left more than {self._unread_most:,} changes unread")


def _ends(kind: str, namespace: str | None) -> tuple[Place, Place]:
    """Before all objects of a kind, or of a namespace of it, and after them."""
    if namespace is None:
        return (kind, "", ""), (f"{kind}\0", "", "")
    return (kind, namespace, ""), (kind, f"{namespace}\0", "")
