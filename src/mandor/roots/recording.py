"""Starts the recording of a server, if the settings name a file."""

import logging
from functools import partial
from pathlib import Path

from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.recording import RecordingStart
from mandor.roots.settings import ServerSettings
from mandor.store.base import Store
from mandor.store.recording import Recording, Uses, nothing_used

log = logging.getLogger("mandor.recording")


def start_recording(
    tasks: Background, settings: ServerSettings, store: Store, clock: Clock, uses: Uses = nothing_used
) -> None:
    """`uses`: returns the usage of instances, where this server receives it."""
    if not settings.record:
        return
    began = RecordingStart(
        at=clock.now(),
        suspect_seconds=float(settings.suspect_after),
        lost_seconds=float(settings.lost_after),
        mass_share=settings.mass_fraction,
    )
    path = Path(settings.record).absolute()
    recording = Recording(
        *(store, clock, path, began),
        profiles=partial(_text_of, settings.scheduler_config),
        uses=uses,
        bytes_most=int(settings.record_most),
    )
    log.info("recording the cluster in %s", path)
    tasks.start(recording.run(), "recording")


def _text_of(path: str) -> str:
    """Return the text of the configuration; empty if it cannot be read: the scheduler keeps the last one."""
    try:
        return Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError):
        return ""
