"""Converts the statistics of a container to a `Usage`: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mandor.engines.base import Usage


def usage_of(stats: Mapping[str, Any]) -> Usage:
    memory = stats.get("memory_stats") or {}
    detail = memory.get("stats") or {}
    # Inactive file cache can be reclaimed, and is not counted.
    spare = detail.get("total_inactive_file", detail.get("inactive_file", 0))
    networks = (stats.get("networks") or {}).values()
    blocks = (stats.get("blkio_stats") or {}).get("io_service_bytes_recursive") or ()
    return Usage(
        cpu_seconds=((stats.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage", 0) / 1e9,
        memory_bytes=max(0, int(memory.get("usage", 0)) - int(spare)),
        network_in_bytes=sum(int(each.get("rx_bytes", 0)) for each in networks),
        network_out_bytes=sum(int(each.get("tx_bytes", 0)) for each in networks),
        disk_read_bytes=_blocks(blocks, "read"),
        disk_write_bytes=_blocks(blocks, "write"),
    )


def _blocks(entries: Any, kind: str) -> int:
    return sum(int(each.get("value", 0)) for each in entries if str(each.get("op", "")).lower() == kind)
