"""Hostile inputs: a real server process refuses each of them, and answers health checks while it works on it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from mandor.errors import Invalid, MandorError
from mandor.importers.base import Options, Source
from mandor.importers.mixed import read_mixed
from mandor.lib.cron import Cron
from mandor.lib.words import did_you_mean
from mandor.model.manifest import load_files
from tests.e2e.cluster import Cluster

pytestmark = pytest.mark.slow

MIB = 1 << 20
ANSWER_SECONDS = 120.0
HEALTH_SECONDS = 20.0
YAML, JSON, PATCH = "application/yaml", "application/json", "application/merge-patch+json"


def job(expression: str, before: str = "") -> bytes:
    lines = (
        *(before, 'job "a" {', 'group "a" {', 'task "a" {', 'driver = "docker"', 'config { image = "nginx" }'),
        *("env {", f"X = {expression}", "}", "}", "}", "}", ""),
    )
    return "\n".join(lines).encode()


def doubling(first: str, more: str, last: str, levels: int = 40) -> str:
    """Locals of which each holds the one before several times."""
    made = [f"  a0 = {first}"]
    made += [f"  a{level} = {more.replace('@', f'local.a{level - 1}')}" for level in range(1, levels)]
    return "locals {\n" + "\n".join(made) + f"\n  {last.replace('@', f'local.a{levels - 1}')}\n}}\n"


EXPRESSIONS = {
    "a power": "pow(9,99999999)",
    "a power of powers": "pow(9,pow(9,9))",
    "a range": "range(0,400000000)",
    "a range of huge numbers": "range(0,1e29,1)",
    "a width": 'format("%999999999d", 1)',
    "a precision": 'format("%.99999999f", 1)',
    "a backtracking search": f'regex("(a+)+$", "{"a" * 5000}!")',
    "backtracking searches": f'regexall("(a|aa)+$", "{"a" * 5000}!")',
    "a backtracking replacement": f'regex("b", regex_replace("{"a" * 5000}!", "(a*)*b", "x"))',
    "a backtracking replacement with slashes": f'regex("b", replace("{"a" * 5000}!", "/(a+)+$/", "x"))',
    "a look-behind": 'regex("(?<=a)b", "ab")',
    "a replacement of nothing": f'replace("{"a" * 50000}", "", "{"b" * 50000}")',
    "a replacement by groups": f'regex_replace("{"a" * 50000}", "(.*)", "{"$1" * 5000}")',
    "a product of sets": f"setproduct({', '.join(['range(0,1000)'] * 9)})",
    "loops in loops": "[for a in range(0,1000): [for b in range(0,1000): [for c in range(0,1000): c]]]",
    "an indentation": 'indent(999999999, "a\\nb")',
    "a shift": 'cidrsubnet("10.0.0.0/8", -999999999, 1)',
    "many digits": f'parseint("{"9" * 200000}", 10)',
    "a number of many digits": f'tonumber("{"9" * 200000}")',
    "deep JSON": f'jsondecode("{"[" * 100000}")',
    "a long sum": "1" + "+1" * 100000,
    "deep brackets": "(" * 60000,
    "a long chain": "a" + ".b" * 60000,
    "a long sign": "-" * 200000 + "1",
}
LOCALS = {
    "doubled lists": (doubling("[1]", "[@, @]", "b = jsonencode(@)"), "local.b"),
    "doubled lists in the job": (doubling("[1]", "[@, @]", "b = @"), "local.b"),
    "doubled texts": (doubling('"aaaaaaaaaa"', '"${@}${@}"', "b = @"), "local.b"),
    "doubled joins": (doubling('"aaaaaaaaaa"', 'join("", [@, @])', "b = @"), "local.b"),
    "doubled concatenations": (doubling("[1]", "concat(@, @)", "b = @"), "length(local.b)"),
    "squared numbers": (doubling("9", "@ * @", "b = @"), "local.b"),
    "locals in the wrong order": (
        "locals {\n" + "\n".join(f"  a{n} = local.a{n + 1}" for n in range(5000)) + "\n  a5000 = 1\n}\n",
        "local.a0",
    ),
}
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{','.join(['*' + chr(97 + level)] * 9)}]\n" for level in range(9)
)
FOREIGN = {
    **{name: job(text) for name, text in EXPRESSIONS.items()},
    **{name: job(last, before) for name, (before, last) in LOCALS.items()},
    "a service bomb": (
        "x-a: &a [x,x,x,x,x,x,x,x,x]\n" + BOMB + "services: {web: {image: nginx, command: *j}}"
    ).encode(),
    "services that extend each other": b"services: {a: {extends: {service: b}}, b: {extends: {service: a}}}",
    "services that include themselves": b"include: [compose.yaml]\nservices: {}",
    "a deep variable": b"services: {a: {image: '" + b"${A:-" * 30000 + b"}" * 30000 + b"'}}",
    "lines before a job": b"\n" * 200_000 + b"job",
    "blanks before a job": b" " * 200_000 + b"job",
    "a cluster of everything": b"apiVersion: v1\nkind: List\nitems:\n" + b"- {apiVersion: v1, kind: Pod}\n" * 7000,
    "an open comment": b'job "a" {\n' + b"/* " * 60000,
    "open heredocs": b'job "a" {\n' + b"a = <<E\n" * 20000,
}
MANIFEST = "name: a\nimage: b\n"
MANIFESTS = {
    "a bomb of lists": BOMB.encode(),
    "a bomb of texts": f"{MANIFEST}args: [&a '{'a' * 200_000}'{', *a' * 20_000}]".encode(),
    "a bomb of merges": (
        MANIFEST + "env: &a {a: b}\n" + "".join(f"k{n}: {{<<: *a}}\n" for n in range(40_000))
    ).encode(),
    "open lists": b"[" * (MIB - 1),
    "open mappings": b"{" * (MIB - 1),
    "ten megabytes of open lists": b"[" * (10 * MIB),
    "nested dashes": b"- " * (MIB // 2 - 1),
    "an open quote": b'"' + b"a" * (MIB - 3),
    "an endless line": b"a" * (MIB - 10) + b": b",
    "unknown keys": (MANIFEST + "".join(f"k{n}: v\n" for n in range(45_000))).encode(),
    "a long unknown key": f"{MANIFEST}{'replicas' * 60_000}: 1".encode(),
    "a ring of near-rules": "---\n".join(
        f"{MANIFEST.replace('a', f'a{n}', 1)}placement: {{near: [{{workload: a{(n + 1) % 3000}}}]}}\n"
        for n in range(3000)
    )
    .replace("na0me", "name")
    .encode(),
    "a regular expression that looks back": f"{MANIFEST}placement: {{where: ['zone =~ /(a)\\1/']}}".encode(),
    "twenty thousand regular expressions": (
        f"{MANIFEST}placement: {{where: [" + ",".join(f"'zone =~ /(a{n}+)+$/'" for n in range(20_000)) + "]}"
    ).encode(),
    "a number of many digits": f"{MANIFEST}replicas: {'9' * 500_000}".encode(),
    "a number with a huge exponent": f"{MANIFEST}replicas: 1e999999999".encode(),
    "an amount with a huge exponent": f"{MANIFEST}resources: {{memory: 1e999999999}}".encode(),
    "an amount of many digits": f"{MANIFEST}resources: {{memory: '{'9' * 500_000}Gi'}}".encode(),
    "a duration of many parts": f"{MANIFEST}stop: {{grace: '{'1s' * 200_000}x'}}".encode(),
    "the thirtieth of February": f"{MANIFEST}type: batch\nschedule: {{cron: '0 0 30 2 *'}}".encode(),
    "a long cron expression": (
        f"{MANIFEST}type: batch\nschedule: {{cron: '{','.join(['0-59'] * 50_000)} * * * *'}}"
    ).encode(),
    "many cron expressions": f"{MANIFEST}type: batch\nschedule: {{cron: [{'0 0 29 2 1#5,' * 20_000}]}}".encode(),
    "forty thousand labels": f"{MANIFEST}labels: {{{','.join(f'k{n}: v' for n in range(40_000))}}}".encode(),
    "a long name": ("name: " + "a." * 400_000 + "\nimage: b").encode(),
}


def deep(levels: int, opening: str, inside: str, closing: str) -> bytes:
    return (opening * levels + inside + closing * levels).encode()


OBJECTS: dict[str, tuple[str, str, str, bytes]] = {
    "deep lists": ("PUT", "/v1/workloads/a", JSON, b"[" * (2 * MIB)),
    "deep mappings": ("PUT", "/v1/workloads/a", JSON, b'{"spec":' + deep(400, '{"a":', "1", "}") + b"}"),
    "a deep patch": ("PATCH", "/v1/workloads/a", PATCH, b'{"spec":' + deep(900, '{"a":', "1", "}") + b"}"),
    "a deeper patch": ("PATCH", "/v1/workloads/a", PATCH, b'{"spec":' + deep(100_000, '{"a":', "1", "}") + b"}"),
    "a number of many digits": ("PUT", "/v1/workloads/a", JSON, b'{"spec":{"replicas":' + b"9" * MIB + b"}}"),
    "a huge exponent": ("PUT", "/v1/workloads/a", JSON, b'{"spec":{"replicas":1e999999999}}'),
    "an unknown long key": ("PUT", "/v1/workloads/a", JSON, b'{"' + b"s" * MIB + b'":1}'),
    "a deep commit": ("POST", "/v1/commit", JSON, b'{"writes":' + b"[" * MIB),
    "a deep token": ("POST", "/v1/tokens", JSON, b"[" * MIB),
    "a long selector": ("GET", "/v1/workloads?" + urlencode({"labels": "a" * 12_000 + "!"}), "", b""),
    "a selector of brackets": ("GET", "/v1/workloads?" + urlencode({"labels": "a in (" * 1500}), "", b""),
    "a selector of many terms": ("GET", "/v1/workloads?" + urlencode({"labels": ",".join("a" * 4000)}), "", b""),
    "many parameters": ("GET", "/v1/workloads?" + "&".join(f"a{n}=1" for n in range(1000)), "", b""),
    "a deep profile": (
        "POST",
        "/v1/plan",
        JSON,
        json.dumps({"profile": {"name": "p", "text": "[" * 500_000}}).encode(),
    ),
    "a deep scenario": ("POST", "/v1/simulate", YAML, b"nodes: " + b"[" * 500_000),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Cluster(tmp_path_factory.mktemp("hostile")) as cluster:
        cluster.start_server()
        yield cluster.urls[0]


def request(url: str, method: str, path: str, content: str, body: bytes, seconds: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=seconds)
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
            connection.request(method, path, body or None, {"content-type": content} if content else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def attacked(url: str, method: str, path: str, content: str, body: bytes) -> tuple[int, bytes]:
    """The answer to a hostile request, while which health checks were answered one after another."""
    healthy = 0
    with ThreadPoolExecutor(1) as aside:
        attack = aside.submit(request, url, method, path, content, body, ANSWER_SECONDS)
        while not attack.done() or not healthy:
            status, _ = request(url, "GET", "/healthz", "", b"", HEALTH_SECONDS)
            assert status == 200
            healthy += 1
            time.sleep(0.05)  # one address may ask only so often without a token
        return attack.result()


def refused(answer: tuple[int, bytes]) -> Any:
    status, body = answer
    problem = json.loads(body)
    assert 400 <= status < 500, problem
    assert problem["code"]
    assert problem["detail"]
    return problem


FEW = ("a power", "a range", "a backtracking search", "doubled lists")
"""The same code reads the files of a plan and of a deletion."""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *((name, "/v1/apply") for name in FOREIGN),
        *((name, path) for name in FEW for path in ("/v1/plan", "/v1/delete")),
    ],
)
def test_a_hostile_foreign_file_is_refused_and_health_checks_are_answered(server: str, name: str, path: str) -> None:
    refused(attacked(server, "POST", path, YAML, FOREIGN[name]))


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_hostile_manifest_is_refused_and_health_checks_are_answered(server: str, name: str) -> None:
    refused(attacked(server, "POST", "/v1/apply", YAML, MANIFESTS[name]))


@pytest.mark.parametrize("name", OBJECTS)
def test_a_hostile_request_is_refused_and_health_checks_are_answered(server: str, name: str) -> None:
    refused(attacked(server, *OBJECTS[name]))


def test_a_thousand_hostile_files_in_one_request_are_refused(server: str) -> None:
    files = [{"name": f"f{n}.yaml", "text": f"{MANIFEST}k{n}: &a [x]\nb: [{'*a,' * 250}]"} for n in range(1000)]
    refused(attacked(server, "POST", "/v1/apply", JSON, json.dumps({"files": files}).encode()))


# Without a server: what `mandor apply` does with such files on a user's machine.


@pytest.mark.parametrize("name", FOREIGN)
def test_the_same_file_ends_on_the_users_machine_too(name: str) -> None:
    with pytest.raises(MandorError):
        read_mixed([Source("a.nomad", FOREIGN[name].decode())], Options()).load()


def test_a_cron_expression_is_bounded_in_length() -> None:
    with pytest.raises(ValueError, match="at most"):
        Cron([",".join(["0"] * 5000) + " * * * *"])


def test_the_search_for_a_similar_word_is_bounded() -> None:
    known = [f"workload-{number:07}" for number in range(200_000)]
    assert did_you_mean("x" * MIB, known).startswith("there is: ")


def test_a_regular_expression_in_a_rule_is_matched_in_linear_time() -> None:
    with pytest.raises(Invalid):
        load_files([("", f"{MANIFEST}placement: {{where: ['zone =~ /(?=a)/']}}")])
