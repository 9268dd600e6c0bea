"""SecretUsers: which workloads a change of a secret concerns."""

from __future__ import annotations

from msgspec.structs import replace

from mandor.controllers.secret_users import SecretUsers
from mandor.model.group import Group
from mandor.model.meta import Key, Meta, Object
from mandor.model.secret import Secret, SecretSpec, SecretStatus
from mandor.model.secret_change import restart_secrets
from mandor.model.task import Task
from mandor.model.workload import Workload, WorkloadSpec
from mandor.store.base import Change


def make(*secrets: str, name: str = "web", namespace: str = "default") -> Workload:
    task = Task(command=("true",), secrets={each.upper(): f"{each}/key" for each in secrets}, on_change="restart")
    meta = Meta(name=name, namespace=namespace, uid=name)
    return Workload(meta=meta, spec=WorkloadSpec(groups={"main": Group(replicas=1, tasks={"main": task})}))


def secret(name: str, changes: int = 0, *, namespace: str = "default", text: str = "sealed") -> Secret:
    spec = SecretSpec(sealed={"key": text})
    return Secret(meta=Meta(name=name, namespace=namespace, uid=name), spec=spec, status=SecretStatus(changes=changes))


def change(before: Object | None, after: Object | None) -> Change:
    return Change(1, before, after)


def users_of(users: SecretUsers, name: str, *, namespace: str = "default") -> list[Key]:
    return list(users.observe_secret(change(None, secret(name, namespace=namespace))))


def test_a_changed_value_concerns_the_workloads_of_its_namespace_that_use_the_secret() -> None:
    users = SecretUsers(restart_secrets)
    web, other = make("db", "mail"), make("mail", name="other")
    for each in (web, other, make("db", namespace="elsewhere")):
        assert users.observe_workload(change(None, each)) == (each.key,)
    assert users.observe_secret(change(secret("db"), secret("db", 1))) == (web.key,)
    assert users.observe_secret(change(secret("mail"), secret("mail", 1))) == (web.key, other.key)


def test_a_secret_that_is_sealed_again_or_deleted_concerns_no_workload() -> None:
    users = SecretUsers(restart_secrets)
    users.observe_workload(change(None, make("db")))
    assert users.observe_secret(change(secret("db"), secret("db", text="other key"))) == ()
    assert users.observe_secret(change(secret("db"), None)) == ()


def test_a_workload_that_no_longer_uses_a_secret_leaves_the_index_of_that_secret() -> None:
    users = SecretUsers(restart_secrets)
    before, after = make("db", "mail"), make("mail")
    users.observe_workload(change(None, before))
    assert users.observe_workload(change(before, after)) == (after.key,)
    assert users_of(users, "db") == []
    assert users_of(users, "mail") == [after.key]
    assert users.names(after.key) == {"mail"}


def test_a_workload_without_secrets_or_a_deleted_one_leaves_the_index() -> None:
    for after in (make(), None):
        users, before = SecretUsers(restart_secrets), make("db")
        users.observe_workload(change(None, before))
        assert users
        assert users.observe_workload(change(before, after)) == ()
        assert before.key not in users
        assert not users
        assert users.names(before.key) == frozenset()
        assert users_of(users, "db") == []


def test_a_change_of_the_status_alone_reconciles_no_workload() -> None:
    users, before = SecretUsers(restart_secrets), make("db")
    users.observe_workload(change(None, before))
    assert users.observe_workload(change(before, before.changed(status=replace(before.status, message="new")))) == ()
