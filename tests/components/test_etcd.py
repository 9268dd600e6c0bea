"""The fixtures themselves: a real etcd that starts, loses members, takes them back, and wants certificates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.components.etcd import Etcd, Tls


@pytest.mark.real("etcd")
def test_a_single_member_keeps_what_is_written(etcd: Etcd) -> None:
    key = etcd.prefix() + "k"
    etcd.etcdctl("put", key, "v")
    assert etcd.etcdctl("get", key, "--print-value-only").strip() == "v"
    assert etcd.prefix() != etcd.prefix()


@pytest.mark.real("etcd")
def test_a_cluster_goes_on_without_its_leader_and_takes_it_back(etcd_cluster: Etcd) -> None:
    leader = etcd_cluster.leader()
    etcd_cluster.kill(leader)
    survivors = [i for i in range(3) if i != leader]
    etcd_cluster.wait_ready(*survivors)
    etcd_cluster.etcdctl("put", "k", "v")

    etcd_cluster.start(leader)

    assert etcd_cluster.leader() in survivors
    assert etcd_cluster.etcdctl("get", "k", "--print-value-only").strip() == "v"


@pytest.mark.real("etcd")
def test_a_member_with_tls_refuses_a_client_without_a_certificate(etcd_tls: Etcd) -> None:
    etcd_tls.etcdctl("put", "k", "v")
    assert etcd_tls.tls is not None
    bare = subprocess.run(
        [
            etcd_tls.binary.with_name("etcdctl"),
            f"--endpoints={etcd_tls.urls[0]}",
            f"--cacert={etcd_tls.tls.ca_file}",
            "--command-timeout=2s",
            "get",
            "k",
        ],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert bare.returncode != 0


def test_the_private_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    tls = Tls.make(tmp_path)
    assert [key.stat().st_mode & 0o077 for key in (tls.key_file, tls.server_key_file)] == [0, 0]
