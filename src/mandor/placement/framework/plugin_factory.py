"""Makes plugins: from a class, its arguments and the handle."""

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
    """A plugin that can be enabled, and where it comes from."""

    cls: type[Plugin]
    version: str = ""
    """Empty: it comes with the package."""
    origin: str = ""

    @property
    def name(self) -> str:
        return self.cls.name


@lru_cache(maxsize=1024)
def _parameters(cls: type[Plugin]) -> frozenset[str]:
    return frozenset(inspect.signature(cls).parameters)


def make_plugin(registered: Registered, handle: Handle, args: Struct | None = None) -> Plugin:
    """The constructor gets `args` and `handle` if it names them; without arguments it gets its defaults."""
    cls = registered.cls
    try:
        given: dict[str, Any] = {}
        wanted = _parameters(cls)
        if "args" in wanted and cls.Args is not None:
            given["args"] = cls.Args() if args is None else args
        if "handle" in wanted:
            given["handle"] = handle
        return cls(**given)
    except Exception as error:  # anybody's code
        raise Invalid(
            f"the plugin {cls.name} cannot be made: {type(error).__name__}: {error}",
            hint=f"it comes from {registered.origin}" if registered.origin else None,
        ) from error
