"""Creates plugins from a class, its arguments and the handle."""

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec import Struct

from mandor.errors import Invalid
from mandor.placement.framework.handle import Handle
from mandor.placement.framework.points import Plugin


@dataclass(frozen=True, slots=True)
class Registered:
    """A plugin class that can be enabled, with its origin."""

    cls: type[Plugin]
    version: str = ""
    """Version of the file or package; empty: built in."""
    origin: str = ""

    @property
    def name(self) -> str:
        return self.cls.name


@lru_cache(maxsize=1024)
def _parameters(cls: type[Plugin]) -> frozenset[str]:
    return frozenset(inspect.signature(cls).parameters)


def make_plugin(registered: Registered, handle: Handle, args: Struct | None = None) -> Plugin:
    """Create a plugin. The constructor receives `args` and `handle` if it names them; absent arguments are defaults."""
    cls = registered.cls
    try:
        given: dict[str, Any] = {}
        wanted = _parameters(cls)
        if "args" in wanted and cls.Args is not None:
            given["args"] = cls.Args() if args is None else args
        if "handle" in wanted:
            given["handle"] = handle
        return cls(**given)
    except Exception as error:  # third-party code can raise anything
        raise Invalid(
            f"the plugin {cls.name} cannot be created: {type(error).__name__}: {error}",
            hint=f"it comes from {registered.origin}" if registered.origin else None,
        ) from error
