"""An agent's journal that lives as long as its simulated machine's disk."""

from collections.abc import Iterator

from mandor.agent.journal import Belonging, Contact, Journal
from mandor.agent.order import Entry


class MemoryJournal(Journal):
    """Outlives the agent, as a file would; nothing in it can be damaged."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._belonging: Belonging | None = None
        self._contact: Contact | None = None

    def entries(self) -> Iterator[Entry]:
        yield from [self._entries[uid] for uid in sorted(self._entries)]

    def write(self, entry: Entry) -> None:
        self._entries[entry.order.uid] = entry

    def forget(self, uid: str) -> None:
        self._entries.pop(uid, None)

    @property
    def belonging(self) -> Belonging | None:
        return self._belonging

    def belong(self, belonging: Belonging) -> None:
        self._belonging = belonging

    @property
    def contact(self) -> Contact | None:
        return self._contact

    def touch(self, contact: Contact) -> None:
        self._contact = contact

    @property
    def credential(self) -> str:
        return ""

    def keep_credential(self, credential: str) -> None:
        """There is nobody to show it to."""
