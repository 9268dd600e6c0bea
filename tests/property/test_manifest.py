"""Whatever is in a file: objects, or `Invalid` with a line; and what was read survives every trip."""

from typing import Any

import jsonschema_rs
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.lib.yaml12 import Malformed, dump, load_all
from mandor.model.codec import decode, encode, to_plain
from mandor.model.manifest import load_manifests
from mandor.model.schema import manifest_schema
from mandor.model.workload import Workload, template_hash

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
PORTS = st.integers(1, 65535)
SECONDS = st.sampled_from(["250ms", "1s", "1h30m", 5, 0.5, "1d"])
SIZES = st.sampled_from(["256Mi", "2GB", 1024, "1.5Gi", "0"])
CPUS = st.sampled_from(["500m", 2, 0.5, "1.25"])
PROBES = st.one_of(
    st.fixed_dictionaries({"tcp": PORTS}, optional={"interval": st.just("5s")}),
    st.fixed_dictionaries({"http": st.just("/x"), "port": PORTS}, optional={"failures": st.integers(1, 9)}),
    st.fixed_dictionaries({"command": st.lists(TEXTS, min_size=1, max_size=3)}),
)
TASKS = st.fixed_dictionaries(
    {"image": st.text(min_size=1, max_size=20, alphabet="abc:/.")},
    optional={
        "command": st.lists(TEXTS, max_size=3),
        "args": st.lists(TEXTS | st.integers() | st.booleans(), max_size=3),
        "env": st.dictionaries(st.from_regex(r"[A-Z_]{1,6}", fullmatch=True), TEXTS | st.integers(), max_size=3),
        "resources": st.fixed_dictionaries({}, optional={"cpu": CPUS, "memory": SIZES, "disk": SIZES}),
        "health": PROBES,
        "readiness": PROBES,
        "stop": st.fixed_dictionaries({}, optional={"grace": SECONDS, "signal": st.just("SIGTERM")}),
        "options": st.dictionaries(NAMES, st.dictionaries(TEXTS, st.none() | TEXTS, max_size=2), max_size=2),
    },
)
WHERE = ["a == b", {"any": ["c exists", "d in [e]"]}]
GROUPS = {
    "replicas": st.integers(0, 1000),
    "engine": NAMES | st.lists(NAMES, max_size=2),
    "ports": st.dictionaries(NAMES, PORTS | st.fixed_dictionaries({"port": PORTS}), max_size=2),
    "placement": st.fixed_dictionaries({}, optional={"where": st.just(WHERE)}),
    "restart": st.fixed_dictionaries({}, optional={"attempts": st.integers(0, 100)}),
}
HEADS = {"name": NAMES}
LABELS = st.dictionaries(NAMES, TEXTS | st.integers(), max_size=3)
EXTRAS = {"namespace": NAMES, "labels": LABELS, "priority": st.integers(-9, 9)}
FLAT = st.builds(lambda a, b: a | b, st.fixed_dictionaries(HEADS, optional=EXTRAS | GROUPS), TASKS)
INNER = st.fixed_dictionaries({"tasks": st.dictionaries(NAMES, TASKS, min_size=1, max_size=2)}, optional=GROUPS)
GROUPED = st.fixed_dictionaries(
    HEADS | {"groups": st.dictionaries(NAMES, INNER, min_size=1, max_size=2)},
    optional=EXTRAS,
)
MANIFESTS = FLAT | GROUPED
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
CHECKS = jsonschema_rs.validator_for(manifest_schema())


def refusal(text: str | bytes) -> Invalid | None:
    """What the reader says against a text; None: it took it."""
    try:
        load_manifests(text)
    except Invalid as error:
        return error
    return None


@given(MANIFESTS)
@settings(deadline=None, max_examples=60)
def test_a_good_manifest_survives_every_trip(plain: dict[str, Any]) -> None:
    CHECKS.validate(plain)
    (document,) = load_manifests(dump(plain))
    value = document.object
    assert isinstance(value, Workload)
    assert decode(encode(value)) == value
    stored = decode(encode(value))
    assert isinstance(stored, Workload)
    assert encode(stored) == encode(value)
    assert template_hash(stored.spec.template) == template_hash(value.spec.template)
    (again,) = load_manifests(dump(to_plain(value.stamped(version=5, uid="u"))))
    assert again.object == value
    assert encode(again.object) == encode(value)


@given(MANIFESTS, st.data())
@settings(deadline=None, max_examples=60)
def test_a_spoiled_manifest_is_refused_with_its_line(plain: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(plain)))
    bad: Any = data.draw(st.sampled_from([None, [], {"zzz": 1}, [[[]]], {"": {"": ""}}]))
    text = dump(plain | {key: bad, "last": 1})
    error = refusal(text)
    assert error is not None, "the unknown key `last` was taken"
    line = error.facts["line"]
    assert isinstance(line, int)
    assert 1 <= line <= text.count("\n") + 1
    assert error.message


@given(st.text(max_size=200))
@settings(deadline=None, max_examples=60)
def test_any_text_is_read_or_refused(text: str) -> None:
    error = refusal(text)
    assert error is None or error.facts["line"]


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=60)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    error = refusal(data)
    assert error is None or error.facts["line"]


@given(PLAIN)
@settings(deadline=None, max_examples=60)
def test_any_data_is_read_or_refused(plain: Any) -> None:
    error = refusal(dump(plain))
    assert error is None or error.facts["line"]


@given(PLAIN)
@settings(deadline=None, max_examples=60)
def test_what_is_dumped_is_read_back_the_same(plain: Any) -> None:
    try:
        found = load_all(dump({"value": plain}))
    except Malformed:
        # Characters that YAML cannot hold even in quotes.
        assert any(ord(letter) > 0xD7FF or ord(letter) < 32 or 0x7E < ord(letter) < 0xA0 for letter in str(plain))
        return
    assert found[0].value == {"value": plain}


@given(PLAIN)
@settings(deadline=None, max_examples=60)
def test_the_loader_agrees_with_the_reference_on_what_both_versions_mean(plain: Any) -> None:
    text = yaml.safe_dump({"value": plain}, default_style='"', allow_unicode=False)
    try:
        found = load_all(text)
    except Malformed:
        return
    assert found[0].value == yaml.safe_load(text)
