"""Batch: how often work with an end is done, how many at a time, and what becomes of failures."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds
from mandor.model.meta import Misfit
from mandor.model.secret_change import restart_secrets

if TYPE_CHECKING:
    from mandor.model.workload import Group

INDEXED_MOST = 10_000
"""So many indices may be under way at a time: those that are done are told as ranges, with a gap for each."""


class Batch(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    completions: Annotated[int, Bounds(ge=1, le=100_000)] = 1
    """So many instances must succeed."""
    parallelism: Annotated[int, Bounds(ge=1, le=100_000)] = 1
    """So many run at a time."""
    retries: Annotated[int, Bounds(ge=0, le=1000)] = 3
    """An instance that failed is tried again so often; then the batch has failed."""
    deadline: Seconds | None = None
    """A batch that is not done by then has failed."""
    indexed: bool = False
    """Each completion is a piece of work of its own, by the index in `MANDOR_INDEX`: what has succeeded is kept by
    index, and is not run again, whatever becomes of its instance."""

    def __post_init__(self) -> None:
        if self.indexed and self.parallelism > INDEXED_MOST:
            raise Misfit(
                f"{self.parallelism} indices at a time; at most {INDEXED_MOST} are kept apart",
                "parallelism",
                hint=f"at most {INDEXED_MOST}, or leave `indexed` out",
            )


def check_batch(name: str, group: "Group") -> None:
    """Refuse what would run a group of a batch again after its end."""
    if group.restart.policy == "always":
        raise ValueError(f"group {name}: a batch ends, so its restart policy is `on-failure` or `never`")
    if restart_secrets([group]):
        raise Misfit(
            f"group {name}: a batch is not restarted when a secret changes: it would begin anew",
            "groups",
            name,
            "tasks",
            hint="leave `on_change` out: the next run reads the new value",
        )
