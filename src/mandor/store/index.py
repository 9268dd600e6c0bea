"""The state of a store in memory: objects, recent history and subscriptions; no I/O, no waiting."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from mandor.errors import Expired, MandorError
from mandor.lib.paced_queue import PacedQueue
from mandor.lib.steps import Steps
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Filter, KeyTuple, filtered, filtered_all
from mandor.store.idle_timers import IdleTimers
from mandor.store.sorted_objects import SortedObjects

MIB = 1 << 20
HISTORY_MOST = 20_000  # changes
HISTORY_BYTES_MOST = 64 * MIB
BUFFER_MOST = 10_000
"""Unread changes per watcher."""
BUFFER_BYTES_MOST = 32 * MIB
"""Unread bytes of large objects per watcher, as stored."""
UNREAD_MOST = 20_000_000
"""Unread changes of all watchers together; each counts as one reference, because watchers share the changes."""
WAKEUPS_PER_PASS = 8
"""Watchers of a single node that are woken per pass of the event loop."""

Interest = tuple[str | None, str | None]
"""Kind and node by which subscriptions are grouped; None: any."""


@dataclass(slots=True)
class KindIndex:
    """Keys of one kind: sorted, and by node."""

    order: SortedObjects = field(default_factory=SortedObjects)
    by_node: dict[str, dict[KeyTuple, None]] = field(default_factory=dict)

    def put(self, key: KeyTuple, before: Object | None, after: Object) -> None:
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
            # The garbage collector does not track plain tuples of strings, but it tracks named tuples.
            self.by_node.setdefault(node, {})[tuple(key)] = None

    def drop(self, key: KeyTuple, before: Object) -> None:
        self.order.remove(key)
        self._forget_node(key, before.node)

    def _forget_node(self, key: KeyTuple, node: str) -> None:
        if node:
            keys = self.by_node[node]
            del keys[key]
            if not keys:
                del self.by_node[node]


@dataclass(slots=True, eq=False)
class Subscription:
    """Buffer of a watcher: bounded; the subscription fails permanently when it overflows."""

    kind: str | None
    where: Filter
    buffer_most: int
    seen: int
    """Revision up to which all changes were delivered or are in the buffer."""
    buffer: list[Change] = field(default_factory=list)
    buffer_bytes: int = 0
    """Bytes of large objects in the buffer."""
    wake: Callable[[], None] | None = None
    """Called once when a change arrives, then reset to None."""
    on_idle: Callable[[], bool] | None = None
    """Called when nothing arrived for a while and the watcher waits; returns True if it need not be woken."""
    failure: MandorError | None = None

    @property
    def interest(self) -> Interest:
        return (self.kind, self.where.node)

    @property
    def ready(self) -> bool:
        return bool(self.buffer) or self.failure is not None

    def take(self) -> list[Change]:
        """Return and remove all buffered changes; raise the error of a failed subscription."""
        if self.failure is not None:
            raise self.failure
        taken, self.buffer = self.buffer, []
        self.buffer_bytes = 0
        return taken

    def fail(self, error: MandorError) -> None:
        self.failure = error
        self.buffer = []
        self.wake_up()

    def fire(self) -> None:
        """Deliver a bookmark, because nothing arrived for a while."""
        if self.on_idle is None or self.wake is None or self.ready or not self.on_idle():
            self.wake_up()

    def wake_up(self) -> None:
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()


class Index:
    """Objects by key, kind and node; recent changes; subscriptions by kind and node."""

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
        self.objects: dict[KeyTuple, Object] = {}
        """All objects by key; only this class modifies it."""
        self._by_kind: dict[str, KindIndex] = {}
        self._history: deque[Change] = deque()
        self._history_bytes = 0
        self._history_most, self._history_bytes_most = history_most, history_bytes_most
        self._buffer_most, self._buffer_bytes_most = buffer_most, buffer_bytes_most
        self._unread_most = unread_most
        self._delivered = 0
        """Changes delivered since the unread changes were last counted."""
        self._floor = 0
        """Revision of the oldest change that is no longer kept."""
        self._subscribers: dict[Interest, dict[Subscription, None]] = {}
        self._node_watchers = 0
        """Number of subscriptions to a single node."""
        self._no_node_watchers = 0
        """Number of subscriptions to objects without a node."""
        self.node_wakeups = PacedQueue(WAKEUPS_PER_PASS)
        """Wakes the watchers of single nodes a few at a time."""
        self.idle_timers = IdleTimers()
        """Timers that send bookmarks to idle watchers."""
        self._bookmark = Change(0, None, None)

    # Reading.

    def get(self, key: Key) -> Object | None:
        return self.objects.get(key)

    @property
    def bookmark(self) -> Change:
        """Bookmark of the current revision, shared by all watchers together with its encoded form."""
        if self._bookmark.revision != self.revision:
            self._bookmark = Change(self.revision, None, None)
        return self._bookmark

    def __len__(self) -> int:
        return len(self.objects)

    def latest(self, kind: str) -> Sequence[Object] | None:
        """Return the result of `snapshot` for a whole kind if it is cached, else None."""
        found = self._by_kind.get(kind)
        return found.order.latest if found is not None else ()

    def refresh(self, kind: str | None, where: Filter = ALL) -> Steps[None]:
        """Do the work of `snapshot` in small steps; only later changes are left for it."""
        for each in (kind,) if kind is not None else self._kinds(where):
            if each in self._by_kind and not where.node:
                yield from self._by_kind[each].order.refresh(self.objects, *_ends(each, where.namespace))

    def snapshot(self, kind: str | None, where: Filter = ALL) -> Sequence[Object]:
        """Return the objects in order, filtered by namespace and node name; the caller applies the other filters."""
        if kind is None:
            return list(chain.from_iterable([self.snapshot(each, where) for each in self._kinds(where)]))
        found = self._by_kind.get(kind)
        if found is None:
            return ()
        objects = self.objects
        if where.node:
            node_wakeups = (objects[key] for key in sorted(found.by_node.get(where.node, ())))
            return [item for item in node_wakeups if where.namespace in {None, item.meta.namespace}]
        if where.namespace is not None:
            return found.order.between(objects, *_ends(kind, where.namespace))
        return found.order.items(objects)

    def _kinds(self, where: Filter) -> list[str]:
        return sorted(self._by_kind.keys() & where.kinds if where.kinds else self._by_kind)

    def key_tuples(self, kind: str) -> Sequence[KeyTuple]:
        """Return the keys of a kind in order, as the tuples that the index itself uses."""
        found = self._by_kind.get(kind)
        return found.order.keys() if found is not None else ()

    # Writing.

    def load(self, items: Iterable[Object]) -> None:
        """Add objects to an index without watchers; `start_at` completes the loading."""
        for item in items:
            key = tuple(item.key)
            self.objects[key] = item
            self._kind_index(item.kind).put(key, None, item)

    def start_at(self, revision: int) -> None:
        """Set the revision of a loaded state, whose history is unknown."""
        self.revision = max(self.revision, revision)
        self._floor = self.revision
        self._history.clear()
        self._history_bytes = 0

    def advance(self, revision: int) -> None:
        """Raise the revision without a change."""
        self.revision = max(self.revision, revision)

    def publish(self, changes: Sequence[Change]) -> None:
        """Apply changes, in the order of their revisions, and deliver them to the watchers."""
        runs: list[tuple[str, list[Change]]] = []
        """Consecutive changes of the same kind."""
        of_run: str | None = None
        objects = self.objects
        for change in changes:
            assert change.revision >= self.revision, f"revision {change.revision} published after {self.revision}"
            self.revision = change.revision
            key, before, after = change.key_tuple or tuple(change.key), change.before, change.after
            kind = key[0]
            found = self._by_kind.get(kind) or self._kind_index(kind)
            if after is not None:
                objects[key] = after
                found.put(key, before, after)
            elif before is not None:
                del objects[key]
                found.drop(key, before)
            if kind != of_run:
                of_run = kind
                runs.append((kind, []))
            runs[-1][1].append(change)
        size = sum([change.size for change in changes])
        if self._subscribers:
            for kind, run in runs:
                self._deliver(run, kind)
            if size:
                self._count_bytes(changes)
            # Unread changes are a subset of the delivered ones.
            if self._delivered > self._unread_most // 4:
                self._delivered = 0
                self._expire_slowest()
        history = self._history
        history.extend(changes)
        self._history_bytes += size
        while len(history) > self._history_most or self._history_bytes > self._history_bytes_most:
            oldest = history.popleft()
            self._floor = oldest.revision
            self._history_bytes -= oldest.size

    def _kind_index(self, kind: str) -> KindIndex:
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = KindIndex()
        return found

    # Watching.

    def subscribe(self, kind: str | None, since: int, where: Filter = ALL) -> Subscription:
        """Start a subscription with the changes after `since`; raise `Expired` if they are no longer kept."""
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
        self._node_watchers += where.node is not None
        self._no_node_watchers += where.node == ""
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; does nothing if it has ended already."""
        peers = self._subscribers.get(subscription.interest)
        if peers is not None and subscription in peers:
            del peers[subscription]
            self._node_watchers -= subscription.where.node is not None
            self._no_node_watchers -= subscription.where.node == ""
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
            message = f"revision {since} is not of this store, which is at revision {self.revision}"
        else:
            message = f"changes after revision {since} are no longer kept; the oldest kept ones are after {self._floor}"
        return Expired(message, hint="list again and watch from there", since=since, oldest=self._floor)

    def _deliver(self, run: Sequence[Change], kind: str) -> None:
        subscribers = self._subscribers
        if (peers := subscribers.get((kind, None))) is not None:
            self._deliver_to(run, peers)
        if (peers := subscribers.get((None, None))) is not None:
            self._deliver_to(run, peers)
        if self._node_watchers:
            for change in run:
                self._deliver_to_node(change, kind)

    def _deliver_to_node(self, change: Change, kind: str) -> None:
        """Deliver a change to the watchers of its node."""
        subscribers = self._subscribers
        before, after = change.before, change.after
        left = before.node if before is not None else None
        entered = after.node if after is not None else None
        for node in (left, entered) if left != entered else (entered,):
            if node is None or (not node and not self._no_node_watchers):
                continue
            if (peers := subscribers.get((kind, node))) is not None:
                self._deliver_to((change,), peers)
            if (peers := subscribers.get((None, node))) is not None:
                self._deliver_to((change,), peers)

    def _deliver_to(self, run: Sequence[Change], peers: dict[Subscription, None]) -> None:
        overflown = []
        for subscription in tuple(peers):  # An abandoned watcher may be collected, and removed, at any moment.
            shown, where = run, subscription.where
            if where is not ALL:
                shown = filtered_all(run, where)
                if not shown:
                    continue
            buffer = subscription.buffer
            buffer += shown
            self._delivered += len(shown)
            if subscription.wake is not None:
                subscription.wake_up()
            if len(buffer) > subscription.buffer_most:
                overflown.append(subscription)
        for subscription in overflown:
            self._expire(subscription, f"the watcher left {subscription.buffer_most} changes unread")

    def _count_bytes(self, changes: Sequence[Change]) -> None:
        """Count the bytes of large changes and expire watchers with too many; small changes cost nothing here."""
        for change in changes:
            for subscription in self._interested(change) if change.size else ():
                if filtered(change, subscription.where) is None:
                    continue
                subscription.buffer_bytes += change.size
                if subscription.buffer_bytes > self._buffer_bytes_most:
                    self._expire(subscription, f"the watcher left {subscription.buffer_bytes:,} bytes unread")

    def _interested(self, change: Change) -> list[Subscription]:
        places = {None, *(value.node for value in (change.before, change.after) if value is not None)}
        interests = [(kind, node) for kind in (change.value.kind, None) for node in places]
        return [each for interest in interests for each in tuple(self._subscribers.get(interest, ()))]

    def _expire(self, subscription: Subscription, message: str) -> None:
        self.unsubscribe(subscription)
        subscription.fail(Expired(message, hint="list again and watch from there", revision=self.revision))

    def _expire_slowest(self) -> None:
        """Expire the watchers with the most unread changes until half of the limit is free."""
        unread = [(len(each.buffer), each) for peers in self._subscribers.values() for each in peers]
        total = sum(length for length, _ in unread)
        if total <= self._unread_most:
            return
        unread.sort(key=lambda each: each[0])
        while unread and total > self._unread_most // 2:
            length, subscription = unread.pop()
            total -= length
            self._expire(subscription, f"all watchers together left more than {self._unread_most:,} changes unread")


def _ends(kind: str, namespace: str | None) -> tuple[KeyTuple, KeyTuple]:
    """Return the bounds of all keys of a kind, or of one namespace of it."""
    if namespace is None:
        return (kind, "", ""), (f"{kind}\0", "", "")
    return (kind, namespace, ""), (kind, f"{namespace}\0", "")
