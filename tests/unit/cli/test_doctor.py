"""What `mandor doctor` finds in what servers and objects say."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

import pytest

from mandor.cli import checkup
from mandor.cli.checkup import Finding, Level
from mandor.cli.main import run
from mandor.client.sync import Examined
from tests.unit.cli.web import Answering, serving

NOW = 1_800_000_000.0
DAY = 86_400.0


def thing(name: str, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {"meta": {"name": name, "created_at": NOW - 1000}, "spec": spec or {}, "status": status}


def health(*, ahead: float = 0.0, seconds: float = 0.01, until: str = "", notes: tuple[str, ...] = ()) -> Examined:
    return Examined({"notes": list(notes)}, seconds, formatdate(NOW + ahead, usegmt=True), until)


def told(findings: list[Finding], level: Level) -> list[str]:
    return [f"{each.about}: {each.says}" for each in findings if each.level is level]


def test_a_sound_server_is_one_line() -> None:
    found = list(checkup.of_server("s1", health(until="Jan  1 00:00:00 2037 GMT"), "0.1", "0.1", NOW))
    assert [(each.level, each.says) for each in found] == [(Level.OK, "ready in 10 ms, version 0.1")]


@pytest.mark.parametrize(
    ("seen", "version", "says"),
    [
        (health(ahead=60), "0.1", "the clock is 60 s ahead of this machine's"),
        (health(ahead=-60), "0.1", "the clock is 60 s behind this machine's"),
        (health(seconds=3), "0.1", "took 3.0 s to respond"),
        (health(notes=("plugin x hangs",)), "0.1", "plugin x hangs"),
        (health(until=time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(NOW + 3 * DAY))), "0.1", "in 3 days"),
        (health(), "0.2", "version 0.2 differs from this program's version 0.1"),
    ],
)
def test_what_is_wrong_with_a_server_is_a_warning(seen: Examined, version: str, says: str) -> None:
    (found,) = checkup.of_server("s1", seen, version, "0.1", NOW)
    assert found.level is Level.WARNING
    assert says in found.says


def test_a_certificate_that_has_ended_is_a_problem() -> None:
    (found,) = checkup.of_server("s1", health(until="Jan  1 00:00:00 2020 GMT"), "0.1", "0.1", NOW)
    assert found.level is Level.PROBLEM


def lease(name: str, renewals: int, address: str = "http://a:1") -> dict[str, Any]:
    return thing(name, {"holder": "s1", "seconds": 5.0, "renewals": renewals, "address": address})


def test_only_a_lease_that_is_renewed_leads() -> None:
    before = [lease("leader-scheduler", 3), lease("leader-controllers", 7)]
    after = [lease("leader-scheduler", 4), lease("leader-controllers", 7)]
    found = list(checkup.of_leases(before, after, ["http://a:1"]))
    assert told(found, Level.OK) == ["scheduler: leader: http://a:1"]
    assert told(found, Level.PROBLEM) == ["controllers: no leader: its work is not done"]


def test_a_scheduler_of_some_pools_is_one() -> None:
    names = ("leader-scheduler.gpu", "leader-controllers")
    found = checkup.of_leases([lease(name, 1) for name in names], [lease(name, 2) for name in names], [])
    assert told(list(found), Level.PROBLEM) == []


def test_a_server_that_this_program_does_not_know_is_named() -> None:
    names = ("leader-scheduler", "leader-controllers", "server-s2")
    before, after = ([lease(name, turn, "http://b:1") for name in names] for turn in (1, 2))
    found = list(checkup.of_leases(before, after, ["http://a:1"]))
    assert [each.about for each in found if "MANDOR_SERVER" in each.do] == ["server http://b:1"]


def test_each_fault_of_a_node_is_reported() -> None:
    nodes = [
        thing("good", phase="Ready", agent_version="0.1"),
        thing("silent", phase="Lost", reason="no heartbeat for 30 s"),
        thing("lame", phase="Ready", engines={"docker": {"up": False, "message": "no socket"}, "process": {}}),
        thing("full", phase="Ready", pressure=["disk"]),
        thing("mute", phase="Ready", log_sinks={"loki": {"state": "Failing", "message": "refused"}}),
        thing("late", phase="Ready", facts={"clock.ahead": "-40"}),
        thing("old", phase="Ready", agent_version="0.0.9"),
    ]
    found = list(checkup.of_nodes(nodes, "0.1"))
    assert told(found, Level.OK) == ["nodes: 6 of 7 ready"]
    assert told(found, Level.WARNING) == [
        "node silent: Lost: no heartbeat for 30 s",
        "node lame: the engine docker does not respond: no socket",
        "node full: short of disk",
        "node mute: the log sink loki fails: refused",
        "node late: the clock is 40 s behind the server's",
        "node old: the agent has version 0.0.9, the server 0.1",
    ]
    assert all(each.do for each in found if each.level is not Level.OK)


@pytest.mark.parametrize("nodes", [[], [thing("n1", phase="Lost")]])
def test_a_cluster_without_a_ready_node_has_a_problem(nodes: list[dict[str, Any]]) -> None:
    assert len(told(list(checkup.of_nodes(nodes, "0.1")), Level.PROBLEM)) == 1


def test_tokens_that_end_soon_are_reported() -> None:
    ends = {"never": 0.0, "later": NOW + 90 * DAY, "soon": NOW + 2 * DAY, "over": NOW - 1}
    spec = {"identity": "user:ani", "role": "operator"}
    tokens = [thing(name, {**spec, "expires_at": at}) for name, at in ends.items()]
    found = list(checkup.of_tokens(tokens, NOW))
    assert told(found, Level.WARNING) == [
        "token soon: the token of user:ani expires in 2 days",
        "token over: the token of user:ani has expired",
    ]


def test_a_nodes_own_token_is_reported_only_if_its_agent_did_not_renew_it_in_time() -> None:
    ends = {"node.n1": NOW + 2000, "node.n2": NOW + 100}
    tokens = [thing(name, {"identity": "node:n", "role": "node", "expires_at": at}) for name, at in ends.items()]
    [found] = checkup.of_tokens(tokens, NOW)
    assert found.about == "token node.n2"
    assert found.says.endswith("and was not renewed in time")
    assert "agent" in found.do


def test_only_what_has_waited_long_is_reported() -> None:
    new = thing("new-0")
    new["meta"]["created_at"] = NOW - 10
    leaving = thing("leaving-0", {"stop": {"reason": "enough"}})
    found = list(checkup.of_instances([new, leaving, thing("old-0"), thing("web-0", phase="Running")], NOW))
    assert told(found, Level.OK) == ["instances: 3 Pending, 1 Running"]
    assert told(found, Level.WARNING) == ["instances: 1 have been pending for more than five minutes: old-0"]


def test_receivers_and_inventories_that_fail_are_reported() -> None:
    hooks = [thing("a", failures=3, message="timed out"), thing("b")]
    assert told(list(checkup.of_receivers("webhook", hooks)), Level.WARNING) == [
        "webhook a: 3 consecutive deliveries failed: timed out"
    ]
    assert told(
        list(checkup.of_inventories([thing("i", failures=1, error="no route"), thing("j")])), Level.WARNING
    ) == ["inventory i: 1 consecutive reads failed: no route"]


def test_certificates_of_routes_that_fail_or_expire_are_reported_once_per_host() -> None:
    def route(name: str, host: str, **certificate: Any) -> dict[str, Any]:
        meta, spec = {"name": name, "namespace": "default"}, {"host": host}
        return {"meta": meta, "spec": spec, "status": {"certificate": certificate}}

    routes = [
        route("a", "a.example", message="no account"),
        route("a2", "a.example", message="no account"),
        route("b", "b.example", secret="tls-b", not_after=NOW + 7200, message="away"),
        route("c", "c.example", secret="tls-c", not_after=NOW - 1, message="away"),
        route("d", "d.example", secret="tls-d", not_after=NOW + 7200),
        route("e", "e.example", secret="tls-e", not_after=NOW + 40 * 86_400),
        {"meta": {"name": "f"}, "spec": {}},
    ]
    found = list(checkup.of_routes(routes, NOW))
    assert told(found, Level.WARNING) == [
        "certificate of a.example: there is none: no account",
        "certificate of b.example: it expires in 2 h: away",
        "certificate of d.example: it expires in 2 h: its renewal is late: "
        "check the log of the server that leads the controllers",
    ]
    assert told(found, Level.PROBLEM) == ["certificate of c.example: it has expired: away"]


def test_a_server_that_is_away_is_a_problem_and_the_rest_is_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    class Stopping(Answering):
        status, body = 503, b'{"code": "unavailable", "status": 503, "detail": "the server is stopping"}'

    with serving(Stopping) as url:
        assert run(["--server", url, "doctor"]) == 1
    shown = capsys.readouterr()
    assert "cannot serve: the server is stopping" in shown.out
    assert shown.err.strip() == "1 problem, no warnings"


def entry(version: str, address: str, *features: str) -> dict[str, Any]:
    return {"meta": {"name": address}, "spec": {"version": version, "address": address, "features": list(features)}}


@pytest.mark.req("S0-19")
def test_mixed_versions_are_reported_and_what_waits_for_the_upgrade() -> None:
    assert list(checkup.of_servers([])) == []
    (same,) = checkup.of_servers([entry("0.1.0", "http://a"), entry("0.1.0", "http://b")])
    assert (same.level, same.says) == (Level.OK, "2 with version 0.1.0")
    (mixed,) = checkup.of_servers([entry("0.1.0", "http://a", "x"), entry("0.2.0", "http://b", "x", "racks")])
    assert mixed.level is Level.WARNING
    assert "0.1.0 at http://a; 0.2.0 at http://b" in mixed.says
    assert "not used until every server supports it: racks" in mixed.says
    (far,) = checkup.of_servers([entry("0.1.0", "http://a"), entry("0.3.0", "http://b")])
    assert far.level is Level.PROBLEM
    assert "too far apart" in far.says


@pytest.mark.req("S0-19")
def test_an_agent_too_far_from_its_server_is_a_problem() -> None:
    def node(version: str) -> dict[str, Any]:
        return {"meta": {"name": "n1"}, "status": {"phase": "Ready", "agent_version": version}}

    told = {version: list(checkup.of_nodes([node(version)], "0.3.0"))[-1] for version in ("0.2.0", "0.1.0", "0.4.0")}
    assert [each.level for each in told.values()] == [Level.WARNING, Level.PROBLEM, Level.WARNING]
    assert "cannot join again" in told["0.1.0"].do
    assert told["0.4.0"].do == "upgrade the servers"


@pytest.mark.req("S4-8")
def test_keys_of_an_inventory_that_are_not_understood_are_a_warning() -> None:
    listed = {"meta": {"name": "machines"}, "status": {"machines": 2, "unknown": ["rack (2 machines)"]}}
    (found,) = checkup.of_inventories([listed])
    assert (found.level, found.about) == (Level.WARNING, "inventory machines")
    assert found.says == "keys of the list are not understood: rack (2 machines)"
    assert list(checkup.of_inventories([{**listed, "status": {"machines": 2}}])) == []


def test_servers_with_different_keys_for_secrets_are_reported() -> None:
    def server(address: str, *keys: str) -> dict[str, Any]:
        found = entry("0.1.0", address)
        found["spec"]["keys"] = list(keys)
        return found

    same = checkup.of_servers([server("http://a", "k1", "k2"), server("http://b", "k2", "k1")])
    assert told(list(same), Level.WARNING) == []
    found = list(checkup.of_servers([server("http://a", "k1"), server("http://b", "k2")]))
    assert told(found, Level.WARNING) == [
        "servers: their keys for secrets differ: http://a has k1; http://b has k2",
    ]
    assert "secrets.key" in found[0].do


def test_held_instances_are_reported_with_the_command_that_stops_them() -> None:
    (_, found) = checkup.of_nodes([thing("n1", phase="Ready", facts={"held": "2: web-5, db-0"})], "0.1")
    assert found.level is Level.WARNING
    assert found.says == "runs 2 instances that the cluster does not list, and leaves them as they are: web-5, db-0"
    assert "`mandor stop-held n1`" in found.do


def test_instances_without_a_secret_are_reported_with_the_refusal() -> None:
    blocked = [
        thing("web-0", phase="Reserved", reason="SecretUnavailable", message="was sealed with the key k9"),
        thing("web-1", phase="Reserved", reason="SecretUnavailable", message="was sealed with the key k9"),
        thing("db-0", phase="Reserved", reason="SecretMissing", message="secret db does not exist"),
        thing("ok-0", phase="Running"),
    ]
    found = list(checkup.of_instances(blocked, NOW))
    assert told(found, Level.WARNING) == [
        "instances: 2 cannot start without a secret, such as web-0: was sealed with the key k9",
        "instances: 1 cannot start without a secret, such as db-0: secret db does not exist",
    ]


def test_pools_whose_orders_fail_or_whose_machines_stay_are_reported() -> None:
    trouble = {"small": {"failures": 3, "until": NOW, "message": "the certificate is not trusted"}}
    machines = [{"id": "burst-1", "phase": "Leaving", "at": NOW - 3600}, {"id": "b-2", "phase": "Leaving", "at": NOW}]
    scaling = {"trouble": trouble, "machines": machines, "message": "burst-1 cannot be deleted: refused"}
    found = list(checkup.of_pools([thing("burst", scaling=scaling), thing("idle", scaling={}), thing("plain")], NOW))
    assert told(found, Level.WARNING) == [
        "node-pool burst: 3 consecutive orders of small failed: the certificate is not trusted",
        "node-pool burst: 1 machines cannot be deleted: burst-1 cannot be deleted: refused",
    ]
    assert "mandor pool forget burst" in found[1].do


def test_join_tokens_are_not_reported() -> None:
    spec = {"identity": "join:n1", "role": "join", "expires_at": NOW + 600}
    assert list(checkup.of_tokens([thing("join", spec), thing("old", {**spec, "expires_at": NOW - 5})], NOW)) == []
