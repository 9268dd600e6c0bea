"""Secrets of Kubernetes: objects with values, references everywhere else, and values nowhere else."""

from __future__ import annotations

import pytest

from tests.unit.importers.kubernetes.imports import imported, only, pod, told

SECRET = """
apiVersion: v1
kind: Secret
metadata: {name: db, labels: {app: db}}
type: Opaque
data: {user: c2hvcA==, password: czNjcmV0}
stringData: {user: admin}
"""


@pytest.mark.req("S0-32")
def test_a_secret_is_an_object_with_its_values() -> None:
    manifest = {"kind": "secret", "name": "db", "labels": {"app": "db"}}
    assert only(SECRET) == {**manifest, "data": {"user": "admin", "password": "s3cret"}}


@pytest.mark.req("S0-32")
def test_variables_and_files_refer_to_it_and_hold_no_value() -> None:
    container = """
env:
- {name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}
- {name: PLAIN, value: x}
envFrom: [{prefix: DB_, secretRef: {name: db}}]
volumeMounts: [{name: keys, mountPath: /keys}, {name: all, mountPath: /all}]
"""
    volumes = """
volumes:
- {name: keys, secret: {secretName: db, defaultMode: 0400, items: [{key: password, path: p, mode: 0440}]}}
- {name: all, projected: {sources: [{secret: {name: db}}]}}
"""
    found = imported(SECRET, pod(volumes, container))
    web = found.made[-1].manifest
    assert web["env"] == {"PLAIN": "x"}
    assert web["secrets"] == {"PASSWORD": "db/password", "DB_password": "db/password", "DB_user": "db/user"}
    assert web["files"] == [
        {"path": "/keys/p", "secret": "db/password", "mode": "0440"},
        {"path": "/all/password", "secret": "db/password"},
        {"path": "/all/user", "secret": "db/user"},
    ]
    assert "s3cret" not in str(web)
    assert found.report.notes == ()


def test_the_last_to_name_a_variable_counts() -> None:
    container = """
envFrom: [{secretRef: {name: db}}]
env: [{name: user, value: me}, {name: late, value: x}, {name: late, valueFrom: {secretKeyRef: {name: db, key: user}}}]
"""
    web = imported(SECRET, pod("", container)).made[-1].manifest
    assert (web["env"], web["secrets"]) == ({"user": "me"}, {"password": "db/password", "late": "db/user"})


def test_a_secret_that_is_not_among_the_files_has_to_be_there() -> None:
    found = imported(pod("", "env: [{name: S, valueFrom: {secretKeyRef: {name: gone, key: k}}}]"))
    assert found.made[0].manifest["secrets"] == {"S": "gone/k"}
    (text,) = told(found).values()
    assert text == "it is not among these files: a secret gone must exist"


def test_a_key_that_a_secret_lacks_is_reported() -> None:
    found = imported(SECRET, pod("", "env: [{name: S, valueFrom: {secretKeyRef: {name: db, key: k}}}]"))
    assert "secrets" not in found.made[-1].manifest
    assert "the Secret db has no k in these files" in told(found).values()


def test_a_secret_is_put_into_other_variables_and_not_into_commands() -> None:
    container = """
args: [--password=$(P), $(URL)]
env:
- {name: P, valueFrom: {secretKeyRef: {name: db, key: password}}}
- {name: URL, value: "postgres://me:$(P)@db"}
"""
    found = imported(SECRET, pod("", container))
    web = found.made[-1].manifest
    assert web["args"] == ["--password=$(P)", "$(URL)"]
    assert web["env"] == {"URL": "postgres://me:${secret:db/password}@db"}
    assert [path.rpartition("spec.")[2] for path in told(found)] == ["containers[0].args[0]", "containers[0].args[1]"]


def test_what_is_no_text_is_left_out_and_no_value_is_reported() -> None:
    found = imported("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {bad: '%%%', bin: /w==, ok: b2s=}\n")
    assert found.made[0].manifest["data"] == {"ok": "ok"}
    assert [note.text for note in found.report.notes] == [
        "bad is no text in base64, and is left out",
        "bin is no text in base64, and is left out",
    ]


def test_a_token_that_kubernetes_makes_is_reported() -> None:
    text = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ntype: kubernetes.io/service-account-token\n"
    found = imported(text)
    assert (found.made, list(told(found).values())) == ((), ["tokens of service accounts are not made here"])
