"""Checks that recorded events have a documented reason, in every test that records one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from mandor.model.meta import Object
from mandor.store.recorder import Recorder
from scripts.reference_lists import reasons


@cache
def _documented() -> frozenset[str]:
    return frozenset(reason for tables in reasons().values() for table in tables.values() for reason in table)


def check_reason(about: Object, reason: str) -> None:
    """Raise an error if the reference does not list the reason."""
    assert reason in _documented(), f"{about.kind}: the reason {reason} is not in docs/reference/reasons.toml"


@contextmanager
def reasons_checked() -> Iterator[list[str]]:
    """Collect the undocumented reasons of the events that the product records; tests may invent some."""
    missing: list[str] = []
    note = Recorder.note

    def checked(self: Recorder, about: Object, reason: str, *args: Any, **options: Any) -> None:
        if str(sys._getframe(1).f_globals.get("__name__")).startswith("mandor."):
            try:
                check_reason(about, reason)
            except AssertionError as error:
                missing.append(str(error))
        note(self, about, reason, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "note", checked)
        yield missing
