"""Metrics of this process, with the standard names of Prometheus."""

from collections.abc import Iterator

import psutil

from mandor import __version__
from mandor.lib.metrics import Family, counter, gauge


def process_families() -> Iterator[Family]:
    process = psutil.Process()
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
        yield counter("process_cpu_seconds_total", "CPU time in seconds.", times.user + times.system)
        yield gauge("process_resident_memory_bytes", "Resident memory in bytes.", memory.rss)
        yield gauge("process_virtual_memory_bytes", "Virtual memory in bytes.", memory.vms)
        yield gauge("process_open_fds", "Open files and connections.", process.num_fds())
        yield gauge("process_threads", "Threads.", process.num_threads())
        yield gauge("process_start_time_seconds", "Start time in Unix seconds.", process.create_time())
    yield gauge("mandor_build_info", "Always 1; the version is a label.", {(__version__,): 1.0}, "version")
