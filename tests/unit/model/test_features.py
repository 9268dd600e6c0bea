"""A field that is new names its feature, and stays at its default until everybody has it."""

from typing import Annotated, ClassVar

from msgspec import Struct, field

from mandor.model.codec import KINDS
from mandor.model.features import FEATURES, Gated, features_of, gated, needs, without
from mandor.model.meta import Meta, Object


class Part(Struct, frozen=True):
    name: str = ""
    speed: Annotated[int, needs("speed")] = 0


class ThingSpec(Struct, frozen=True, kw_only=True):
    parts: tuple[Part, ...] = ()
    by_name: dict[str, Part] = {}
    extra: Annotated[Part | None, needs("extra")] = None
    marks: Annotated[dict[str, str], needs("marks")] = field(default_factory=dict)


class Thing(Object, frozen=True, tag="thing"):
    kind: ClassVar[str] = "thing"
    plural: ClassVar[str] = "things"
    spec: ThingSpec
    status: Part = field(default_factory=Part)


def thing(**spec: object) -> Thing:
    return Thing(meta=Meta(name="t"), spec=ThingSpec(**spec))  # type: ignore[arg-type]


FULL = thing(parts=(Part("a"), Part("b", 2)), by_name={"x": Part("c", 3)}, extra=Part("d", 4), marks={"m": "1"})


def test_fields_that_have_a_value_are_found_wherever_they_stand() -> None:
    assert gated(thing(parts=(Part("a"),))) == []
    assert gated(FULL) == [
        Gated("spec.parts.1.speed", "speed"),
        Gated("spec.by_name.x.speed", "speed"),
        Gated("spec.extra", "extra"),
        Gated("spec.extra.speed", "speed"),
        Gated("spec.marks", "marks"),
    ]


def test_what_is_not_known_is_left_out_and_nothing_else() -> None:
    assert without(FULL, {"speed", "extra", "marks"}) is FULL
    assert gated(without(FULL, frozenset())) == []
    assert without(FULL, {"marks"}) == thing(parts=(Part("a"), Part("b")), by_name={"x": Part("c")}, marks={"m": "1"})
    slow = without(FULL, {"extra", "marks"})
    assert slow.spec.extra == Part("d")


def test_every_feature_that_a_field_needs_is_announced() -> None:
    assert features_of(Thing) == {"speed", "extra", "marks"}
    assert frozenset().union(*map(features_of, KINDS.values())) <= set(FEATURES)
    assert list(FEATURES) == sorted(set(FEATURES))
