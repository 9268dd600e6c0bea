"""What a newer version wrote stays as it is, whatever this version does with the rest."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.errors import Invalid
from mandor.model.codec import KINDS, decode, decode_known, encode, to_plain
from mandor.model.instance import Instance
from mandor.model.manifest import load_manifests
from mandor.model.node import Drain, Node, Taint
from mandor.model.record import ClusterSpec
from mandor.model.release import is_release_of, release_of
from mandor.model.unknown_fields import ExtendedMeta, unknown_fields_of
from mandor.model.workload import Workload, template_hash

WORKLOAD = """
name: web
image: nginx:1
replicas: 3
ports: {http: 80}
volumes: {data: {type: local, size: 1Gi}}
mounts: [{volume: data, path: /data}, {volume: data, path: /more}]
placement: {where: [zone == a, {rule: disk == ssd, strength: prefer}], spread: [{over: zone}]}
update: {max_surge: 1}
"""
NODE = {
    "kind": "node",
    "meta": {"name": "n1", "uid": "u1", "version": 7, "labels": {"zone": "a"}},
    "spec": {"taints": [{"key": "gpu"}, {"key": "slow", "effect": "PreferNoSchedule"}], "drain": {"force": True}},
    "status": {"phase": "Ready", "engines": {"docker": {"version": "27"}}, "capacity": {"cpu_milli": 4000}},
}
INSTANCE = {
    "kind": "instance",
    "meta": {"name": "web-0", "namespace": "default"},
    "spec": {"workload": "web", "release": "web.1", "index": 0, "stop": {"reason": "drained"}},
    "status": {
        "phase": "Running",
        "tasks": [{"name": "main", "phase": "Running"}, {"name": "log", "phase": "Running"}],
    },
}


SAMPLES = [encode(load_manifests(WORKLOAD)[0].object), json.dumps(NODE).encode(), json.dumps(INSTANCE).encode()]


def places(value: Any, plain: Any) -> Iterator[dict[str, Any]]:
    """Every part of the data that is an object of the model, and not a free mapping."""
    if isinstance(value, msgspec.Struct):
        yield plain
        for name in value.__struct_fields__:
            if name in plain:
                yield from places(getattr(value, name), plain[name])
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, plain[key])
    elif isinstance(value, list | tuple):
        for part, data in zip(value, plain, strict=True):
            yield from places(part, data)


def test_every_part_of_an_object_notices_what_it_does_not_know() -> None:
    """Else it would be lost in silence. Sums of a moment are written anew every time."""
    seen: set[type[msgspec.Struct]] = set()

    def look(info: Any) -> None:
        if isinstance(info, msgspec.inspect.StructType) and info.cls not in seen:
            seen.add(info.cls)
            for field in info.fields:
                look(field.type)
        for part in (
            *getattr(info, "types", ()),
            *(getattr(info, name, None) for name in ("type", "item_type", "value_type")),
        ):
            if part is not None:
                look(part)

    for kind in KINDS.values():
        look(msgspec.inspect.type_info(kind))
    assert len(seen) > 100
    assert {each.__name__ for each in seen if not each.__struct_config__.forbid_unknown_fields} == {"GroupUsage"}


@pytest.mark.req("S0-19")
@given(data=st.data())
def test_what_was_read_is_written_as_it_was_wherever_the_unknown_stands(data: st.DataObject) -> None:
    plain = json.loads(data.draw(st.sampled_from(SAMPLES)))
    parts = list(places(decode(json.dumps(plain).encode()), plain))
    chosen = data.draw(st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=4))
    for number, place in enumerate(chosen):
        parts[place][f"new{number}"] = data.draw(st.sampled_from([1, "x", None, [1, {"a": 2}], {"deep": {"er": True}}]))
    found = decode(json.dumps(plain).encode())
    assert isinstance(found.meta, ExtendedMeta)
    assert json.loads(encode(found)) == json.loads(json.dumps(to_plain(found)))
    again = json.loads(encode(found))
    assert decode(encode(found)) == found
    for part in places(decode(json.dumps(plain).encode()), plain):
        for name, value in part.items():
            if name.startswith("new"):
                assert json.dumps({name: value})[1:-1] in json.dumps(again)


def test_a_part_that_is_changed_keeps_it_and_a_part_that_goes_takes_it_along() -> None:
    plain = json.loads(json.dumps(NODE))
    plain["spec"]["taints"][1]["until"] = 5
    plain["spec"]["drain"]["why"] = "heat"
    plain["status"]["score"] = {"cpu": 1}
    node = decode(json.dumps(plain).encode())
    assert isinstance(node, Node)
    assert str(unknown_fields_of(node.meta)) == "spec.taints.1.until, spec.drain.why, status.score"

    fewer = node.changed(spec=replace(node.spec, taints=(Taint("new"), node.spec.taints[1]), drain=Drain()))
    told = json.loads(encode(fewer))
    assert told["spec"]["taints"] == [{"key": "new"}, {"key": "slow", "effect": "PreferNoSchedule", "until": 5}]
    assert told["spec"]["drain"] == {"why": "heat"}
    assert told["status"]["score"] == {"cpu": 1}

    none = node.changed(spec=replace(node.spec, taints=(Taint("slow"),), drain=None))
    assert json.loads(encode(none))["spec"] == {"taints": [{"key": "slow", "until": 5}]}
    assert json.loads(encode(node.changed(spec=replace(node.spec, taints=(), drain=None)))).get("spec", {}) == {}


def test_lists_of_objects_and_answers_report_it_too() -> None:
    plain = json.loads(json.dumps(INSTANCE))
    plain["status"]["tasks"][1]["mood"] = "good"
    plain["spec"]["weight"] = 3
    instance = decode(json.dumps(plain).encode())
    assert isinstance(instance, Instance)
    (told,) = json.loads(encode({"items": [instance]}))["items"]
    assert told["status"]["tasks"][1]["mood"] == "good"
    assert told["spec"]["weight"] == 3
    assert "unknown" not in told["meta"]


def test_an_author_cannot_show_what_is_beyond_us_in_so_many_words() -> None:
    plain = json.loads(json.dumps(NODE))
    plain["meta"]["unknown"] = 0
    assert json.loads(encode(decode(json.dumps(plain).encode())))["meta"]["unknown"] == 0
    with pytest.raises(Invalid, match="not a valid mandor object"):
        decode(json.dumps({**NODE, "spec": {"cordoned": 1}}).encode())


def test_an_object_of_a_later_schema_is_read_if_it_can_be_and_else_refused_by_its_number() -> None:
    later = {**NODE, "meta": {"name": "n1", "schema": 2}, "spec": {"mode": "auto"}}
    assert decode(json.dumps(later).encode()).meta.schema == 2
    with pytest.raises(Invalid, match="schema 2; this version of mandor reads up to schema 1"):
        decode(json.dumps(later | {"spec": {"cordoned": "a little"}}).encode())


def test_what_another_version_answered_is_read_without_what_is_new() -> None:
    assert decode_known(b'{"id": "c1", "epoch": 2, "region": {"name": "eu"}}', ClusterSpec) == ClusterSpec("c1", 2)
    assert decode_known(b'[{"id": "c1", "more": 1}]', list[ClusterSpec]) == [ClusterSpec("c1")]
    with pytest.raises(Invalid):
        decode_known(b'{"id": 5}', ClusterSpec)


# Releases.


def wide_workload(**image: str) -> Workload:
    plain = json.loads(SAMPLES[0])
    group = plain["spec"]["groups"]["main"]
    group["tasks"]["main"] |= {"nice": 5, **image}
    group["flavour"] = "sweet"  # whether that belongs to the template nobody here knows
    group.setdefault("update", {})["canaries"] = 2
    found = decode(json.dumps(plain).encode())
    assert isinstance(found, Workload)
    return found


def test_the_release_of_a_template_that_shows_more_is_still_its_release() -> None:
    workload = wide_workload()
    release = release_of(workload, 1)
    told = json.loads(encode(release))["spec"]["groups"]["main"]
    assert told["tasks"]["main"]["nice"] == 5
    assert told["flavour"] == "sweet"
    assert "update" not in told
    assert is_release_of(decode(encode(release)), workload)  # type: ignore[arg-type]
    assert release.spec.hash != template_hash(workload.spec.template)


@pytest.mark.req("S0-19")
@pytest.mark.parametrize("flavoured", [True, False])
def test_a_newer_servers_release_is_not_made_again(flavoured: bool) -> None:
    workload = wide_workload()
    plain = json.loads(encode(release_of(workload, 1)))
    if not flavoured:  # to the newer version it was none of the template's
        del plain["spec"]["groups"]["main"]["flavour"]
    plain["spec"]["hash"] = template_hash(plain["spec"]["groups"], 0)
    newer: Any = decode(json.dumps(plain).encode())
    assert is_release_of(newer, workload)
    assert not is_release_of(newer, workload.changed(spec=replace(workload.spec, restarted=1)))
    assert not is_release_of(newer, wide_workload(image="nginx:2"))
    plain["spec"]["groups"]["main"]["tasks"]["main"]["nice"] = 6
    plain["spec"]["hash"] = template_hash(plain["spec"]["groups"], 0)
    other: Any = decode(json.dumps(plain).encode())
    assert not is_release_of(other, workload)
