"""Names, labels, keys, and the objects every store keeps."""

import msgspec
import pytest

from mandor.errors import Invalid
from mandor.lib.quantity import Cpu
from mandor.model.codec import KINDS, decode, decode_as, encode, to_plain
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta, check_labels, check_name
from mandor.model.node import Node, NodePhase, NodeSpec
from mandor.model.resources import Resources
from mandor.model.task import Task
from mandor.model.workload import Workload


@pytest.mark.parametrize("name", ["a", "web-0", "a.b_c", "0", "x" * 63])
def test_a_good_name_is_taken(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "a/b", "é", "a\n", "x" * 64, "..", "a\x00"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        check_name(name)


def test_labels_are_bounded() -> None:
    check_labels({"app": "", "example.com/tier": "Front End", "x": "y" * 256})
    for labels in ({"": "a"}, {"-a": "b"}, {"a": "b" * 257}, {"a" * 129: "b"}, {f"k{n}": "v" for n in range(65)}):
        with pytest.raises(ValueError, match="label"):
            check_labels(labels)


def test_a_key_reads_well() -> None:
    assert str(Key("workload", "default", "web")) == "workload default/web"
    assert str(Key("node", "", "n1")) == "node n1"


def test_every_kind_has_its_own_name_and_plural() -> None:
    assert all(cls.kind == kind and cls.__struct_config__.tag == kind for kind, cls in KINDS.items())
    assert len({cls.plural for cls in KINDS.values()}) == len(KINDS)


def test_an_object_is_kind_meta_spec_status() -> None:
    plain = to_plain(Node(meta=Meta(name="n1")))
    assert set(plain) == {"kind", "meta", "spec", "status"}
    assert plain["kind"] == "node"
    assert plain["status"]["phase"] == "Unknown"


def test_an_object_cannot_be_changed() -> None:
    node = Node(meta=Meta(name="n1"))
    with pytest.raises(AttributeError):
        node.meta.name = "n2"  # type: ignore[misc]


def test_unknown_fields_of_a_spec_are_refused() -> None:
    with pytest.raises(Invalid, match="zone"):
        decode_as(b'{"kind":"node","meta":{"name":"n1"},"spec":{"zone":"a"},"status":{"phase":"Ready"}}', Node)


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"[1]", b'{"kind":"nobody"}', b"\xff", b'{"kind":"node"}'])
def test_what_is_no_object_is_invalid(data: bytes) -> None:
    with pytest.raises(Invalid):
        decode(data)


def test_decode_as_names_the_place_of_the_mistake() -> None:
    with pytest.raises(Invalid, match=r"\$\.resources\.cpu"):
        decode_as(b'{"command":["a"],"resources":{"cpu":"x"}}', Task)


def test_a_decoded_quantity_is_a_number_and_its_text() -> None:
    task = decode_as(b'{"command":["a"],"resources":{"cpu":"0.5"}}', Task)
    assert task.resources.cpu == Cpu(500)
    assert to_plain(task)["resources"] == {"cpu": "500m"}


def test_instances_share_their_repeated_words() -> None:
    line = (
        b'{"kind":"instance","meta":{"name":"w-%d","namespace":"ns"},'
        b'"spec":{"workload":"w","release":"w.1","index":%d,"node":"n"},"status":{"phase":"Running"}}'
    )
    one, two = decode(line % (1, 1)), decode(line % (2, 2))
    assert isinstance(one, Instance)
    assert isinstance(two, Instance)
    assert one.spec.node is two.spec.node
    assert one.spec.release is two.spec.release
    assert one.meta.namespace is two.meta.namespace


def test_a_workloads_name_is_short_however_it_comes() -> None:
    line = b'{"kind":"workload","meta":{"name":"%s"},"spec":{"groups":{"m":{"tasks":{"m":{"image":"x"}}}}}}'
    assert isinstance(decode(line % (b"x" * 63)), Workload)
    with pytest.raises(Invalid, match="64 characters"):
        decode(line % (b"x" * 64))


def test_stamping_keeps_what_is_not_given() -> None:
    node = Node(meta=Meta(name="n1")).stamped(version=3, uid="u", created_at=1.0)
    again = node.stamped(version=4)
    assert (again.meta.version, again.meta.uid, again.meta.created_at) == (4, "u", 1.0)


def test_resources_add_subtract_and_fit() -> None:
    one = Resources(500, 100, 10, {"gpu": 1})
    two = Resources(1000, 200, 20, {"gpu": 2})
    assert one + one == two
    assert two - one == one
    assert one.fits(two)
    assert not two.fits(one)
    assert not Resources(devices={"tpu": 1}).fits(two)
    assert Resources().fits(Resources())
    assert str(Resources(1500, 1 << 30, 0, {"gpu": 1})) == "cpu 1500m, memory 1Gi, gpu 1"


def test_a_node_keeps_its_reserve() -> None:
    node = Node(meta=Meta(name="n"), spec=NodeSpec(reserved=Resources(100, 10)))
    status = msgspec.structs.replace(node.status, phase=NodePhase.READY, capacity=Resources(1000, 100))
    assert node.changed(status=status).allocatable == Resources(900, 90)


def test_the_codec_leaves_defaults_out() -> None:
    assert encode(NodeSpec()) == b"{}"
