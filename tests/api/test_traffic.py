"""The state of services on nodes, and explanations of traffic, with the rights that they need."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mandor.client.aio import Line
from mandor.errors import Forbidden, Invalid, NotFound
from mandor.model.instance import InstanceStatus, PortStatus
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.record import Namespace, NamespaceSpec, Session
from mandor.model.service import Service, ServicePort, ServiceSource, ServiceSpec, ServiceStatus
from mandor.network.traffic_report import PortTraffic, ReportedEndpoint, TrafficReport
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.api.test_sessions import agent, running_instance

END = b"\x03"
REPORT = TrafficReport(
    "n1",
    "",
    (
        PortTraffic(
            "http", 80, "tcp", ("10.93.0.64",), (ReportedEndpoint("172.17.0.2", 8080, "web-0", "n1"),), 5, 10, 20, 1
        ),
    ),
    {"10.0.0.5:80": "refused"},
)


async def serve(session: Session, line: Line) -> None:
    assert (session.spec.verb, session.spec.service) == ("traffic", "default/shop")
    await line.send(END + msgspec.json.encode(REPORT))


async def scene(api: Api) -> str:
    """A service with one instance; the credential of its node."""
    ports = (PortStatus(name="http", port=8080, host=20001),)
    web = await running_instance(api.store)
    status = InstanceStatus(phase=Phase.RUNNING, ready=True, address="172.17.0.2", host="192.0.2.1", ports=ports)
    await api.store.commit(Put(web.changed(status=status)))
    spec = ServiceSpec(port={"http": ServicePort(port=80)}, to=(ServiceSource(workload=web.spec.workload),))
    shop = Service(meta=Meta(name="shop", namespace="default"), spec=spec, status=ServiceStatus(number=64))
    secret = Service(meta=Meta(name="secret", namespace="other"), spec=spec, status=ServiceStatus(number=65))
    other = Namespace(meta=Meta(name="other"), spec=NamespaceSpec())
    await api.store.commit(Put(shop), Put(secret), Put(other))
    return await api.token("node", "node:n1")


async def test_a_viewer_sees_instances_endpoints_and_counters_of_a_service(api: Api) -> None:
    credential = await scene(api)
    viewer = await api.client(await api.token("viewer", "user:ani", ("default",)))
    async with agent(api.url, credential, serve):
        found: dict[str, Any] = await viewer.call("GET", "/v1/services/shop/traffic", dict[str, Any])
    (instance,) = found["instances"]
    assert instance == {"instance": "web-0", "node": "n1", "address": "172.17.0.2"}
    (node,) = found["nodes"]
    assert node["ports"][0]["connections"] == 5
    assert node["excluded"] == {"10.0.0.5:80": "refused"}
    assert not (await api.store.list("session")).items


async def test_a_node_that_does_not_answer_is_a_problem_and_no_error(api: Api) -> None:
    await scene(api)
    viewer = await api.client(await api.token("viewer", "user:ani"))
    found: dict[str, Any] = await viewer.call("GET", "/v1/services/shop/traffic", dict[str, Any])
    assert found["nodes"][0]["problem"].startswith("no answer")


async def test_an_agent_that_sends_nonsense_is_a_problem_and_no_error(api: Api) -> None:
    credential = await scene(api)

    async def babble(session: Session, line: Line) -> None:
        await line.send(END + b'{"node": 3}')

    viewer = await api.client(await api.token("viewer", "user:ani"))
    async with agent(api.url, credential, babble):
        found: dict[str, Any] = await viewer.call("GET", "/v1/services/shop/traffic", dict[str, Any])
    assert "sent no report" in found["nodes"][0]["problem"]


async def test_the_way_to_a_service_is_explained_step_by_step(api: Api) -> None:
    credential = await scene(api)
    viewer = await api.client(await api.token("viewer", "user:ani"))
    query = {"source": "web-0", "target": "service/shop:http"}
    async with agent(api.url, credential, serve):
        found: dict[str, Any] = await viewer.call("GET", "/v1/explain/traffic", dict[str, Any], query=query)
    steps = {each["name"]: each["good"] for each in found["steps"]}
    assert steps["data path"]
    assert steps["port"]
    assert found["target"] == "service default/shop port http"


@pytest.mark.parametrize("target", ["service/secret.other", "service/secret", "service/none.other"])
async def test_services_of_other_namespaces_are_not_there_for_a_tenant(api: Api, target: str) -> None:
    await scene(api)
    tenant = await api.client(await api.token("viewer", "user:ani", ("default",)))
    with pytest.raises((NotFound, Forbidden)) as caught:
        await tenant.call("GET", "/v1/explain/traffic", dict[str, Any], query={"source": "web-0", "target": target})
    assert "number" not in str(caught.value)
    with pytest.raises((NotFound, Forbidden)):
        await tenant.call("GET", "/v1/services/secret/traffic", dict[str, Any], query={"namespace": "other"})


async def test_an_absent_and_a_hidden_service_look_the_same(api: Api) -> None:
    await scene(api)
    tenant = await api.client(await api.token("viewer", "user:ani", ("default",)))
    answers = []
    for name in ("secret", "absent"):
        query = {"source": "web-0", "target": f"service/{name}.other"}
        with pytest.raises((NotFound, Forbidden)) as caught:
            await tenant.call("GET", "/v1/explain/traffic", dict[str, Any], query=query)
        answers.append((type(caught.value), str(caught.value).replace(name, "NAME")))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("target", ["web-0", "node/n1", "/", "10.0.0.1:80"])
async def test_a_target_is_a_service_or_an_instance(api: Api, target: str) -> None:
    await scene(api)
    viewer = await api.client(await api.token("viewer", "user:ani"))
    with pytest.raises(Invalid):
        await viewer.call("GET", "/v1/explain/traffic", dict[str, Any], query={"source": "web-0", "target": target})
