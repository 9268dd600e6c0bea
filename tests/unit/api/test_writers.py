"""One writer per field, as a table that can be read: who changes what, by identity."""

import msgspec
import pytest

from mandor.api.caller import Caller
from mandor.api.writers import changed_fields, check_write
from mandor.errors import Forbidden
from mandor.model.codec import KINDS
from mandor.model.instance import InstanceStatus
from mandor.model.meta import Meta, TraceMark
from mandor.model.phase import Phase
from mandor.model.record import Role
from mandor.model.volume import Volume, VolumeStatus
from mandor.model.workload import WorkloadStatus
from mandor.testing.store import make_instance, make_node, make_workload

ALL: list[tuple[Role, str]] = [
    ("admin", "user:a"),
    ("operator", "user:o"),
    ("viewer", "user:v"),
    ("node", "node:n1"),
    ("join", "join:x"),
    ("component", "component:scheduler"),
    ("component", "component:controllers"),
]


def who_may(before: object, after: object) -> set[str]:
    allowed = set()
    for role, identity in ALL:
        try:
            check_write(Caller(identity, role), before, after)  # type: ignore[arg-type]
        except Forbidden:
            continue
        allowed.add(identity.partition(":")[2])
    return allowed


def test_each_field_of_an_instance_has_its_writers() -> None:
    free = make_instance("web-0").stamped(version=1, uid="u1")
    bound = free.bound("n1", at=1.0)
    running = bound.changed(status=InstanceStatus(phase=Phase.RUNNING))
    assert who_may(None, make_instance("web-0")) == {"controllers"}
    assert who_may(free, None) == {"controllers"}
    assert who_may(free, bound) == {"scheduler"}
    assert who_may(bound, bound.stopping("x")) == {"a", "o", "scheduler", "controllers"}
    assert who_may(bound, bound.changed(spec=msgspec.structs.replace(bound.spec, release="web.2"))) == {"controllers"}
    starting = InstanceStatus(phase=Phase.STARTING)
    assert who_may(bound, bound.changed(status=starting)) == {"n1", "scheduler", "controllers"}
    replaced = make_instance("web-0").stamped(version=1)
    assert who_may(running, replaced) == {"controllers"}


def test_callers_cannot_set_the_trace_of_an_object() -> None:
    mark = TraceMark("00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    for made in (make_instance("web-0"), make_workload("web")):
        stored = made.stamped(version=1, uid="u1")
        marked = stored.changed(meta=msgspec.structs.replace(stored.meta, trace=mark))
        assert "meta.trace" in changed_fields(stored, marked)
        assert not who_may(stored, marked) & {"a", "o", "v", "n1", "x"}


def test_each_field_of_a_volume_has_its_writers() -> None:
    new = Volume(meta=Meta(name="data", namespace="default"))
    free = new.stamped(version=1, uid="u1")
    placed = free.changed(status=VolumeStatus(node="n1", workload="web"))
    assert who_may(None, new) == {"a", "o", "scheduler", "controllers"}
    assert who_may(free, None) == {"a", "o", "scheduler", "controllers"}
    assert who_may(free, placed) == {"scheduler", "controllers"}
    assert who_may(placed, placed.changed(status=VolumeStatus(node="n1", workload="web", path="/x"))) == {
        "n1",
        "controllers",
    }
    elsewhere = free.changed(status=VolumeStatus(node="n2", workload="web"))
    assert who_may(elsewhere, elsewhere.changed(status=VolumeStatus(node="n2", workload="web", path="/x"))) == {
        "controllers"
    }
    assert who_may(placed, placed.changed(status=VolumeStatus(phase="Bound", node="n1", workload="web"))) == {
        "controllers"
    }


def test_each_field_of_a_workload_has_its_writers() -> None:
    web = make_workload("web").stamped(version=1, uid="u1")
    assert who_may(None, make_workload("web")) == {"a", "o"}
    assert who_may(web, None) == {"a", "o"}
    assert who_may(web, web.changed(spec=msgspec.structs.replace(web.spec, priority=5))) == {"a", "o"}
    assert who_may(web, web.changed(status=WorkloadStatus(phase="Running"))) == {"controllers"}
    run = make_workload("web-1").changed(spec=msgspec.structs.replace(web.spec, run_of="web"))
    begun = run.stamped(version=1, uid="u2")
    assert who_may(None, run) == {"a", "o", "controllers"}
    assert who_may(begun, None) == {"a", "o", "controllers"}
    assert who_may(begun, begun.changed(spec=msgspec.structs.replace(begun.spec, priority=5))) == {"a", "o"}
    busy = make_workload("web").changed(status=WorkloadStatus(phase="Running", running=3))
    assert who_may(None, busy) == set()


def test_only_an_admin_makes_and_removes_nodes_by_hand() -> None:
    node = make_node("n1").stamped(version=1, uid="u1")
    assert who_may(None, make_node("n1")) == {"a"}
    assert who_may(node, None) == {"a", "controllers"}, "who gives machines back"
    assert who_may(node, node.changed(spec=msgspec.structs.replace(node.spec, cordoned=True))) == {"a", "o"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_viewer_and_a_join_token_write_nothing_of_any_kind(kind: str) -> None:
    from mandor.api.writers import rights_of

    assert kind not in rights_of(Caller("user:v", "viewer"))
    assert kind not in rights_of(Caller("join:x", "join"))


def test_users_never_write_what_the_cluster_keeps_about_itself() -> None:
    from mandor.api.writers import rights_of

    kept = {"release", "event", "audit", "token", "session", "lease", "hearing", "cluster"}
    assert not kept & set(rights_of(Caller("user:a", "admin")))


def test_a_namespace_of_others_is_not_written() -> None:
    caller = Caller("user:a", "admin", frozenset({"team"}))
    check_write(caller, None, make_workload("web", namespace="team"))
    for value in (make_workload("web", namespace="other"), make_node("n1")):
        with pytest.raises(Forbidden):
            check_write(caller, None, value)


def test_changed_fields_are_in_order() -> None:
    free = make_instance("web-0").stamped(version=1, uid="u1")
    assert changed_fields(free, free) == []
    assert changed_fields(free, None) == ["existence"]
    assert changed_fields(free, free.bound("n1", at=1.0)) == ["spec.node", "status.phase", "status.since"]
    assert changed_fields(None, make_node("n1", zone="a")) == ["existence", "meta.labels"]


def test_the_controllers_clear_tokens_and_audits_away_but_make_none() -> None:
    from mandor.api.auth import make_token

    token, _ = make_token("admin", "user:evil")
    assert who_may(None, token) == set()
    assert who_may(token.stamped(version=1, uid="u1"), None) == {"controllers"}
