"""The restore controller, beside the others of a world."""

from mandor.controllers.restore import RestoreController
from mandor.controllers.runner import run
from mandor.lib.tasks import Background
from mandor.placement.profiles import default_profile
from mandor.store.recorder import Recorder
from tests.scenarios.world import World


def start_restore(world: World, tasks: Background) -> None:
    recorder = Recorder(world.store, "restore", world.clock)
    profiles = {"default": default_profile()}
    controller = RestoreController(world.store, world.clock, recorder, lambda board: profiles)
    tasks.start(run(controller, world.store, world.clock), "restore")
    tasks.start(recorder.run(), "recorder")
