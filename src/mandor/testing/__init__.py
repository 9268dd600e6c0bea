"""Conformance suites for authors of stores, engines and plugins."""

import pytest

pytest.register_assert_rewrite(
    "mandor.testing.engine",
    "mandor.testing.engine_mounts",
    "mandor.testing.engine_network",
    "mandor.testing.engine_trouble",
    "mandor.testing.engine_watch",
    "mandor.testing.provisioner",
    "mandor.testing.store",
)
