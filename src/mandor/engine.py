"""The public API for authors of engines.

An engine runs the tasks of instances on a node: through a container runtime, a hypervisor or anything else. Subclass
`Engine`, set `name`, define its five methods, and publish the class as an entry point of the group `mandor.engines`.
`mandor.testing.EngineSuite` tests it. Other modules of mandor may change in any release.
"""

from mandor.engines.base import Engine, Execution, Launch, LogLine, Mount, Observed, Unit, UnitPhase, Usage
from mandor.engines.options import read_options
from mandor.engines.stamped import read_logs
from mandor.errors import EngineDown, Invalid, NotFound, Unsupported
from mandor.model.image import ImageFile
from mandor.model.node import Capabilities
from mandor.model.task import File, Security

__all__ = [
    "Capabilities",
    "Engine",
    "EngineDown",
    "Execution",
    "File",
    "ImageFile",
    "Invalid",
    "Launch",
    "LogLine",
    "Mount",
    "NotFound",
    "Observed",
    "Security",
    "Unit",
    "UnitPhase",
    "Unsupported",
    "Usage",
    "read_logs",
    "read_options",
]
