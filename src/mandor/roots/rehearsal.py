"""What the API needs to say how the scheduler would decide: its configuration, its watchdog, the controllers' plans."""

import logging
from collections.abc import Callable, Mapping, Sequence, Set

from mandor.api.scheduling import Inquire, Scheduling
from mandor.controllers.slot import World
from mandor.controllers.workload_plan import Seen, plan
from mandor.errors import Invalid
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.workload import Release, Workload
from mandor.placement.board import Board
from mandor.placement.framework.handle import Detached
from mandor.placement.framework.profile import Profile
from mandor.placement.workshop import Workshop
from mandor.scheduler.reload import ConfigSource
from mandor.scheduler.watchdog import Watchdog
from mandor.store.base import Put

log = logging.getLogger(__name__)


def make_scheduling(source: ConfigSource, inquire: Inquire) -> Scheduling:
    return Scheduling(read=source.read, controls=controls, guard=Watchdog, inquire=inquire)


class ProfilesOf:
    """The scheduler's profiles, made anew when its configuration changes; a mistake in it changes nothing."""

    def __init__(self, source: ConfigSource) -> None:
        self._source = source
        self._seen: object = None
        self._board: Board | None = None
        self._made: dict[str, Profile] = {}

    def __call__(self, board: Board) -> Mapping[str, Profile]:
        seen = self._source.seen()
        if seen != self._seen or board is not self._board:
            try:
                config, registry = self._source.read()
                self._made = Workshop(Detached(board.table.snapshot)).profiles(config, registry)
            except Invalid as error:
                log.debug("the scheduler configuration cannot be used: %s", error)
            self._seen, self._board = seen, board
        return self._made


def controls(
    workload: Workload | None,
    releases: Sequence[Release],
    instances: Sequence[Instance],
    *,
    now: float,
    ready_nodes: Set[str],
    taken: Callable[[str], bool],
) -> Sequence[Object | Key]:
    draft = plan(Seen(workload, releases, instances), World(now=now, ready_nodes=ready_nodes, taken=taken))
    return [each.value if isinstance(each, Put) else each.key for each in draft.writes]
