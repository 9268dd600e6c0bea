"""Requests that create Incus instances: virtual machines, containers and image sources."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.engines.base import Launch
from mandor.engines.incus.body import make_body
from mandor.engines.incus.options import IncusOptions
from mandor.engines.options import read_options
from mandor.errors import Invalid


def body(image: str = "debian", *, options: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    launch = Launch(name="box-0", image=image, options=options or {}, **parts)
    return make_body("box", launch, read_options("incus", launch.options, IncusOptions), {"user.mark": "x"}, None)


def test_a_virtual_machine_gets_whole_processors_and_no_limits_that_only_containers_have() -> None:
    limits: dict[str, Any] = {"cpu_milli": 1500, "memory_bytes": 1 << 30, "processes": 50}
    machine = body(options={"type": "virtual-machine"}, **limits)
    assert machine["type"] == "virtual-machine"
    assert machine["config"]["limits.cpu"] == "2"
    assert machine["config"]["limits.memory"] == "1073741824B"
    assert not {"limits.processes", "limits.memory.swap", "limits.cpu.allowance"} & machine["config"].keys()
    container = body(**limits)
    assert container["type"] == "container"
    assert container["config"]["limits.cpu.allowance"] == "150ms/100ms"
    assert container["config"]["limits.processes"] == "50"


def test_settings_of_mandor_override_configuration_keys_of_the_task() -> None:
    options = {"config": {"limits.memory": "1GiB", "user.mark": "forged", "boot.autostart": True}}
    config = body(options=options, memory_bytes=5)["config"]
    assert (config["limits.memory"], config["user.mark"], config["boot.autostart"]) == ("5B", "x", "false")


@pytest.mark.parametrize(
    ("image", "options", "expected"),
    [
        ("debian", {}, {"alias": "debian"}),
        ("local:debian", {}, {"alias": "debian"}),
        ("0123456789ab", {}, {"fingerprint": "0123456789ab"}),
        ("images:debian/13", {}, {"alias": "debian/13", "server": "https://images.linuxcontainers.org"}),
        ("web/1", {"server": "https://i.test"}, {"alias": "web/1", "protocol": "simplestreams"}),
        (
            "web/1",
            {"server": "https://i.test", "protocol": "incus", "server_certificate": "PEM"},
            {"server": "https://i.test", "protocol": "incus", "certificate": "PEM", "mode": "pull"},
        ),
    ],
)
def test_an_image_comes_from_the_node_or_from_a_server(
    image: str, options: dict[str, Any], expected: dict[str, str]
) -> None:
    source = body(image, options=options)["source"]
    assert source.items() >= expected.items()
    assert ("server" in source) == ("images:" in image or "server" in options)


def test_an_unknown_image_server_is_refused() -> None:
    with pytest.raises(Invalid, match="unknown server 'elsewhere'"):
        body("elsewhere:debian")
