"""Parsing of the kernel's network counters."""

from __future__ import annotations

import os

from mandor.engines.cri.network import Traffic, read_devices, traffic_of

DEVICES = """Inter-|   Receive                                                |  Transmit
 face |bytes   packets errs drop fifo frame compressed multicast|bytes   packets errs drop fifo colls carrier compressed
    lo:  5000      10    0    0    0     0          0         0     5000      10    0    0    0     0       0          0
  eth0:  1200      10    0    0    0     0          0         0      340       5    0    0    0     0       0          0
  eth1:30       1    0    0    0     0          0         0       60       1    0    0    0     0       0          0
"""


def test_traffic_counts_all_devices_but_the_loopback() -> None:
    assert read_devices(DEVICES) == Traffic(1230, 400)


def test_a_container_in_the_network_of_the_node_has_no_traffic() -> None:
    assert traffic_of(os.getpid()) == Traffic()
    assert traffic_of(2**22 + 1) == Traffic()
