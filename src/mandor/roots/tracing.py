"""Wires tracing: the target and the exporter of a process."""

import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mandor import __version__
from mandor.lib.tasks import Background
from mandor.roots.settings import Settings
from mandor.telemetry.exporter import Exporter
from mandor.telemetry.span import Value
from mandor.telemetry.target import Target, find_target
from mandor.telemetry.tracer import Tracer

log = logging.getLogger(__name__)


def target_of(settings: Settings) -> Target | None:
    """Return the target; None: tracing is off."""
    return find_target(settings.otlp_traces, settings.trace_fraction, os.environ)


@asynccontextmanager
async def tracing(target: Target | None, service: str, instance: str) -> AsyncIterator[Tracer | None]:
    """`service`: kind of program; `instance`: which process of that kind."""
    if target is None:
        yield None
        return
    tracer = Tracer(ratio=target.ratio)
    resource: dict[str, Value] = {
        "service.name": service,
        "service.namespace": "mandor",
        "service.version": __version__,
        "service.instance.id": instance,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }
    log.info("sending %g%% of the traces to %s", target.ratio * 100, target.url)
    async with Background() as tasks:
        tasks.start(Exporter(tracer, target, resource).run(), "traces")
        yield tracer
