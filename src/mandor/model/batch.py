"""Batch: completions, parallelism, retries and deadline of work that runs to its end."""

from typing import Annotated

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds
from mandor.model.features import needs
from mandor.model.group import Group
from mandor.model.meta import InvalidField
from mandor.model.secret_change import restart_secrets

INDEXED_MOST = 10_000
"""Maximum number of indices that run at a time. Completed indices are stored as ranges; every running index may split a
range.
"""
TOGETHER_MOST = 100_000
"""Maximum number of instances that run at a time."""


class Batch(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    completions: Annotated[int, Bounds(ge=1, le=100_000)] = 1
    """Number of instances that must succeed. Defaults to 1."""
    parallelism: Annotated[int, Bounds(ge=1, le=TOGETHER_MOST)] | None = None
    """Maximum number of instances that run at a time. Defaults to 1, and with `per_node` to all matching nodes."""
    retries: Annotated[int, Bounds(ge=0, le=1000)] = 3
    """Number of times a failed instance is retried before the batch fails. Defaults to 3."""
    deadline: Seconds | None = None
    """Time after which an unfinished batch fails. Defaults to no deadline."""
    indexed: bool = False
    """Whether each completion is a separate piece of work with its own index in `MANDOR_INDEX`. A completed index is
    recorded and never runs again, even if its instance is deleted.
    """
    per_node: Annotated[bool, needs("batch-per-node")] = False
    """Whether every matching node runs the work once. Nodes that join later run it, too."""

    def __post_init__(self) -> None:
        if self.per_node and self.completions != 1:
            raise InvalidField(
                "a batch with `per_node` completes once on every matching node",
                "completions",
                hint="remove `completions`; `placement` selects the nodes",
            )
        if self.per_node and self.indexed:
            raise InvalidField("a batch with `per_node` has no indices", "indexed", hint="remove `indexed`")
        if self.indexed and self.together > INDEXED_MOST:
            raise InvalidField(
                f"{self.together} is too many indices at a time",
                "parallelism",
                hint=f"at most {INDEXED_MOST}, or remove `indexed`",
            )

    @property
    def together(self) -> int:
        """Maximum number of instances that run at a time."""
        if self.parallelism is not None:
            return self.parallelism
        return TOGETHER_MOST if self.per_node else 1


def check_batch(name: str, group: Group) -> None:
    """Reject settings that would run a group of a batch again after it ended."""
    if group.restart.policy == "always":
        raise ValueError(f"group {name}: a batch runs to its end, so `restart.policy` must be `on-failure` or `never`")
    if restart_secrets([group]):
        raise InvalidField(
            f"group {name}: a batch cannot restart when a secret changes, because its work would start over",
            "groups",
            name,
            "tasks",
            hint="remove `on_change`; the next run reads the new value",
        )
