"""Engines by name: those of this package and those that others plugged in (entry point group `mandor.engines`)."""

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
    """The engine of that name; `directory` is a folder of its own for what it must remember."""
    factory = _load(name)
    accepted = inspect.signature(factory).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in accepted.values())
    for setting in settings:
        if setting not in accepted and not open_ended:
            raise Invalid(f"the engine {name} has no setting `{setting}`", hint=did_you_mean(setting, accepted))
    typed = _typed(name, factory, settings)
    engine = factory(directory=directory, **typed)
    if not isinstance(engine, Engine):
        raise Invalid(f"what is registered as the engine {name} is not one: {type(engine).__name__}")
    return engine


def check_options(engine: str, options: Mapping[str, Any], path: str) -> None:
    """`Invalid` for what the engine would refuse at the start; engines that are not installed here judge later."""
    if engine not in known_engines():
        return
    try:
        kind = getattr(_load(engine), "options", None)
    except Invalid:
        return  # An extra of the package is missing here.
    if kind is not None:
        read_options(engine, options, kind, path)


def _typed(name: str, factory: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings that are texts, as what the engine takes them for."""
    made = factory.__init__ if inspect.isclass(factory) else factory
    hints = get_type_hints(made) if settings else {}
    found = dict(settings)
    for setting, value in settings.items():
        if isinstance(value, str) and setting in hints:
            try:
                found[setting] = msgspec.convert(value, hints[setting], strict=False, dec_hook=_from_text)
            except (msgspec.ValidationError, NotImplementedError, TypeError) as error:
                raise Invalid(f"the setting {name}.{setting} cannot be {value!r}: {error}") from error
    return found


def _from_text(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"it cannot be set by a text ({kind})")


def _load(name: str) -> Any:
    try:
        return registry.load(GROUP, name)
    except LookupError:
        raise Invalid(f"there is no engine called {name!r}", hint=did_you_mean(name, known_engines())) from None
    except ImportError as error:
        raise Invalid(f"the engine {name} cannot be loaded: {error}", hint="is its package complete?") from error
