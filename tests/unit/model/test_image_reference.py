"""The form of image references."""

from __future__ import annotations

import pytest

from mandor.model.image_reference import check_image

DIGEST = "sha256:" + "0123456789abcdef" * 4
DOCKER = ("docker",)
INCUS = ("incus",)


@pytest.mark.parametrize(
    ("image", "engines"),
    [
        ("nginx", DOCKER),
        ("nginx:1.27", DOCKER),
        ("registry.example/acme/shop:1.4", DOCKER),
        ("localhost:5000/shop", DOCKER),
        ("[::1]:5000/shop:1", DOCKER),
        (f"registry.example/shop@{DIGEST}", DOCKER),
        (f"registry.example/shop:1.4@{DIGEST}", DOCKER),
        ("k8s.gcr.io/serve_hostname", DOCKER),
        ("a__b/c--d:V1_x", DOCKER),
        ("images:debian/13", INCUS),
        ("ubuntu:24.04/cloud", INCUS),
        (f"images:debian/13@{DIGEST}", INCUS),
        ("MyAlias", INCUS),
        ("images:debian/13", ()),
        ("MyAlias", ()),
    ],
)
def test_a_name_that_an_engine_can_read_is_accepted(image: str, engines: tuple[str, ...]) -> None:
    check_image(image, engines)


@pytest.mark.parametrize(
    ("image", "engines", "words"),
    [
        ("nginx latest", (), "write"),
        (" nginx", (), "write"),
        ("nginx:", (), "write"),
        ("nginx:a:b/c", (), "write"),
        ("-rm", (), "write"),
        ("/nginx", (), "write"),
        ("a//b", (), "write"),
        ("a/../b", (), "write"),
        ("nginx\n", (), "write"),
        ("${IMAGE}", (), "write"),
        ("shop@sha256:12", (), "write"),
        ("https://registry.example/shop", (), "leave out `https://`"),
        ("a" * 513, (), "at most 512"),
        ("images:debian/13", DOCKER, "write"),
        ("Nginx:1", DOCKER, "no capital letters"),
        ("registry.example/Acme/shop", ("docker", "podman"), "acme/shop"),
    ],
)
def test_a_name_that_no_engine_can_read_is_refused(image: str, engines: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_image(image, engines)
