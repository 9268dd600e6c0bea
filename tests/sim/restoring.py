"""The controllers that move instances to better places, beside the others of a world."""

from mandor.controllers.rebalance import RebalanceController
from mandor.controllers.restore import RestoreController
from mandor.controllers.runner import run
from mandor.lib.tasks import Background
from mandor.placement.profiles import default_profile
from mandor.store.recorder import Recorder
from tests.scenarios.world import World


def start_restore(world: World, tasks: Background, kind: type[RestoreController] = RestoreController) -> None:
    _start(world, tasks, kind)


def start_rebalance(world: World, tasks: Background) -> None:
    _start(world, tasks, RebalanceController)


def _start(world: World, tasks: Background, kind: type[RestoreController] | type[RebalanceController]) -> None:
    recorder = Recorder(world.store, kind.name, world.clock)
    profiles = {"default": default_profile()}
    controller = kind(world.store, world.clock, recorder, lambda board: profiles)
    tasks.start(run(controller, world.store, world.clock), kind.name)
    tasks.start(recorder.run(), f"the recorder of {kind.name}")
