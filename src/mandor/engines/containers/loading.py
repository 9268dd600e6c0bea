"""Errors of loading an image from a file."""

from mandor.engines.containers.error_messages import passing
from mandor.errors import Invalid, Unavailable

_FULL = ("no space left on device", "disk quota exceeded")


def cannot_load(engine: str, message: str) -> Invalid | Unavailable:
    if any(mark in message.lower() for mark in _FULL):
        return Unavailable(
            f"the disk of {engine} is full: {message}", hint="free disk space on the node, then load the image again"
        )
    if passing(message):
        return Unavailable(f"{engine} cannot load the image now: {message}", hint="load it again")
    return Invalid(f"{engine} refused the image: {message}")
