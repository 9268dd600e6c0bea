"""Pure parts of the engines with Docker's API: requests and answers."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.engines.base import Launch, Mount, Resolver, Unit, UnitPhase
from mandor.engines.containers.credentials import header_for
from mandor.engines.containers.ending import reason_of
from mandor.engines.containers.error_messages import passing
from mandor.engines.containers.failures import Failures
from mandor.engines.containers.images import split
from mandor.engines.containers.labels import labels_of, owner_of, unit_of
from mandor.engines.containers.launches import hostname
from mandor.engines.docker_api.body import make_body
from mandor.engines.docker_api.files import find_ids
from mandor.engines.docker_api.frames import parse_time, read_lines
from mandor.engines.docker_api.idle import can_idle, idle_program
from mandor.engines.docker_api.observe import observe
from mandor.engines.docker_api.options import ContainerOptions
from mandor.engines.options import read_options
from mandor.errors import Invalid

UNIT = Unit("u1", "main", 3)
words = st.binary(max_size=40).filter(lambda data: b"\n" not in data)


def body(**parts: Any) -> dict[str, Any]:
    return make_body(Launch(**{"name": "web-0", "image": "busybox"} | parts), ContainerOptions(), {})


def test_limits_of_the_kernel_and_name_servers_are_asked_for() -> None:
    options = read_options(
        "docker",
        {
            "ulimits": {"nofile": {"soft": 1024, "hard": 2048}},
            "sysctls": {"net.core.somaxconn": "1024"},
            "dns": ["10.0.0.1"],
            "dns_search": ["example"],
        },
        ContainerOptions,
    )
    host = make_body(Launch(name="web-0", image="busybox"), options, {})["HostConfig"]
    assert host["Ulimits"] == [{"Name": "nofile", "Soft": 1024, "Hard": 2048}]
    assert host["Sysctls"] == {"net.core.somaxconn": "1024"}
    assert (host["Dns"], host["DnsSearch"]) == (["10.0.0.1"], ["example"])


def test_the_name_server_of_the_node_is_used_unless_the_task_has_its_own() -> None:
    resolver = Resolver(("169.254.53.53",), ("default.mandor",))
    host = body(resolver=resolver)["HostConfig"]
    assert host["Dns"] == ["169.254.53.53"]
    assert host["DnsSearch"] == ["default.mandor"]
    assert host["DnsOptions"] == ["ndots:1"]
    launch = Launch(name="web-0", image="busybox", resolver=resolver)
    host = make_body(launch, ContainerOptions(dns=("10.0.0.1",)), {})["HostConfig"]
    assert host["Dns"] == ["10.0.0.1"]
    assert not {"DnsSearch", "DnsOptions"} & host.keys()
    host = make_body(launch, ContainerOptions(dns_search=("example",)), {})["HostConfig"]
    assert (host["Dns"], host["DnsSearch"]) == (["169.254.53.53"], ["example"])
    assert "Dns" not in make_body(launch, ContainerOptions(network="host"), {})["HostConfig"]


def test_options_that_share_parts_of_the_node_are_in_the_request() -> None:
    asked = {
        "devices": ["/dev/fuse", "/dev/a:/dev/b:r"], "device_rules": ["c 13:* rmw"], "groups": ["video"],
        "ipc": "host", "pid": "host", "uts": "host", "userns": "host", "cgroupns": "host", "cpuset": "0-1",
        "cpu_shares": 512, "oom_score_adj": 10, "security_opt": ["seccomp=unconfined"], "dns_options": ["ndots:2"],
        "domainname": "example", "stdin": True,
    }  # fmt: skip
    options = read_options("docker", asked, ContainerOptions)
    made = make_body(Launch(name="web-0", image="busybox"), options, {})
    host = made["HostConfig"]
    assert [tuple(each.values()) for each in host["Devices"]] == [
        ("/dev/fuse", "/dev/fuse", "rwm"),
        ("/dev/a", "/dev/b", "r"),
    ]
    names = ("IpcMode", "PidMode", "UTSMode", "UsernsMode", "CgroupnsMode")
    assert [host[name] for name in names] == ["host"] * 5
    assert (host["DeviceCgroupRules"], host["GroupAdd"], host["CpusetCpus"]) == (["c 13:* rmw"], ["video"], "0-1")
    assert (host["CpuShares"], host["OomScoreAdj"], host["SecurityOpt"]) == (512, 10, ["seccomp=unconfined"])
    assert (made["OpenStdin"], made["Domainname"], host["DnsOptions"]) == (True, "example", ["ndots:2"])


def test_settings_that_are_not_given_are_not_in_the_request() -> None:
    assert not {"Devices", "IpcMode", "PidMode", "CpusetCpus", "GroupAdd", "SecurityOpt"} & body()["HostConfig"].keys()
    assert "OpenStdin" not in body()


def test_an_invalid_device_is_refused() -> None:
    with pytest.raises(Invalid, match="devices"):
        read_options("docker", {"devices": ["nvidia.com/gpu=all"]}, ContainerOptions)


def frame(stream: int, text: bytes, at: str = "2026-01-02T03:04:05.250000000Z") -> bytes:
    data = at.encode() + b" " + text
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


async def lines_of(data: bytes) -> list[tuple[str, bytes]]:
    place = 0

    async def read(count: int) -> bytes:
        nonlocal place
        place += count
        return data[place - count : place]

    return [(line.stream, line.text) async for line in read_lines(read)]


# Requests.


def test_a_task_without_an_image_is_refused() -> None:
    with pytest.raises(Invalid, match="runs images"):
        body(image=None)


def test_limits_become_quotas_without_swap() -> None:
    host = body(cpu_milli=250, memory_bytes=1 << 26, processes=9)["HostConfig"]
    assert (host["CpuPeriod"], host["CpuQuota"]) == (100_000, 25_000)
    assert host["Memory"] == host["MemorySwap"] == 1 << 26
    assert host["PidsLimit"] == 9


def test_the_smallest_cpu_limit_is_one_the_kernel_accepts() -> None:
    assert body(cpu_milli=1)["HostConfig"]["CpuQuota"] == 1000


def test_no_limit_is_asked_for_where_the_task_has_none() -> None:
    assert not {"CpuQuota", "Memory", "PidsLimit"} & body()["HostConfig"].keys()


def test_ports_are_published_with_their_protocol() -> None:
    made = body(ports={"web": 80, "dns": 53}, host_ports={"dns": 5353}, protocols={"dns": "udp"})
    assert made["ExposedPorts"] == {"80/tcp": {}, "53/udp": {}}
    assert made["HostConfig"]["PortBindings"] == {"53/udp": [{"HostPort": "5353"}]}


def test_a_container_in_a_shared_network_has_no_host_name_and_no_ports() -> None:
    launch = Launch(name="shop-0/app", image="busybox", ports={"web": 80}, host_ports={"web": 8080})
    made = make_body(launch, ContainerOptions(hostname="mine"), {}, network_of="abc")
    assert made["HostConfig"]["NetworkMode"] == "container:abc"
    assert not {"Hostname", "ExposedPorts"} & made.keys()
    assert "PortBindings" not in made["HostConfig"]


def test_the_network_of_the_node_keeps_the_host_name_of_the_node() -> None:
    made = make_body(Launch(name="web-0", image="busybox"), ContainerOptions(network="host"), {})
    assert "Hostname" not in made


@pytest.mark.parametrize(("path", "source"), [("data", "/"), ("/data", "/there/is/nothing")])
def test_an_impossible_mount_is_refused_with_its_path(path: str, source: str) -> None:
    with pytest.raises(Invalid, match=path):
        body(mounts=(Mount(path=path, source=source),))


@given(st.text(min_size=1, max_size=300))
def test_any_name_becomes_a_valid_host_name(name: str) -> None:
    found = hostname(name)
    assert 0 < len(found) <= 63
    assert found.isascii()
    assert not found.startswith("-")
    assert not found.endswith("-")


# Labels.


def test_labels_lead_back_to_the_unit_of_their_owner_only() -> None:
    labels = labels_of("me", UNIT, Launch(name="web-0"))
    assert unit_of(labels, "me") == UNIT
    assert unit_of(labels, "you") is None
    assert unit_of({"io.mandor.owner": "me"}, "me") is None


def test_the_owner_id_depends_on_the_path_of_the_folder(tmp_path: Path) -> None:
    first = owner_of(tmp_path / "a")
    assert first != owner_of(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "moved")
    assert owner_of(tmp_path / "moved") == first
    assert owner_of(tmp_path / "a") == first


# Answers.


@given(st.lists(st.tuples(st.sampled_from([1, 2]), words), max_size=20))
async def test_lines_come_out_as_they_went_in(lines: list[tuple[int, bytes]]) -> None:
    data = b"".join(frame(stream, text + b"\n") for stream, text in lines)
    assert await lines_of(data) == [({1: "stdout", 2: "stderr"}[stream], text) for stream, text in lines]


async def test_parts_of_a_line_are_joined_and_an_unfinished_line_is_returned() -> None:
    data = frame(1, b"one ") + frame(2, b"between\n") + frame(1, b"line\n") + frame(1, b"no end")
    assert await lines_of(data) == [("stderr", b"between"), ("stdout", b"one line"), ("stdout", b"no end")]


async def test_a_stream_that_ends_inside_a_frame_ends_there() -> None:
    whole = frame(1, b"whole\n") + frame(1, b"broken\n")
    for cut in range(len(frame(1, b"whole\n")) + 1, len(whole)):
        assert await lines_of(whole[:cut]) == [("stdout", b"whole")]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-02T03:04:05.5Z", 1767323045.5),
        ("2026-01-02T05:04:05.25+02:00", 1767323045.25),
        ("2026-01-02T03:04:05Z", 1767323045.0),
        ("0001-01-01T00:00:00Z", 0.0),
        ("", 0.0),
    ],
)
def test_times_are_read_in_any_zone_and_precision(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("code", "memory", "reason"),
    [
        (0, False, "Completed"),
        (0, True, "Completed"),
        (3, False, "Error"),
        (3, True, "OOMKilled"),
        (255, False, "Error"),
        (137, False, "Signalled"),
        (137, True, "OOMKilled"),
        (143, False, "Signalled"),
        (128, False, "Error"),
    ],
)
def test_an_end_has_one_reason(code: int, memory: bool, reason: str) -> None:
    assert reason_of(code, out_of_memory=memory) == reason


@pytest.mark.parametrize("status", ["created", "removing", "configured"])
def test_a_container_that_was_not_started_is_not_listed(status: str) -> None:
    assert observe(UNIT, {"State": {"Status": status}}) is None


def test_a_paused_container_has_not_ended() -> None:
    seen = observe(
        UNIT, {"State": {"Status": "paused"}, "NetworkSettings": {"Networks": {"n": {"IPAddress": "10.0.0.2"}}}}
    )
    assert seen is not None
    assert (seen.phase, seen.address) == (UnitPhase.RUNNING, "10.0.0.2")


@pytest.mark.parametrize(
    ("message", "again"),
    [
        ("mkdir /var/lib/docker/x: no space left on device", True),
        ("Bind for 0.0.0.0:80 failed: port is already allocated", True),
        ('exec: "nope": executable file not found in $PATH: unknown', False),
        ("Failed creating instance from image: Unable to unpack image, run out of disk space", True),
    ],
)
def test_passing_errors_are_distinguished_from_lasting_ones(message: str, again: bool) -> None:
    assert passing(message) is again


# Images and logins.


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("nginx", ("docker.io", "nginx", "latest")),
        ("nginx:1.27", ("docker.io", "nginx", "1.27")),
        ("acme/shop:2", ("docker.io", "acme/shop", "2")),
        ("registry.example/acme/shop", ("registry.example", "registry.example/acme/shop", "latest")),
        ("127.0.0.1:5000/shop:1", ("127.0.0.1:5000", "127.0.0.1:5000/shop", "1")),
        ("localhost/shop", ("localhost", "localhost/shop", "latest")),
        ("nginx@sha256:ab", ("docker.io", "nginx", "@sha256:ab")),
        ("nginx:1@sha256:ab", ("docker.io", "nginx", "@sha256:ab")),
    ],
)
def test_an_images_name_has_a_registry_a_repository_and_a_tag(name: str, parts: tuple[str, str, str]) -> None:
    assert split(name) == parts


def test_a_login_is_found_for_its_registry_only(tmp_path: Path) -> None:
    login = base64.b64encode(b"me:pass:word").decode()
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"auths": {"r.example": {"auth": login}, "https://index.docker.io/v1/": {"auth": login}}})
    )
    for registry in ("r.example", "docker.io"):
        header = header_for(registry, [tmp_path / "missing", file])["X-Registry-Auth"]
        assert json.loads(base64.urlsafe_b64decode(header)) == {
            "username": "me",
            "password": "pass:word",
            "serveraddress": registry,
        }
    assert header_for("other.example", [file]) == {}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"auths": 3}', '{"auths": {"r.example": {"auth": "?"}}}'])
def test_a_malformed_login_file_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert header_for("r.example", [tmp_path / "config.json"]) == {}


# Files on disk.


@pytest.mark.parametrize(
    ("user", "found"),
    [("0", (0, 0)), ("worker", (12, 13)), ("12", (12, 13)), ("99", (99, 0)), ("99:7", (99, 7)), ("nobody", (0, 0))],
)
def test_files_belong_to_the_user_of_the_image(user: str, found: tuple[int, int]) -> None:
    assert find_ids(user, "root:x:0:0::/:/bin/sh\nworker:x:12:13::/:/bin/sh\nbroken\n") == found


def test_a_failure_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    Failures(tmp_path / "failures").write(UNIT, "why")
    again = Failures(tmp_path / "failures")
    (seen,) = again.list()
    assert again.knows(UNIT)
    assert (seen.unit, seen.reason, seen.message) == (UNIT, "StartFailed", "why")
    again.forget(UNIT)
    assert not list(again.list())


@pytest.mark.skipif(not can_idle(), reason="there is no such program for this processor")
def test_the_idle_program_waits_and_uses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "idle"
    path.write_bytes(idle_program())
    path.chmod(0o755)
    with subprocess.Popen([path]) as process:
        try:
            time.sleep(0.2)
            assert process.poll() is None
            spent = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            assert int(spent[11]) + int(spent[12]) <= os.sysconf("SC_CLK_TCK") // 20
        finally:
            process.kill()
