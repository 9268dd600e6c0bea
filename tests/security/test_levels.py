"""Levels of namespaces: what each of them forbids is refused before it is stored, with its line and a way out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.engines.cri.options import CriOptions
from mandor.engines.docker_api.options import ContainerOptions
from mandor.engines.incus.options import IncusOptions
from mandor.engines.process.options import ProcessOptions
from mandor.errors import Forbidden
from mandor.model.allowance import Allowance
from mandor.model.group import GroupTemplate
from mandor.model.image_reference import registry_allowed, repository_of
from mandor.model.level import Level
from mandor.model.level_rules import LEVELS, OPTIONS, option_allowed
from mandor.model.manifest import load_manifests
from mandor.model.record import FIRST_NAMESPACE_USER, NamespaceSpec
from mandor.model.workload import Workload
from tests.api.conftest import Api, StartApi

WEB = "name: web\nnamespace: shop\nimage: nginx\n"


def group_of(text: str) -> GroupTemplate:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object.spec.groups["main"]


def refused(text: str, engine: str = "", **rules: object) -> list[str]:
    allowance = Allowance("shop", NamespaceSpec(**rules), FIRST_NAMESPACE_USER)  # type: ignore[arg-type]
    return [each.message for each in allowance.refusals(group_of(text), engine)]


_OPTIONS: list[tuple[str, Level]] = [
    ("privileged: true", "privileged"),
    ("pid: host", "privileged"),
    ("ipc: host", "privileged"),
    ("uts: host", "privileged"),
    ("userns: host", "privileged"),
    ("userns: keep-id", "privileged"),
    ("cgroupns: host", "privileged"),
    ("network: host", "privileged"),
    ("network: 'container:other'", "privileged"),
    ("network: 'ns:/proc/1/ns/net'", "privileged"),
    ("network: backbone", "baseline"),
    ("devices: [/dev/sda]", "privileged"),
    ("device_rules: ['b *:* rwm']", "privileged"),
    ("security_opt: [seccomp=unconfined]", "privileged"),
    ("security_opt: [apparmor=unconfined]", "privileged"),
    ("security_opt: ['no-new-privileges:false']", "privileged"),
    ("sysctls: {kernel.core_pattern: x}", "privileged"),
    ("cap_add: [NET_ADMIN]", "privileged"),
    ("cap_add: [SETUID]", "baseline"),
    ("oom_score_adj: -900", "privileged"),
    ("runtime: runsc", "baseline"),
    ("groups: ['0']", "baseline"),
    ("cpuset: 0-3", "baseline"),
]
_EACH = [(engine, *each) for engine in ("docker", "podman") for each in _OPTIONS]

FORBIDDEN: list[tuple[str, Level, str]] = [
    # what is added to the manifest, the strictest level that allows it, a part of the refusal
    ("security: {user: 0}", "baseline", "run as root"),
    ("security: {user: '0'}", "baseline", "run as root"),
    ("security: {user: '00:5'}", "baseline", "run as root"),
    ("security: {user: '1000:0'}", "baseline", "run as root"),
    ("security: {user: root}", "baseline", "the user name"),
    ("security: {user: nginx}", "baseline", "the user name"),
    ("security: {privileged: true}", "privileged", "security.privileged"),
    ("security: {cap_add: [SYS_ADMIN]}", "privileged", "the capability SYS_ADMIN"),
    ("security: {cap_add: [CAP_SYS_ADMIN]}", "privileged", "the capability CAP_SYS_ADMIN"),
    ("security: {cap_add: [CHOWN]}", "baseline", "the capability CHOWN"),
    ("volumes: {h: {type: host, path: /etc}}", "privileged", "the host path /etc"),
    ("ports: {http: {port: 80, host: 80}}", "baseline", "the host port 80"),
    ("placement: {tolerate: [{key: control-plane}]}", "baseline", "tolerating the taint control-plane"),
    ("placement: {tolerate: [{effect: NoSchedule}]}", "baseline", "tolerating every taint"),
    ("engine: process", "privileged", "the engine process"),
    *(
        (f"options: {{{engine}: {{{option}}}}}", least, f"{engine}.{option.partition(':')[0]}")
        for engine, option, least in _EACH
    ),
    ("options: {cri: {privileged: true}}", "privileged", "cri.privileged"),
    ("options: {cri: {network: host}}", "privileged", "cri.network"),
    ("options: {cri: {cgroup_parent: /}}", "privileged", "cri.cgroup_parent"),
    ("options: {cri: {cap_add: [SYS_PTRACE]}}", "privileged", "cri.cap_add"),
    ("options: {incus: {privileged: true}}", "privileged", "incus.privileged"),
    ("options: {incus: {devices: {d: {type: disk, source: /, path: /host}}}}", "privileged", "incus.devices"),
    ("options: {incus: {config: {security.nesting: true}}}", "privileged", "incus.config"),
    ("options: {incus: {config: {security.privileged: true}}}", "privileged", "incus.config"),
    ("options: {incus: {config: {raw.lxc: x}}}", "privileged", "incus.config"),
    ("options: {incus: {config: {raw.idmap: x}}}", "privileged", "incus.config"),
    ("options: {incus: {config: {linux.kernel_modules: x}}}", "privileged", "incus.config"),
    ("options: {incus: {config: {limits.kernel.nofile: '9'}}}", "privileged", "incus.config"),
    ("options: {incus: {server: 'https://images.example'}}", "baseline", "incus.server"),
    ("options: {incus: {protocol: incus}}", "baseline", "incus.protocol"),
    ("options: {incus: {server_certificate: x}}", "baseline", "incus.server_certificate"),
    ("options: {incus: {profiles: [default, nested]}}", "privileged", "incus.profiles"),
    ("options: {someplugin: {anything: 1}}", "privileged", "someplugin.anything"),
]

ALLOWED = [
    "security: {user: 1000}",
    "security: {user: '1000:1000', read_only_root: false}",
    "security: {cap_add: [NET_BIND_SERVICE], cap_drop: [ALL], no_new_privileges: true}",
    "volumes: {data: {size: 1Gi}}\nmounts: [{volume: data, path: /data}]",
    "ports: {http: 80, api: {port: 8080, host: 8080}, more: auto}",
    "placement: {tolerate: [{key: gpu}]}",
    "engine: docker",
    "options: {docker: {network: none, ipc: private, privileged: false, pull: always, sysctls: "
    "{net.ipv4.ip_unprivileged_port_start: '0'}}}",
    "options: {incus: {type: virtual-machine, config: {cloud-init.user-data: x}}}",
    "options: {fake: {after: 1s}}",
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("words", "least", "part"), FORBIDDEN)
def test_a_level_refuses_what_only_a_weaker_one_allows(words: str, least: Level, part: str, level: Level) -> None:
    found = refused(WEB + words + "\n", level=level)
    if LEVELS.index(level) < LEVELS.index(least):
        assert any(part in each for each in found), found
        assert all(f"(level {level})" in each for each in found)
    else:
        assert found == []


@pytest.mark.parametrize("words", ALLOWED)
def test_what_any_tenant_needs_is_allowed_at_every_level(words: str) -> None:
    for level in LEVELS:
        assert refused(WEB + words + "\n", level=level) == []


def test_every_option_of_every_engine_is_classified() -> None:
    for engine, kind in {
        "docker": ContainerOptions,
        "podman": ContainerOptions,
        "cri": CriOptions,
        "incus": IncusOptions,
        "process": ProcessOptions,
    }.items():
        assert set(OPTIONS[engine]) == set(kind.__struct_fields__), engine


_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2000, 2000),
    st.sampled_from(["host", "none", "bridge", "private", "default", "container:x", "net"]),
    st.lists(st.sampled_from(["ALL", "SYS_ADMIN", "CHOWN", "NET_BIND_SERVICE", "default", "no-new-privileges"])),
    st.dictionaries(
        st.sampled_from(["raw.lxc", "user.a", "limits.cpu", "net.ipv4.tcp_syncookies"]), st.text(max_size=3)
    ),
)


@given(
    engine=st.sampled_from([*OPTIONS, "other", "fake"]),
    option=st.sampled_from(sorted({name for each in OPTIONS.values() for name in each} | {"new"})),
    value=_values,
)
def test_a_weaker_level_allows_all_that_a_stricter_one_does(engine: str, option: str, value: object) -> None:
    answers = [option_allowed(level, engine, option, value) for level in LEVELS]
    assert answers == sorted(answers)
    assert answers[-1]


def test_a_list_of_the_namespace_decides_its_topic_alone() -> None:
    host = WEB + "volumes: {h: {type: host, path: /srv/team/data}}\n"
    assert refused(host, host_paths=("/srv/team",)) == []
    assert refused(host.replace("/srv/team", "/srv/other"), host_paths=("/srv/team",)) != []
    devices = WEB + "options: {docker: {devices: [/dev/fuse]}}\n"
    assert refused(devices, options=("docker.devices",)) == []
    assert refused(WEB + "options: {docker: {init: true}}\n", options=("docker.devices",)) != []
    assert refused(WEB + "security: {user: root}\n", users=("root",)) == []
    assert refused("name: web\ncommand: [x]\nengine: process\n", engines=("process",)) == []
    assert refused("name: web\ncommand: [x]\n", level="baseline") != [], "nothing but the process engine runs it"


def test_on_the_node_itself_a_task_runs_only_as_a_user_of_its_namespace() -> None:
    text = "name: web\ncommand: [x]\nengine: process\nsecurity: {user: USER}\n"
    for level in ("restricted", "baseline"):
        for user in ("1000", "daemon", "0", str(FIRST_NAMESPACE_USER - 1), str(FIRST_NAMESPACE_USER + 10_000)):
            assert refused(text.replace("USER", user), level=level, engines=("process",)), (level, user)
        inside = text.replace("USER", str(FIRST_NAMESPACE_USER + 9_999))
        assert refused(inside, level=level, engines=("process",)) == []
        assert refused(text.replace("USER", "daemon"), level=level, engines=("process",), users=("daemon",)) == []
    low = "name: web\ncommand: [x]\nengine: process\nports: {http: 80}\n"
    assert refused(low, engines=("process",)) != []


def test_a_node_refuses_an_engine_that_the_namespace_does_not_allow() -> None:
    assert refused("name: web\ncommand: [x]\n", "process") != []
    assert refused(WEB, "docker") == []
    assert refused(WEB, "docker", engines=("podman",)) != []


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("nginx", "docker.io/library/nginx"),
        ("nginx:1.27", "docker.io/library/nginx"),
        ("bitnami/nginx@sha256:00", "docker.io/bitnami/nginx"),
        ("index.docker.io/nginx", "docker.io/library/nginx"),
        ("localhost/a:1", "localhost/a"),
        ("registry:5000/a/b:1", "registry:5000/a/b"),
        ("GHCR.io/acme/web", "ghcr.io/acme/web"),
    ],
)
def test_an_image_is_known_by_its_full_repository(image: str, full: str) -> None:
    assert repository_of(image) == full


def test_an_image_comes_from_an_allowed_registry() -> None:
    allowed = ("ghcr.io/acme", "docker.io/library/nginx", "registry:5000", "images:")
    for image in ("ghcr.io/acme/web:1", "nginx", "docker.io/nginx:2", "registry:5000/x", "images:debian/13"):
        assert registry_allowed(image, allowed), image
    for image in ("ghcr.io/acmeevil/web", "ghcr.io/acme/../evil/web", "redis", "nginx.evil.io/nginx", "evil/nginx"):
        assert not registry_allowed(image, allowed), image
    assert refused(WEB, registries=("ghcr.io",)) == ["the namespace shop does not allow images from nginx"]
    text = "name: web\nimage: debian\noptions: {incus: {server: 'https://evil.example'}}\n"
    assert refused(text, registries=("docker.io",)) != []


INCUS = "name: web\nengine: incus\nimage: debian/13\noptions: {{incus: {{server: '{}', protocol: simplestreams}}}}\n"


@pytest.mark.parametrize("level", LEVELS)
def test_registries_of_a_namespace_judge_the_host_of_an_incus_image(level: Level) -> None:
    allowed = ("images.example", "mirror.example/incus")
    for server in ("https://images.example", "https://images.example/streams", "https://mirror.example/incus/"):
        assert refused(INCUS.format(server), registries=allowed, level=level) == [], server
    for server in (
        "https://evil.example",
        "https://images.example.evil.example",
        "https://images.example@evil.example",
        "https://images.example:pass@evil.example/",
        "evil.example#://images.example",
        "https:/evil.example?://images.example/",
        "https://mirror.example/other",
        "https://mirror.example/incus/../other",
        "https://169.254.169.254/latest",
    ):
        assert refused(INCUS.format(server), registries=allowed, level=level), server
    assert refused(INCUS.format("https://inside"), registries=("docker.io",), level=level)
    several = INCUS.format("https://images.example").replace("engine: incus", "engine: [incus, docker]")
    assert refused(several, registries=allowed, level=level) == [
        "the namespace shop does not allow images from debian/13"
    ]


async def test_a_forbidden_thing_is_refused_with_its_line_and_a_hint(dev: Api) -> None:
    client = await dev.client()
    await client.call("PUT", "/v1/namespaces/shop", dict, body={})
    text = WEB + "options:\n  docker:\n    pid: host\n"
    with pytest.raises(Forbidden) as caught:
        await client.call("POST", "/v1/apply", dict, body={"files": [{"name": "web.yaml", "text": text}]})
    assert caught.value.facts["line"] == 6
    assert "an admin can add `docker.pid` to `options`" in (caught.value.hint or "")
    assert not (await dev.store.list("workload")).items


async def test_a_new_namespace_is_restricted_and_default_without_an_object_is_too(start_api: StartApi) -> None:
    dev = await start_api(tokens_required=False)
    client = await dev.client()
    found = await dev.store.get(next(each.key for each in (await dev.store.list("namespace")).items))
    assert found is not None
    await client.call("DELETE", "/v1/namespaces/default", dict)
    body = {"files": [{"name": "web.yaml", "text": "name: web\ncommand: [id]\nengine: process\n"}]}
    with pytest.raises(Forbidden, match="default \\(level restricted\\) does not allow the engine process"):
        await client.call("POST", "/v1/apply", dict, body=body)


async def test_pools_of_a_namespace_bind_groups_that_name_none(dev: Api) -> None:
    client = await dev.client()
    await client.call("PUT", "/v1/namespaces/shop", dict, body={"spec": {"pools": ["tenants", "spot"]}})
    await client.call("POST", "/v1/apply", dict, body={"files": [{"name": "web.yaml", "text": WEB}]})
    (stored,) = (await dev.store.list("workload")).items
    assert isinstance(stored, Workload)
    assert [each.rule for each in stored.spec.groups["main"].placement.where] == ["pool in [tenants, spot]"]
    text = WEB + "placement: {pool: control}\n"
    with pytest.raises(Forbidden, match="does not allow the pool control"):
        await client.call("POST", "/v1/apply", dict, body={"files": [{"name": "web.yaml", "text": text}]})
