"""Log sinks: what an address may be, and whom a sink gets."""

from pathlib import Path

import pytest

from mandor.errors import Invalid
from mandor.model.log_sink import LogSink, LogSinkSpec
from mandor.model.manifest import load_manifests
from mandor.model.meta import InvalidField

GOOD = (
    "file:///var/log/mandor/all.log",
    "syslog+udp://logs.example.com",
    "syslog+tcp://[::1]:601",
    "syslog+unix:///dev/log",
    "fluent://10.0.0.1:24224",
    "loki+https://loki.example.com:3100",
    "loki+http://127.0.0.1:3100",
    "otlp+https://collector/custom/v1/logs",
)
BAD = {
    "http://logs": "is not the URL of a log sink",
    "file://host/path": "is not an absolute path",
    "file:///var/../etc/passwd": "is not an absolute path",
    "syslog+unix:///": "is not an absolute path",
    "fluent://": "must be a host with an optional port",
    "fluent://host:99999": "is not a valid URL",
    "fluent://host/path": "must not have a path",
    "loki+http://loki.example.com": "over https, except to the node itself",
    "loki+https://user:secret@loki": "must be a host with an optional port",
}


@pytest.mark.parametrize("url", GOOD)
def test_an_address_that_means_something_is_taken(url: str) -> None:
    assert LogSinkSpec(url=url).url == url


@pytest.mark.parametrize(("url", "why"), BAD.items())
def test_an_address_that_means_nothing_is_refused(url: str, why: str) -> None:
    with pytest.raises(InvalidField, match=why):
        LogSinkSpec(url=url)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"url": "fluent://h", "user": "u", "password": "p"}, "only Loki and OTLP"),
        ({"url": "loki+https://h", "user": "u"}, "must be set together"),
        ({"url": "loki+https://h", "user": "u", "password": "p", "token": "t"}, "exclude each other"),
        ({"url": "otlp+https://h", "tenant": "t"}, "only Loki supports `tenant`"),
        ({"url": "fluent://h", "buffer": 10}, "buffer size 10 is out of range"),
        ({"url": "fluent://h", "sources": ()}, "at least one"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidField, match=why):
        LogSinkSpec(**fields)  # type: ignore[arg-type]


def test_a_mistake_in_a_manifest_is_reported_with_its_line() -> None:
    with pytest.raises(Invalid) as caught:
        load_manifests("kind: log-sink\nname: x\nurl: loki+http://far.example.com\n", filename="sink.yaml")
    assert "over https" in str(caught.value)
    assert (caught.value.facts["file"], caught.value.facts["line"]) == ("sink.yaml", 3)


def test_labels_of_a_sink_are_its_own_and_those_it_chooses_by_are_the_workloads() -> None:
    text = "kind: log-sink\nname: x\nurl: fluent://h\nlabels: {a: b}\nworkload_labels: {tier: front}\n"
    (document,) = load_manifests(text)
    assert isinstance(document.object, LogSink)
    assert document.object.labels == {"a": "b"}
    assert document.object.spec.workload_labels == {"tier": "front"}


def test_the_example_is_understood() -> None:
    text = (Path(__file__).parents[3] / "examples" / "log-sink.yaml").read_text()
    sinks = [each.object for each in load_manifests(text) if isinstance(each.object, LogSink)]
    assert [each.spec.scheme for each in sinks] == ["loki+https", "syslog+unix"]
    assert sinks[0].spec.secrets == ["loki"]


@pytest.mark.req("S2-40")
def test_a_sink_gets_those_that_all_its_choices_name() -> None:
    spec = LogSinkSpec(
        url="fluent://h", namespaces=("shop", "team-*"), workloads=("web*",), workload_labels={"tier": "front"}
    )
    labels = {"tier": "front", "x": "y"}
    assert spec.wants("team-a", "web-1", labels)
    assert not spec.wants("other", "web-1", labels)
    assert not spec.wants("shop", "db", labels)
    assert not spec.wants("shop", "web", {})
    assert not LogSinkSpec(url="fluent://h", sources=("agent",)).wants("shop", "web", {})
    assert not LogSinkSpec(url="fluent://h", active=False).wants("shop", "web", {})
