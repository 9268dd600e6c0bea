"""Conformance suites for authors of engines, stores, sinks, provisioners, pipelines and task queues.

Subclass a suite in a test module, define its factory or fixture, and run pytest. Importing a name loads only the module
that defines it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mandor.testing.engine import EngineSuite
    from mandor.testing.log_sink import LogSinkSuite
    from mandor.testing.pipeline import PipelineSuite
    from mandor.testing.provisioner import ProvisionerSuite
    from mandor.testing.sink import SinkSuite
    from mandor.testing.store import StoreSuite
    from mandor.testing.task_queue import TaskQueueSuite

__all__ = [
    "EngineSuite",
    "LogSinkSuite",
    "PipelineSuite",
    "ProvisionerSuite",
    "SinkSuite",
    "StoreSuite",
    "TaskQueueSuite",
]

_MODULES = {
    "EngineSuite": "engine",
    "LogSinkSuite": "log_sink",
    "PipelineSuite": "pipeline",
    "ProvisionerSuite": "provisioner",
    "SinkSuite": "sink",
    "StoreSuite": "store",
    "TaskQueueSuite": "task_queue",
}

pytest.register_assert_rewrite(
    "mandor.testing.engine",
    "mandor.testing.engine_mounts",
    "mandor.testing.engine_network",
    "mandor.testing.engine_trouble",
    "mandor.testing.engine_watch",
    "mandor.testing.provisioner",
    "mandor.testing.store",
)


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
