"""Converts the options of a task under `options.ENGINE` to the struct of that engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from mandor.errors import Invalid
from mandor.lib.words import did_you_mean
from mandor.model.codec import from_plain

Options = TypeVar("Options")


def read_options(engine: str, options: Mapping[str, Any], kind: type[Options], path: str = "options") -> Options:
    """Return the options as a struct; `path`: their place in the manifest, for errors."""
    try:
        return from_plain(dict(options), kind)
    except msgspec.ValidationError as error:
        words, where, hint = _explain(str(error), kind)
        raise Invalid(f"options.{engine}{where}: {words}", hint=hint, path=f"{path}.{engine}{where}") from None


def _explain(words: str, kind: type) -> tuple[str, str, str | None]:
    """Return the error, its place in the options, and a suggestion."""
    said, _, place = words.partition(" - at `$")
    where = place.rstrip("`")
    unknown = re.fullmatch(r"Object contains unknown field `(.+)`", said)
    if unknown is None:
        return said, where, None
    known = [field.encode_name for field in msgspec.structs.fields(kind)] if not where else []
    return "there is no such option", f"{where}.{unknown[1]}", did_you_mean(unknown[1], known) if known else None
