"""Images from files: what keeps an engine from taking one, in words."""

from mandor.engines.containers.trouble import passing
from mandor.errors import Invalid, Unavailable

_FULL = ("no space left on device", "disk quota exceeded")


def cannot_load(engine: str, message: str) -> Invalid | Unavailable:
    if any(mark in message.lower() for mark in _FULL):
        return Unavailable(f"the disk of {engine} is full: {message}", hint="make room on the node, then load it again")
    if passing(message):
        return Unavailable(f"{engine} cannot take the image now: {message}", hint="load it again")
    return Invalid(f"{engine} does not take this image: {message}")
