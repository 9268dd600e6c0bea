"""Engines by name: built-in ones, and those of other packages (entry point group `mandor.engines`)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from mandor.engines.base import Engine
from mandor.engines.options import read_options
from mandor.errors import Invalid
from mandor.lib import registry
from mandor.lib.words import did_you_mean

GROUP = "mandor.engines"


def known_engines() -> list[str]:
    return registry.names(GROUP)


def make_engine(name: str, *, directory: Path, **settings: Any) -> Engine:
    """Make the engine of that name; `directory`: the folder for its state."""
    factory = _load(name)
    accepted = inspect.signature(factory).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in accepted.values())
    for setting in settings:
        if setting not in accepted and not open_ended:
            raise Invalid(f"the engine {name} has no setting `{setting}`", hint=did_you_mean(setting, accepted))
    typed = _typed(name, factory, settings)
    engine = factory(directory=directory, **typed)
    if not isinstance(engine, Engine):
        raise Invalid(f"the entry point of engine {name} makes a {type(engine).__name__}, which is not an Engine")
    return engine


def check_options(engine: str, options: Mapping[str, Any], path: str) -> None:
    """Raise `Invalid` for options that the engine would refuse; options of engines that are not installed here are not
    checked."""
    if engine not in known_engines():
        return
    try:
        kind = getattr(_load(engine), "options", None)
    except Invalid:
        return  # An extra of the package is not installed.
    if kind is not None:
        read_options(engine, options, kind, path)


def _typed(name: str, factory: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Convert settings from text to the types of the engine's parameters."""
    made = factory.__init__ if inspect.isclass(factory) else factory
    hints = get_type_hints(made) if settings else {}
    found = dict(settings)
    for setting, value in settings.items():
        if isinstance(value, str) and setting in hints:
            try:
                found[setting] = msgspec.convert(value, hints[setting], strict=False, dec_hook=_from_text)
            except (msgspec.ValidationError, NotImplementedError, TypeError) as error:
                raise Invalid(f"the setting {name}.{setting} has an invalid value {value!r}: {error}") from error
    return found


def _from_text(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"a setting of type {kind} cannot be given as text")


def _load(name: str) -> Any:
    try:
        return registry.load(GROUP, name)
    except LookupError:
        raise Invalid(f"there is no engine {name!r}", hint=did_you_mean(name, known_engines())) from None
    except ImportError as error:
        raise Invalid(f"the engine {name} cannot be loaded: {error}", hint="is its package complete?") from error
