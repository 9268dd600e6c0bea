"""The translation of routes into HAProxy's configuration and commands."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mandor.model.route import RouteSpec, RouteTarget
from mandor.network.base import Endpoint
from mandor.network.gateway.base import GatewayRoute, GatewayState, RouteKey
from mandor.network.gateway.haproxy.configuration import HaproxySettings, Listen, backend_of, render
from mandor.network.gateway.haproxy.runtime import read_servers, server_commands
from mandor.network.gateway.haproxy.slots import Slot, assign, slots_for
from mandor.network.gateway.haproxy.word import map_line, name, quoted

SETTINGS = HaproxySettings(folder=Path("/mnt"), http=(Listen("::", 80),), https=(Listen("::", 443),))


def route(ports: tuple[int, ...] = (80,), **spec: object) -> GatewayRoute:
    given = {"host": "shop.test", "to": (RouteTarget(service="shop"),)} | spec
    endpoints = tuple(Endpoint("10.0.0.1", port) for port in ports)
    return GatewayRoute(key=RouteKey("default", "shop"), spec=RouteSpec(**given), endpoints=endpoints)  # type: ignore[arg-type]


def config_of(each: GatewayRoute) -> tuple[str, str]:
    found = render(GatewayState((each,)), {backend_of(each): assign((), each.endpoints)}, SETTINGS)
    return found.generation, found.config


def test_a_change_of_endpoints_keeps_the_generation_and_a_change_of_the_route_does_not() -> None:
    generation, text = config_of(route((80, 81)))
    other, changed = config_of(route((82,)))
    assert generation == other
    assert text != changed
    assert config_of(route(path="/a"))[0] != generation
    assert config_of(route(tuple(range(100, 120))))[0] != generation


def test_endpoints_that_stay_keep_their_slot() -> None:
    rng = random.Random(1)
    slots: tuple[Slot | None, ...] = ()
    for _ in range(300):
        ports = sorted(rng.sample(range(40), rng.randrange(12)))
        before = {(each.address, each.port): place for place, each in enumerate(slots) if each is not None}
        slots = assign(slots, [Endpoint("10.0.0.1", port) for port in ports])
        after = {(each.address, each.port): place for place, each in enumerate(slots) if each is not None}
        assert sorted(port for _, port in after) == ports
        assert all(after[each] == place for each, place in before.items() if each in after)


def test_a_slot_that_has_just_become_free_is_used_last() -> None:
    slots = assign((Slot("10.0.0.1", 1, 100), None, None), [Endpoint("10.0.0.1", 2)])
    assert slots == (None, Slot("10.0.0.1", 2, 100), None)


def test_slots_have_room_for_a_roll_out() -> None:
    assert [slots_for(count) for count in (0, 1, 2, 3, 4, 100)] == [4, 4, 4, 8, 8, 256]


def test_new_endpoints_are_added_before_old_ones_are_removed() -> None:
    commands = server_commands("b", (Slot("10.0.0.1", 1, 9), None), (None, Slot("10.0.0.2", 2, 9)))
    assert commands == [
        "set server b/s1 addr 10.0.0.2 port 2",
        "set server b/s1 weight 9",
        "set server b/s1 state ready",
        "set server b/s0 state maint",
    ]


def test_a_server_whose_configuration_began_with_maintenance_is_not_free() -> None:
    head = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_port\n"
    found = read_servers(f"{head}4 a:b 1 s0 10.0.0.1 2 4 128 80\n4 a:b 2 s1 127.0.0.1 0 5 1 1\n")
    assert found == {"a:b": (Slot("10.0.0.1", 80, 128), None)}


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00b", "é", "a\tb", "\x7f"])
def test_a_text_with_control_characters_never_gets_into_the_configuration(text: str) -> None:
    with pytest.raises(ValueError, match="characters other than printable ASCII"):
        quoted(text)
    with pytest.raises(ValueError, match="cannot be a name"):
        name(text)
    with pytest.raises(ValueError, match="cannot be in a map"):
        map_line("key", text)


@pytest.mark.parametrize(
    ("text", "word"),
    [('a"b', '"a\\"b"'), ("a\\", '"a\\\\"'), ("$HOME", '"\\$HOME"'), ("# }", '"# }"'), ("'", '"\'"')],
)
def test_quoted_texts_stay_one_word(text: str, word: str) -> None:
    assert quoted(text) == word


def test_a_map_has_one_entry_a_line() -> None:
    assert map_line("h0/a;b", "x:y") == "h0/a;b x:y\n"
    for key in ("a b", "", "#a", "a\n"):
        with pytest.raises(ValueError, match="cannot be in a map"):
            map_line(key, "x")


def test_a_folder_that_haproxy_cannot_read_is_refused() -> None:
    settings = HaproxySettings(folder=Path("/mnt/a,b"), http=SETTINGS.http, https=())
    with pytest.raises(ValueError, match="choose another --dir"):
        render(GatewayState(), {}, settings)
