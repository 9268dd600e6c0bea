"""An agent's journal that lives as long as its simulated machine's disk."""

from collections.abc import Iterator

from mandor.agent.journal import ClusterMembership, Journal, LastContact, SeenRevision
from mandor.agent.order import Entry


class MemoryJournal(Journal):
    """Outlives the agent, as a file would; nothing in it can be damaged."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._membership: ClusterMembership | None = None
        self._contact: LastContact | None = None
        self._seen: SeenRevision | None = None

    def entries(self) -> Iterator[Entry]:
        yield from [self._entries[uid] for uid in sorted(self._entries)]

    def write(self, entry: Entry) -> None:
        self._entries[entry.order.uid] = entry

    def forget(self, uid: str) -> None:
        self._entries.pop(uid, None)

    @property
    def membership(self) -> ClusterMembership | None:
        return self._membership

    def keep_membership(self, membership: ClusterMembership) -> None:
        self._membership = membership

    @property
    def contact(self) -> LastContact | None:
        return self._contact

    def touch(self, contact: LastContact) -> None:
        self._contact = contact

    @property
    def seen(self) -> SeenRevision | None:
        return self._seen

    def keep_seen(self, seen: SeenRevision) -> None:
        self._seen = seen

    @property
    def credential(self) -> str:
        return ""

    def keep_credential(self, credential: str) -> None:
        """Do nothing: no program reads the journal of a simulated agent."""
