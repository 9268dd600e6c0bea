"""Services of Kubernetes become services of the workloads that they select, or objects of kind service."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.importers.base import Imported
from mandor.lib.yaml12 import dump
from mandor.model.manifest import load_files
from mandor.model.service import SERVICES_MOST, Service
from tests.unit.importers.kubernetes.imports import deployment, imported, indented, only, service, told


def endpoints(subsets: str, name: str = "db") -> str:
    return f"apiVersion: v1\nkind: Endpoints\nmetadata: {{name: {name}}}\nsubsets: {subsets}\n"


def objects(found: Imported) -> list[dict[str, Any]]:
    """The objects of kind service, after the check that `mandor apply` makes."""
    load_files([(each.file, dump(each.manifest)) for each in found.made])
    return [each.manifest for each in found.made if each.manifest.get("kind") == "service"]


def version(number: int) -> str:
    return deployment().replace("{name: web}", f"{{name: web-v{number}}}", 1)


@pytest.mark.req("S0-32", "S2-28")
@pytest.mark.parametrize(
    ("ports", "container", "wanted"),
    [
        ("[{port: 80, name: http}]", "", {"http": 80}),
        ("[{port: 80}]", "", {"port-80": 80}),
        ("[{port: 80, targetPort: 0}]", "", {"port-80": 80}),
        ("[{port: 80, targetPort: ''}]", "", {"port-80": 80}),
        ("[{port: 80, targetPort: 8080}]", "", {"port-80": {"port": 80, "target": 8080}}),
        (
            "[{port: 80, targetPort: web}]",
            "[{name: web, containerPort: 9}]",
            {"port-80": {"port": 80, "target": "web"}},
        ),
        ("[{port: 80, name: web, targetPort: web}]", "[{name: web, containerPort: 9}]", {"web": 80}),
        ("[{port: 80, name: web}]", "[{name: web, containerPort: 9}]", {"web": {"port": 80, "target": 80}}),
        (
            "[{port: 53, name: dns, protocol: UDP}, {port: 53, name: dns-tcp}]",
            "",
            {"dns": {"port": 53, "protocol": "udp"}, "dns-tcp": 53},
        ),
        ("[{port: 1, targetPort: 2}, {port: 3, targetPort: gone}]", "", {"port-1": {"port": 1, "target": 2}}),
    ],
)
def test_ports_of_a_service_lead_to_their_target_ports(ports: str, container: str, wanted: dict[str, Any]) -> None:
    found = imported(deployment(container=f"ports: {container}" if container else ""), service(ports))
    assert objects(found) == []
    assert [each.manifest["services"] for each in found.made] == [[{"port": wanted}]]


def test_several_services_of_a_workload_keep_their_names_and_target_one_port() -> None:
    second = service("[{port: 8000, targetPort: 80}]", name="shop")
    made = only(deployment(), service(), second)
    assert made["ports"] == {"port-80": 80}
    assert made["services"] == [
        {"port": {"port-80": 80}},
        {"name": "shop", "port": {"port-8000": {"port": 8000, "target": 80}}},
    ]


def test_a_service_of_a_workload_with_groups_is_a_service_of_the_workload() -> None:
    made = only(deployment() + indented("  - {name: side, image: a}\n", 4), service(name="shop"))
    assert made["services"] == [{"name": "shop", "port": {"port-80": 80}}]
    assert made["groups"]["main"]["ports"] == {"port-80": 80}


@pytest.mark.req("S2-28")
def test_a_service_of_several_workloads_is_an_object_and_their_ports_are_published() -> None:
    found = imported(version(1), version(2), service("[{port: 80, targetPort: 8080}]", "sessionAffinity: ClientIP"))
    (made,) = objects(found)
    assert made == {
        "kind": "service",
        "name": "web",
        "port": {"port-80": {"port": 80, "target": 8080}},
        "affinity": "3h",
        "to": [{"workload": "web-v1"}, {"workload": "web-v2"}],
    }
    published = {"port-8080": {"port": 8080, "host": "auto"}}
    assert [each.manifest["ports"] for each in found.made[:2]] == [published, published]
    assert not any("services" in each.manifest for each in found.made)


def test_a_workload_of_very_many_services_has_the_last_ones_as_objects() -> None:
    found = imported(deployment(), *(service(name=f"s{number}") for number in range(SERVICES_MOST + 1)))
    assert len(found.made[0].manifest["services"]) == SERVICES_MOST
    assert [each["name"] for each in objects(found)] == [f"s{SERVICES_MOST}"]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("clusterIP: None", {"headless": True}),
        ("sessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}", {"affinity": "1m"}),
        ("internalTrafficPolicy: Local", {"near": "node"}),
        ("trafficDistribution: PreferSameZone", {"near": "zone"}),
        ("trafficDistribution: PreferSameNode", {"near": "node"}),
        ("sessionAffinity: None\ninternalTrafficPolicy: Cluster\nipFamilies: [IPv4]", {}),
    ],
)
def test_a_service_keeps_how_its_traffic_is_distributed(more: str, wanted: dict[str, Any]) -> None:
    assert only(deployment(), service(more=more))["services"] == [{"port": {"port-80": 80}} | wanted]


def test_a_headless_service_needs_no_port() -> None:
    assert only(deployment(), service("", "clusterIP: None"))["services"] == [{"headless": True}]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(
    ("more", "replicas", "wanted", "told_of"),
    [
        ("type: NodePort", 1, {"port": 9, "host": 30000}, {"spec.type"}),
        ("type: NodePort", 2, {"port": 9, "host": "auto"}, {"spec.type", "spec.ports[0].nodePort"}),
        ("type: LoadBalancer", 2, {"port": 9, "host": "auto"}, {"spec.type", "spec.ports[0].nodePort"}),
        ("type: NodePort\nexternalTrafficPolicy: Local", 1, {"port": 9, "host": 30000}, set()),
        (
            "type: LoadBalancer\nloadBalancerSourceRanges: [10.0.0.0/8]",
            2,
            9,
            {"spec.loadBalancerSourceRanges", "spec.ports[0].nodePort"},
        ),
    ],
)
def test_ports_of_nodes_are_published_where_the_instances_are(
    more: str, replicas: int, wanted: Any, told_of: set[str]
) -> None:
    found = imported(
        deployment(f"replicas: {replicas}", container="ports: [{name: web, containerPort: 9}]"),
        service("[{port: 9, name: web, nodePort: 30000}]", more),
    )
    assert found.made[0].manifest["ports"] == {"web": wanted}
    assert found.made[0].manifest["services"] == [{"port": {"web": 9}}]
    assert set(told(found)) == told_of


def test_a_service_without_matching_workloads_is_dropped_with_one_note() -> None:
    found = imported(deployment(name="other"), service())
    assert [note.path for note in found.report.notes] == ["kind"]
    assert found.report.dropped == 9


@pytest.mark.parametrize("ports", ["[{port: 80, targetPort: absent}]", "[{port: 80, protocol: SCTP}]"])
def test_a_service_without_a_port_that_can_be_opened_is_dropped(ports: str) -> None:
    found = imported(deployment(), service(ports, name="shop"))
    assert "services" not in found.made[0].manifest
    assert "kind" in told(found)


def test_an_external_name_is_a_service_that_stands_for_another_host() -> None:
    made = only(service("[{port: 5432}]", "type: ExternalName\nexternalName: db.example.com.", "db", ""))
    assert made == {"kind": "service", "name": "db", "external_name": "db.example.com"}
    with pytest.raises(Invalid, match="is not a host name"):
        imported(service("", "type: ExternalName\nexternalName: 'a b'", "db", ""))


@pytest.mark.req("S0-32", "S2-28")
@pytest.mark.parametrize(
    ("ports", "subsets", "wanted"),
    [
        (
            "[{port: 5432, targetPort: 1}]",
            "[{addresses: [{ip: 10.0.0.5}, {ip: 'fd00::5', nodeName: n}], ports: [{port: 6432}]}]",
            {"port": {"port-5432": 5432}, "external": ["10.0.0.5:6432", "[fd00::5]:6432"]},
        ),
        (
            "[{port: 80, name: http}, {port: 443, name: https}]",
            "[{addresses: [{ip: 10.0.0.5}], ports: [{port: 8080, name: http}, {port: 8443, name: https}]}]",
            {
                "port": {"http": {"port": 80, "target": 8080}, "https": {"port": 443, "target": 8443}},
                "external": ["10.0.0.5"],
            },
        ),
    ],
)
def test_endpoints_are_the_external_addresses_of_a_service_without_a_selector(
    ports: str, subsets: str, wanted: dict[str, Any]
) -> None:
    found = imported(service(ports, name="db", selector=""), endpoints(subsets))
    assert objects(found) == [{"kind": "service", "name": "db"} | wanted]
    assert found.report.dropped == 0


def test_ready_addresses_of_an_endpoint_slice_are_used_for_the_service_that_its_label_names() -> None:
    slice_of = (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"
        "metadata: {name: db-1, labels: {kubernetes.io/service-name: db}}\naddressType: IPv4\n"
        "ports: [{port: 6432, protocol: TCP}]\n"
        "endpoints: [{addresses: [10.0.0.5]}, {addresses: [10.0.0.6], conditions: {ready: false}}]\n"
    )
    found = imported(slice_of, service("[{port: 5432}]", name="db", selector=""))
    assert [each["external"] for each in objects(found)] == [["10.0.0.5:6432"]]
    assert "endpoints[1].addresses" in told(found)


def test_endpoints_that_differ_by_port_and_endpoints_without_a_service_are_reported() -> None:
    subsets = (
        "[{addresses: [{ip: 10.0.0.5}], ports: [{port: 1, name: a}]},"
        " {addresses: [{ip: 10.0.0.6}], ports: [{port: 2, name: b}]}]"
    )
    found = imported(
        service("[{port: 1, name: a}, {port: 2, name: b}]", name="db", selector=""),
        endpoints(subsets),
        endpoints("[]", "other"),
        service(name="lost", selector=""),
    )
    assert found.made == ()
    assert {note.text for note in found.report.notes} >= {
        "it has several ports with different addresses",
        "no Service without a selector has its name",
        "it selects nothing, and these files have no Endpoints of its name",
    }


@pytest.mark.parametrize(
    ("ports", "more", "says"),
    [
        ("[{name: a}]", "", "has a number from 1 to 65535"),
        ("[{port: 70000}]", "", "has a number from 1 to 65535"),
        ("[{port: 80, targetPort: 70000}]", "", "is not a port number"),
        ("[{port: 80, name: a}, {port: 81, name: a}]", "", "two ports of the Service are called a"),
        ("[{port: 80, name: a}, {port: 80, name: b}]", "", "have the number 80"),
        ("[{port: 80}]", "type: Magic", "is none of ClusterIP"),
        ("[{port: 80}]", "sessionAffinity: Cookie", "neither ClientIP nor None"),
        (
            "[{port: 80}]",
            "sessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 90000}}",
            "from 1 to 86400",
        ),
    ],
)
def test_a_service_that_kubernetes_refuses_is_refused_with_its_line(ports: str, more: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        imported(deployment(), service(ports, more))
    assert isinstance(caught.value.facts["line"], int)


def test_the_same_service_twice_is_refused_and_in_another_namespace_is_another_service() -> None:
    with pytest.raises(Invalid, match="Service web is defined twice"):
        imported(deployment(), service(), service())
    other = service(selector="", ports="", more="type: ExternalName\nexternalName: a.example")
    found = imported(deployment(), service(), other.replace("{name: web}", "{name: web, namespace: b}"))
    load_files([(each.file, dump(each.manifest)) for each in found.made])
    assert [each["namespace"] for each in objects(found)] == ["b"]


def test_a_service_of_several_workloads_is_accepted_as_an_object() -> None:
    found = imported(version(1), version(2), service(more="clusterIP: None"))
    documents = load_files([(each.file, dump(each.manifest)) for each in found.made])
    (made,) = [each.object for each in documents if isinstance(each.object, Service)]
    assert [each.workload for each in made.spec.to] == ["web-v1", "web-v2"]
    assert made.spec.headless
