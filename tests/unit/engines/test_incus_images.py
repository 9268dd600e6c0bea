"""Image sources of the Incus engine: aliases, servers, and images that a release has pinned."""

from __future__ import annotations

import pytest

from mandor.engines.incus.options import IncusOptions, source_of
from mandor.model.image_reference import pinned

DIGEST = "sha256:" + "ab" * 32
SERVER = IncusOptions(server="https://images.example", protocol="incus")


@pytest.mark.parametrize(
    ("image", "options", "where"),
    [
        ("images:debian/12", IncusOptions(), "https://images.linuxcontainers.org"),
        ("ubuntu:24.04", IncusOptions(), "https://cloud-images.ubuntu.com/releases"),
        ("debian/12", SERVER, "https://images.example"),
        ("any:debian/12", SERVER, "https://images.example"),
    ],
)
def test_a_pinned_image_is_pulled_by_its_fingerprint_from_the_same_server(
    image: str, options: IncusOptions, where: str
) -> None:
    by_name, by_digest = source_of(image, options), source_of(pinned(image, DIGEST), options)
    assert by_name["server"] == by_digest["server"] == where
    assert by_digest["fingerprint"] == DIGEST.removeprefix("sha256:")
    assert "fingerprint" not in by_name
    assert "alias" not in by_digest
