"""Gate: which callers may use an operation at all, checked before anything of the request is read.

The check is coarse: a handler still checks namespaces, names and fields, which it knows only from the request. What it
prevents is that a caller without any right to an operation has the server read and parse a body.
"""

from dataclasses import dataclass

from mandor.api.caller import Caller
from mandor.errors import Forbidden
from mandor.model.role import ANY

CHANGES = ("create", "update", "delete", "scale", "rollout", "drain")
"""Verbs that change objects."""


@dataclass(frozen=True, slots=True)
class Gate:
    parts: frozenset[str] = frozenset()
    """Parts of the cluster that may use the operation: node, join, component."""
    verbs: tuple[str, ...] = ()
    """A user needs a rule for one of these; empty: every user may use it."""
    kind: str = ""
    """The kind that the rule is about; empty: any."""
    users: bool = True
    """False: only for parts of the cluster."""

    def check(self, caller: Caller, what: str) -> None:
        """Raise `Forbidden` if the caller may not use the operation, whatever the request contains."""
        if not self._admits(caller):
            needed = f"this takes the verb {' or '.join(f'`{each}`' for each in self.verbs)}"
            needed += f" on the kind `{self.kind}`" if self.kind else ""
            hint = needed if self.verbs else f"this is for {' and '.join(sorted(self.parts)) or 'users'}"
            raise Forbidden(f"{caller.identity} ({caller.role}) may not {what}", hint=hint, role=caller.role)

    def _admits(self, caller: Caller) -> bool:
        if not caller.user:
            return caller.role in self.parts
        if not self.verbs or not self.users:
            return self.users
        return any(
            (ANY in rule.verbs or not {*self.verbs}.isdisjoint(rule.verbs))
            and (not self.kind or ANY in rule.kinds or self.kind in rule.kinds)
            for rule in caller.held
        )


READERS = Gate(parts=frozenset({"node", "component"}))
"""For what reads: every user and node; which objects each of them sees is decided per object."""
WRITERS = Gate(parts=frozenset({"component"}), verbs=CHANGES)
