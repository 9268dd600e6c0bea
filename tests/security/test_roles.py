"""Custom roles: rules decide, a right is granted only by its holder, and lists show no more than `get`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.api.access import may_show, read_scope
from mandor.api.auth import make_token
from mandor.api.caller import Caller
from mandor.api.rights import ADMIN, BUILT_IN, allowed, allowed_on, lacking, narrowed
from mandor.client.aio import Client
from mandor.errors import Forbidden, Invalid, MandorError, NotFound
from mandor.model.codec import KINDS
from mandor.model.meta import Meta
from mandor.model.record import Namespace
from mandor.model.role import VERBS, CustomRole, RoleRule, RoleSpec
from mandor.store.base import ALL, Put
from mandor.store.memory import MemoryStore
from tests.api.conftest import Api

LIMIT = 30.0
WORKLOAD: dict[str, Any] = {
    "spec": {"groups": {"main": {"replicas": 1, "engine": ["process"], "tasks": {"main": {"command": ["sleep", "1"]}}}}}
}


def rule(verbs: str, kinds: str, **more: Any) -> dict[str, Any]:
    return {"verbs": verbs.split(), "kinds": kinds.split(), **more}


async def bearer(api: Api, role: str, namespaces: Sequence[str] = ("*",), identity: str = "user:dev") -> Client:
    """A client with a token of a custom role."""
    token, text = make_token("custom", identity, custom=role, namespaces=tuple(namespaces))
    await api.store.commit(Put(token))
    return await api.client(text)


async def with_role(api: Api, *rules: dict[str, Any], namespaces: Sequence[str] = ("*",)) -> Client:
    """A client whose role has these rules."""
    admin = await api.client(await api.token("admin", "user:root"))
    await admin.call("PUT", "/v1/roles/dev", dict, body={"spec": {"rules": list(rules)}})
    for name in ("team", "other"):
        await admin.call("PUT", f"/v1/namespaces/{name}", dict, body={"spec": {"level": "privileged"}})
    return await bearer(api, "dev", namespaces)


async def test_a_role_allows_its_verbs_on_its_kinds_and_nothing_else(api: Api) -> None:
    dev = await with_role(api, rule("get list create update", "workload", namespaces=["team"], names=["shop-*"]))
    await dev.call("PUT", "/v1/workloads/shop-web?namespace=team", dict, body=WORKLOAD)
    assert await dev.call("GET", "/v1/workloads/shop-web?namespace=team", dict)
    for method, path in [
        ("DELETE", "/v1/workloads/shop-web?namespace=team"),
        ("PUT", "/v1/workloads/bank?namespace=team"),
        ("PUT", "/v1/workloads/shop-web?namespace=other"),
        ("GET", "/v1/instances"),
        ("GET", "/v1/secrets"),
        ("GET", "/v1/nodes"),
        ("GET", "/v1/tokens"),
        ("GET", "/v1/roles"),
        ("GET", "/metrics"),
        ("GET", "/v1/backup"),
        ("GET", "/v1/watch?kind=workload"),
    ]:
        with pytest.raises(Forbidden):
            await dev.call(method, path, dict, body=WORKLOAD if method == "PUT" else None)


@pytest.mark.parametrize(
    "rules",
    [
        [rule("*", "*")],
        [rule("get", "*")],
        [rule("get", "secret")],
        [rule("get list create update", "workload")],
        [rule("get list create update delete", "workload", namespaces=["team"])],
        [rule("get list create update", "workload", namespaces=["team"], names=["shop*"])],
        [rule("create", "token")],
        [rule("read-value", "secret", namespaces=["team"])],
        [rule("exec", "instance", namespaces=["team"])],
        [rule("get", "workload", namespaces=["team"], names=["shop-*"]), rule("backup", "cluster")],
    ],
)
async def test_a_role_cannot_have_more_rights_than_its_author(api: Api, rules: list[dict[str, Any]]) -> None:
    dev = await with_role(
        api,
        rule("get list create update", "workload", namespaces=["team"], names=["shop-*"]),
        rule("get list create update", "role role-binding"),
    )
    with pytest.raises(Forbidden, match="more than"):
        await dev.call("PUT", "/v1/roles/mine", dict, body={"spec": {"rules": rules}})
    with pytest.raises(Forbidden, match="more than"):
        await dev.call("PATCH", "/v1/roles/dev", dict, body={"spec": {"rules": rules}})
    admin = await api.client(await api.token("admin", "user:root"))
    await admin.call("PUT", "/v1/roles/big", dict, body={"spec": {"rules": rules}})
    binding = {"spec": {"role": "big", "users": ["dev"]}}
    with pytest.raises(Forbidden, match="more than"):
        await dev.call("PUT", "/v1/role-bindings/mine", dict, body=binding)


async def test_a_caller_grants_what_it_has(api: Api) -> None:
    dev = await with_role(
        api,
        rule("get list create update", "workload", namespaces=["team"], names=["shop-*"]),
        rule("get create", "role role-binding"),
    )
    less = [rule("get list", "workload", namespaces=["team"], names=["shop-web"])]
    await dev.call("PUT", "/v1/roles/less", dict, body={"spec": {"rules": less}})
    await dev.call("PUT", "/v1/role-bindings/b", dict, body={"spec": {"role": "less", "groups": ["web"]}})


@pytest.mark.parametrize("role", ["admin", "operator", "viewer", "node", "join", "component", "big"])
async def test_a_token_cannot_have_more_rights_than_its_creator(api: Api, role: str) -> None:
    dev = await with_role(
        api, rule("get list", "workload", namespaces=["team"]), rule("create update delete get list", "token")
    )
    admin = await api.client(await api.token("admin", "user:root"))
    await admin.call("PUT", "/v1/roles/big", dict, body={"spec": {"rules": [rule("get", "secret")]}})
    for namespaces in (["*"], ["team"]):
        body = {"role": role, "identity": "evil", "namespaces": namespaces}
        with pytest.raises((Forbidden, Invalid)):
            await dev.call("POST", "/v1/tokens", dict, body=body)
    mine = await dev.call("POST", "/v1/tokens", dict, body={"role": "dev", "identity": "mate"})
    assert mine["role"] == "dev"
    strong = await admin.call("POST", "/v1/tokens", dict, body={"role": "operator", "identity": "op"})
    with pytest.raises(Forbidden, match="more than"):
        await dev.call("POST", f"/v1/tokens/{strong['name']}/rotate", dict, body={})


async def test_only_an_admin_of_the_whole_cluster_decides_which_issuers_are_trusted(api: Api) -> None:
    dev = await with_role(api, rule("*", "issuer role role-binding workload token"))
    with pytest.raises(Forbidden, match="more than"):
        await dev.call(
            "PUT", "/v1/issuers/x", dict, body={"spec": {"url": "https://evil.example", "audience": ["mandor"]}}
        )


async def test_a_commit_of_several_objects_is_no_way_around(api: Api) -> None:
    dev = await with_role(api, rule("get list create update", "role", names=["*"]))
    role = CustomRole(meta=Meta(name="mine"), spec=RoleSpec(rules=(RoleRule(verbs=("*",), kinds=("*",)),)))
    from mandor.model.codec import to_plain

    body = {"writes": [{"put": {"kind": "role", **to_plain(role)}}]}
    with pytest.raises(MandorError) as caught:
        await dev.call("POST", "/v1/commit", dict, body=body)
    assert await api.store.get(role.key) is None, caught.value
    files = "kind: role\nname: mine\nrules: [{verbs: ['*'], kinds: ['*']}]\n"
    with pytest.raises(Forbidden, match="more than"):
        await dev.request("POST", "/v1/apply", body=files.encode(), content_type="application/yaml")
    assert await api.store.get(role.key) is None


async def test_built_in_names_and_unknown_words_are_refused(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:root"))
    for path, spec in [
        ("/v1/roles/admin", {"rules": [rule("get", "node")]}),
        ("/v1/roles/component", {"rules": [rule("get", "node")]}),
        ("/v1/roles/a", {"rules": [rule("fly", "node")]}),
        ("/v1/roles/a", {"rules": [rule("get", "dragon")]}),
        ("/v1/roles/a", {"rules": []}),
        ("/v1/role-bindings/a", {"role": "viewer"}),
        ("/v1/role-bindings/a", {"role": "node", "users": ["x"]}),
        ("/v1/role-bindings/a", {"role": "none-such", "users": ["x"]}),
    ]:
        with pytest.raises(Invalid):
            await admin.call("PUT", path, dict, body={"spec": spec})


async def test_a_changed_role_holds_for_tokens_at_once_and_ends_watches(api: Api) -> None:
    dev = await with_role(api, rule("get list watch", "workload namespace"))
    admin = await api.client(await api.token("admin", "user:root"))
    assert await dev.call("GET", "/v1/workloads", dict)
    caller = await api.parts.auth.bearer(dev.token)
    await api.parts.auth.check_valid(caller)
    await admin.call("PUT", "/v1/roles/dev", dict, body={"spec": {"rules": [rule("get list", "namespace")]}})
    with pytest.raises(Forbidden):
        await dev.call("GET", "/v1/workloads", dict)
    with pytest.raises(Forbidden, match="have changed"):
        await api.parts.auth.check_valid(caller)
    await admin.call("DELETE", "/v1/roles/dev", dict)
    with pytest.raises(Forbidden):
        await dev.call("GET", "/v1/namespaces", dict)


async def test_parts_of_an_update_have_verbs_of_their_own(api: Api) -> None:
    dev = await with_role(
        api, rule("get list scale rollout", "workload", namespaces=["team"]), rule("get list drain", "node")
    )
    admin = await api.client(await api.token("admin", "user:root"))
    await admin.call("PUT", "/v1/workloads/web?namespace=team", dict, body=WORKLOAD)
    patch = {"spec": {"groups": {"main": {"replicas": 3}}}}
    done = await dev.call("PATCH", "/v1/workloads/web?namespace=team", dict, body=patch)
    assert done["spec"]["groups"]["main"]["replicas"] == 3
    patch["spec"]["groups"]["main"]["tasks"] = {"main": {"command": ["/bin/evil"]}}  # type: ignore[assignment]
    with pytest.raises(Forbidden):
        await dev.call("PATCH", "/v1/workloads/web?namespace=team", dict, body=patch)
    with pytest.raises(Forbidden):
        await dev.call("PATCH", "/v1/workloads/web?namespace=team", dict, body={"meta": {"labels": {"a": "b"}}})


async def test_labels_bound_what_a_rule_covers_before_and_after_a_change(api: Api) -> None:
    mine = {"labels": {"team": "shop"}}
    dev = await with_role(api, rule("get list create update delete", "workload", namespaces=["team"], **mine))
    admin = await api.client(await api.token("admin", "user:root"))
    await admin.call("PUT", "/v1/workloads/bank?namespace=team", dict, body=WORKLOAD)
    await dev.call("PUT", "/v1/workloads/web?namespace=team", dict, body={"meta": mine, **WORKLOAD})
    with pytest.raises(Forbidden):
        await dev.call("PUT", "/v1/workloads/web2?namespace=team", dict, body=WORKLOAD)
    for name in ("web", "bank"):  # neither given away, nor taken
        body = {"meta": {"labels": {"team": "shop" if name == "bank" else "other"}}}
        with pytest.raises(Forbidden):
            await dev.call("PATCH", f"/v1/workloads/{name}?namespace=team", dict, body=body)
    with pytest.raises(NotFound):
        await dev.call("GET", "/v1/workloads/bank?namespace=team", dict)
    page = await dev.call("GET", "/v1/workloads?namespace=team", dict)
    assert [each["meta"]["name"] for each in page["items"]] == ["web"]


async def test_no_role_lets_a_person_read_the_value_of_a_secret(api: Api) -> None:
    dev = await with_role(api, rule("*", "*"), rule("read-value", "secret"))
    body = {"spec": {"value": "hunter2hunter2"}}
    await dev.call("PUT", "/v1/secrets/db?namespace=team", dict, body=body)
    session = await api.session(dev.token)
    for path in (
        "/v1/secrets/db?namespace=team",
        "/v1/secrets",
        "/v1/objects?key=secret/team/db",
        "/v1/secrets/db/value?namespace=team",
        "/v1/snapshot",
        "/v1/audits",
    ):
        async with session.get(path) as answer:
            assert "hunter2" not in await answer.text(), path
    can = await dev.call("GET", "/v1/can-i?verb=read-value&kind=secret&namespace=team", dict)
    assert not can["allowed"]


async def test_whoami_and_can_i(api: Api) -> None:
    dev = await with_role(api, rule("get list", "workload node namespace"), namespaces=["team"])
    you = await dev.call("GET", "/v1/whoami", dict)
    assert (you["identity"], you["role"], you["namespaces"]) == ("user:dev", "dev", ["team"])
    for query, answer in [
        ("verb=get&kind=workloads&namespace=team", True),
        ("verb=get&kind=workload&namespace=other", False),
        ("verb=get&kind=node", True),
        ("verb=get&kind=namespace&name=team", True),
        ("verb=get&kind=namespace&name=other", False),
        ("verb=delete&kind=workload&namespace=team", False),
    ]:
        assert (await dev.call("GET", f"/v1/can-i?{query}", dict))["allowed"] is answer, query
    with pytest.raises(Invalid):
        await dev.call("GET", "/v1/can-i?verb=fly&kind=node", dict)


# Properties.

names = st.sampled_from(["a", "ab", "shop-web", "shop-db", "team", "other"])
spaces = st.sampled_from(["team", "other", "third"])
rules_drawn = st.lists(
    st.builds(
        RoleRule,
        verbs=st.lists(st.sampled_from([*VERBS, "*"]), min_size=1, max_size=4).map(tuple),
        kinds=st.lists(st.sampled_from([*KINDS, "*", "workload", "secret"]), min_size=1, max_size=4).map(tuple),
        namespaces=st.lists(st.one_of(spaces, st.just("*")), min_size=1, max_size=2).map(tuple),
        names=st.lists(st.one_of(names, st.sampled_from(["*", "a*", "shop-*"])), min_size=1, max_size=2).map(tuple),
        labels=st.sampled_from([{}, {}, {"team": "shop"}]),
    ),
    max_size=4,
).map(tuple)
asked = st.tuples(
    st.sampled_from(VERBS),
    st.sampled_from(sorted(KINDS)),
    spaces,
    names,
    st.sampled_from([{}, {"team": "shop"}, {"team": "shop", "x": "y"}]),
)


def ask(question: tuple[str, str, str, str, dict[str, str]]) -> tuple[str, str, str, str, dict[str, str]]:
    verb, kind, namespace, name, labels = question
    return verb, kind, namespace if KINDS[kind].namespaced else "", name, labels


@given(held=rules_drawn, wanted=rules_drawn, questions=st.lists(asked, min_size=10, max_size=30))
def test_rules_that_a_holder_may_grant_allow_nothing_that_the_holder_is_not_allowed(
    held: tuple[RoleRule, ...], wanted: tuple[RoleRule, ...], questions: list[Any]
) -> None:
    if lacking(held, wanted) is None:
        for each in map(ask, questions):
            if each[0] != "read-value":
                assert not allowed(wanted, *each) or allowed(held, *each), each


@given(rules=rules_drawn, here=st.frozensets(spaces, max_size=2), questions=st.lists(asked, min_size=10, max_size=30))
def test_a_narrowed_role_allows_less_and_writes_only_in_its_namespaces(
    rules: tuple[RoleRule, ...], here: frozenset[str], questions: list[Any]
) -> None:
    few = narrowed(rules, here)
    for verb, kind, namespace, name, labels in map(ask, questions):
        if allowed(few, verb, kind, namespace, name, labels):
            assert allowed(rules, verb, kind, namespace, name, labels)
            assert namespace in here if namespace else (verb in {"get", "list", "watch"} or kind == "token")
    assert all(lacking(rules, (each,)) is None for each in few)


rules_that_read = st.lists(
    st.builds(
        RoleRule,
        verbs=st.lists(st.sampled_from(["get", "list", "watch"]), min_size=1, max_size=2).map(tuple),
        kinds=st.sampled_from([("namespace",), ("*",)]),
        names=st.lists(st.one_of(names, st.sampled_from(["*", "a*", "shop-*"])), min_size=1, max_size=2).map(tuple),
        labels=st.sampled_from([{}, {}, {"team": "shop"}]),
    ),
    min_size=1,
    max_size=4,
).map(tuple)


@settings(max_examples=200, deadline=None)
@given(rules=rules_that_read, objects=st.lists(asked, min_size=4, max_size=12))
def test_a_list_and_a_watch_never_show_what_get_refuses(rules: tuple[RoleRule, ...], objects: list[Any]) -> None:
    caller = Caller("user:x", "x", rules=rules)
    metas = [(ask(each)[3], ask(each)[2], each[4]) for each in objects]
    kinds = {"namespace": Namespace}

    async def check() -> None:
        async with MemoryStore() as store:
            for name, _, labels in metas:
                for kind in kinds.values():
                    value = kind(meta=Meta(name=name, labels=labels))
                    for verb, live in (("list", False), ("watch", True)):
                        try:
                            seen = await read_scope(store, caller, kind.kind, ALL, live=live)
                        except Forbidden:
                            continue
                        if seen.shows is None or seen.shows(value):
                            assert allowed_on(rules, "get", value)
                            assert allowed_on(rules, verb, value)
                    if may_show(caller, value):
                        assert allowed_on(rules, "get", value)

    asyncio.run(check())


def test_every_built_in_role_includes_the_one_below_it() -> None:
    assert lacking(BUILT_IN["operator"], BUILT_IN["viewer"]) is None
    assert lacking(ADMIN, BUILT_IN["operator"]) is None
    assert lacking(BUILT_IN["operator"], ADMIN) is not None
