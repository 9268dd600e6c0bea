"""Watch, snapshot and commit: the operations of the store over HTTP."""

from typing import Annotated, Any

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import read_scope
from mandor.api.gate import CHANGES, Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.labels import select_for
from mandor.api.operation import NDJSON, Call, Operation, Stream
from mandor.api.routes.queries import Labels
from mandor.api.selector import parse_selector
from mandor.api.watch import WatchStream, send_snapshot
from mandor.api.wire import Commit, CommitShape, Committed
from mandor.api.writing import Author, commit_as
from mandor.errors import Invalid
from mandor.lib.words import did_you_mean
from mandor.model.codec import KINDS
from mandor.store.base import ALL, Filter

_PLURALS = {kind.plural: name for name, kind in KINDS.items()}


class SnapshotQuery(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Annotated[
        str, Note(description="One kind, or several separated by commas; absent: all kinds.", max_length=255)
    ] = ""
    namespace: Annotated[str, Note(max_length=63)] | None = None
    node: Annotated[str, Note(description="Only objects of this node.", max_length=253)] | None = None
    labels: Labels = ""

    @property
    def of_kind(self) -> str | None:
        """The only kind of the query; None: several, or all."""
        kinds = self._kinds()
        return next(iter(kinds)) if len(kinds) == 1 else None

    @property
    def where(self) -> Filter:
        kinds = self._kinds()
        several = kinds if len(kinds) > 1 else frozenset[str]()
        if self.namespace is None and self.node is None and not several:
            return ALL
        return Filter(self.namespace, self.node, kinds=several)

    def _kinds(self) -> frozenset[str]:
        kinds = frozenset(_PLURALS.get(each, each) for each in self.kind.split(",")) if self.kind else frozenset[str]()
        for kind in kinds - KINDS.keys():
            raise Invalid(f"there is no kind {kind!r}", hint=did_you_mean(kind, KINDS), parameter="kind")
        return kinds


class WatchQuery(SnapshotQuery, frozen=True, forbid_unknown_fields=True):
    since: Annotated[int, Note(description="Only changes after this revision; absent: from now on.", ge=0)] | None = (
        None
    )
    supplies: Annotated[
        bool,
        Note(
            description="Send the release, workload and namespace of an instance before it, as lines `{supply: …}`; "
            "each is sent again only after a change."
        ),
    ] = False


async def watch(call: Call[WatchQuery, None]) -> Stream:
    query, store = call.query, call.parts.store
    kind = query.of_kind
    seen = await read_scope(store, call.caller, kind, query.where, live=True, wide=True)
    selector = parse_selector(query.labels)
    select = await select_for(store, kind, query.where, selector)
    since = query.since
    if since is None:
        since = (await store.list("cluster")).revision
    stream = WatchStream(call.parts, call.caller, kind, seen, select, since, query.supplies)
    return Stream((await stream.open()).run)


async def snapshot(call: Call[SnapshotQuery, None]) -> Stream:
    """Stream all objects of one revision."""
    query, store, parts, caller = call.query, call.parts.store, call.parts, call.caller
    kind = query.of_kind
    seen = await read_scope(store, caller, kind, query.where, wide=True)
    parts.streams.check(caller.identity)
    select = await select_for(store, kind, query.where, parse_selector(query.labels))
    listing = await store.list(kind, seen.where)
    return Stream(lambda receive, send: send_snapshot(parts, listing, seen, select, caller, receive, send))


async def commit(call: Call[None, Commit]) -> Committed:
    writes = [each.write() for each in call.body.writes]
    return Committed(await commit_as(call.parts, Author(call.caller, call.address), writes))


class ChangeLine(Struct, frozen=True):
    """One line of a watch. Both null: a bookmark, all changes up to its revision were sent."""

    revision: int
    before: Any = None
    after: Any = None


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/watch",
        name="watch",
        summary="Stream changes, one line each; a bookmark (no before and no after) is sent every ten seconds",
        tag="store",
        handler=watch,
        query=WatchQuery,
        result=ChangeLine,
        gives=NDJSON,
        refuses=("expired", "too_many"),
    ),
    Operation(
        method="GET",
        path="/v1/snapshot",
        name="snapshot",
        summary="Stream all objects at one revision: {revision}, the objects, {end: count}",
        tag="store",
        handler=snapshot,
        query=SnapshotQuery,
        result=Any,
        gives=NDJSON,
        refuses=("too_many",),
        lane=Lane.BULK,
        cost=4,
    ),
    Operation(
        method="POST",
        path="/v1/commit",
        name="commit",
        summary="Put, delete and check several objects in one transaction",
        tag="store",
        gate=Gate(frozenset({"node", "component"}), CHANGES),
        handler=commit,
        body=Commit,
        shape=CommitShape,
        result=Committed,
        refuses=("conflict",),
        reports=True,
    ),
]
