"""Fixtures of tests/api, for attacks over HTTP."""

from tests.api.conftest import api, dev, start_api

__all__ = ["api", "dev", "start_api"]
