"""The OpenAPI document: true to the routes, valid, and kept by a running server whatever it is asked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.generation.hypothesis.builder import (
    InvalidHeadersExampleMark,
    InvalidRegexMark,
    MissingPathParameters,
    NonSerializableMark,
    UnsatisfiableExampleMark,
    UnserializablePayloadMark,
)
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from mandor.api.app import OPERATIONS, build_app, openapi_json
from mandor.api.heartbeat import Heartbeats
from mandor.api.parts import ApiParts
from mandor.api.settings import ApiSettings
from mandor.lib.clock import SystemClock
from mandor.store.memory import MemoryStore
from tests.api.conftest import Api

DOCUMENT: dict[str, Any] = json.loads(openapi_json())


@pytest.mark.req("S0-35")
def test_every_route_is_in_the_document_and_every_path_is_a_route() -> None:
    store, clock = MemoryStore(), SystemClock()
    app = build_app(ApiParts(store, clock, Heartbeats(store, clock, "s1", ""), ApiSettings()))
    served = {route.path for route in app.routes if type(route).__name__ == "Route"}  # type: ignore[attr-defined]
    panel = {"/", "/ui", "/ui/{rest:path}"}
    assert served - {"/{rest:path}", "/docs", "/openapi.json"} - panel == set(DOCUMENT["paths"])
    told = {(method.upper(), path) for path, each in DOCUMENT["paths"].items() for method in each}
    assert told == {(each.method, each.path) for each in OPERATIONS}


def test_operation_ids_are_unique() -> None:
    names = [each["operationId"] for path in DOCUMENT["paths"].values() for each in path.values()]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere() -> None:
    references = set(re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)))
    assert references
    assert references <= set(DOCUMENT["components"]["schemas"])


def test_every_schema_is_a_valid_json_schema() -> None:
    for name in DOCUMENT["components"]["schemas"]:
        jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})


@pytest.mark.req("S4-17")
async def test_the_page_of_documentation_needs_no_internet(dev: Api) -> None:
    session = await dev.session()
    async with session.get("/docs") as answer:
        page = await answer.text()
        policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "/openapi.json" in page
    assert "validatorUrl: null" in page
    # What the browser would load is in the page itself.
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?(?:https?:)?//", page)


async def test_a_schema_for_manifests_is_served(dev: Api) -> None:
    schema = await (await dev.client()).call("GET", "/v1/schema", dict)
    jsonschema_rs.validator_for(schema).validate({"name": "web", "image": "nginx"})
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validator_for(schema).validate({"name": "web", "imge": "nginx"})


# schemathesis asks a server in a process of its own whatever the document allows, and more.

SERVER = """
import asyncio, sys
sys.path.insert(0, {root!r})
from mandor.api.settings import ApiSettings
from mandor.model.meta import Meta
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_instance, make_node, make_workload
from tests.api.conftest import running_api

async def simulated(scenario, seeds):  # what a scenario comes to is another test's: it would begin a process each time
    return b"null", scenario

async def main():
    store = MemoryStore()
    await store.commit(
        Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1"))),
        Put(make_node("n1")), Put(make_workload("web", app="shop")), Put(make_instance("web-0")),
    )
    settings = ApiSettings(tokens_required=False, writes_burst=10**9, dial_seconds=0.1, watches_most=4)
    async with running_api(store, settings, simulate=simulated) as api:
        print(api.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(root=root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    told: list[str] = []
    reading = threading.Thread(target=lambda: told.extend(process.stderr))  # type: ignore[arg-type]
    reading.start()
    found = process.stdout.readline().strip()
    assert found, told
    yield found
    process.stdin.close()
    assert process.wait(30) == 0
    reading.join()
    process.stdout.close()
    process.stderr.close()
    assert not [line for line in told if "Traceback" in line], "".join(told)


load_all_checks()
schema = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
ENDLESS = {"/v1/watch"}
"""These answer for ever, which schemathesis would wait for; test_watch.py has them."""


LIKE_THE_OTHERS = re.compile(r"^(list|get)_(?!workload|token)")
"""Kinds share their code: what is tried at every edge for one need not be for the other eleven."""

BOUNDED = settings(
    deadline=None, derandomize=True, database=None, max_examples=5, suppress_health_check=list(HealthCheck)
)


FEEDBACK = FeedbackSources(constants_value_source=make_constants_value_source(schema))
LEFT_UNTRIED = (
    InvalidHeadersExampleMark,
    InvalidRegexMark,
    MissingPathParameters,
    NonSerializableMark,
    UnsatisfiableExampleMark,
    UnserializablePayloadMark,
)


def by_label(some: schemathesis.BaseSchema) -> dict[str, schemathesis.APIOperation[Any, Any, Any, Any]]:
    return {each.label: each for each in (found.ok() for found in some.get_all_operations() if isinstance(found, Ok))}


ANSWERED = by_label(schema.exclude(path=sorted(ENDLESS)))
WITH_EDGES = by_label(schema.exclude(path=sorted(ENDLESS)).exclude(operation_id_regex=LIKE_THE_OTHERS))


def ask_all(operation: schemathesis.APIOperation[Any, Any, Any, Any], url: str, phase: Phase) -> None:
    """`schema.parametrize()` thinks of every case when tests are collected, which every worker does: this is later."""

    @settings(BOUNDED, phases=[phase])
    def ask(case: schemathesis.Case[Any]) -> None:
        case.validate_response(case.call(base_url=url, timeout=20), checks=CHECKS)

    test = build_operation_test(
        config=schema.config, operation=operation, test_func=ask, given_kwargs={}, feedback=FEEDBACK
    )
    assert not [mark for mark in LEFT_UNTRIED if mark.is_set(test)]
    test()


@pytest.mark.parametrize("label", ANSWERED)
@pytest.mark.req("S2-10", "S2-12")
@pytest.mark.req("S0-35")
def test_every_operation_keeps_what_the_document_promises(label: str, url: str) -> None:
    ask_all(ANSWERED[label], url, Phase.generate)


@pytest.mark.parametrize("label", WITH_EDGES)
@pytest.mark.req("S2-12")
def test_the_limits_of_every_parameter_are_enforced(label: str, url: str) -> None:
    ask_all(WITH_EDGES[label], url, Phase.explicit)


def test_every_operation_that_ends_is_asked() -> None:
    assert len(ANSWERED) == len(OPERATIONS) - len(ENDLESS)
    assert WITH_EDGES.keys() < ANSWERED.keys()


def test_the_reference_page_is_what_the_code_shows() -> None:
    from scripts.api_reference import PAGE, page

    assert PAGE.read_text() == page(), "run scripts/api_reference.py"
