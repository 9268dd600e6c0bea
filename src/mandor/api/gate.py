"""Gate: the callers that may use an operation, checked before the query and the body are read.

The check is coarse: the handler still checks namespaces, names and fields. It prevents that a caller without any right
to an operation makes the server read and parse a body.
"""

from dataclasses import dataclass

from mandor.api.caller import Caller
from mandor.errors import Forbidden
from mandor.model.role import ANY, BY_NAME_ONLY

CHANGES = ("create", "update", "delete", "scale", "rollout", "drain")
"""Verbs that change objects."""


@dataclass(frozen=True, slots=True)
class Gate:
    parts: frozenset[str] = frozenset()
    """Roles of the cluster's own parts that may use the operation: node, join, component."""
    verbs: tuple[str, ...] = ()
    """Verbs of which a user needs one; empty: every user may use the operation."""
    kind: str = ""
    """The kind that the verb is needed on; empty: any."""
    users: bool = True
    """False: only the cluster's own parts may use the operation."""

    def check(self, caller: Caller, what: str) -> None:
        """Raise `Forbidden` if the caller may not use the operation, whatever the request contains."""
        if not self._admits(caller):
            needed = f"this requires the verb {' or '.join(f'`{each}`' for each in self.verbs)}"
            needed += f" on the kind `{self.kind}`" if self.kind else ""
            hint = needed if self.verbs else f"only {' and '.join(sorted(self.parts)) or 'users'} may do this"
            raise Forbidden(f"{caller.identity} ({caller.role}) may not {what}", hint=hint, role=caller.role)

    def _admits(self, caller: Caller) -> bool:
        if not caller.user:
            return caller.role in self.parts
        if not self.verbs or not self.users:
            return self.users
        return any(
            ((ANY in rule.verbs and not {*self.verbs} <= BY_NAME_ONLY) or not {*self.verbs}.isdisjoint(rule.verbs))
            and (not self.kind or ANY in rule.kinds or self.kind in rule.kinds)
            for rule in caller.held
        )


READERS = Gate(parts=frozenset({"node", "component"}))
"""Gate of operations that read: every user, node and component; rights are checked per object."""
WRITERS = Gate(parts=frozenset({"component"}), verbs=CHANGES)
