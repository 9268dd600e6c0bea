"""What this process uses, under the names that every tool knows."""

from collections.abc import Iterator

import psutil

from mandor import __version__
from mandor.lib.metrics import Family, counter, gauge


def process_families() -> Iterator[Family]:
    process = psutil.Process()
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
        yield counter("process_cpu_seconds_total", "Processor time.", times.user + times.system)
        yield gauge("process_resident_memory_bytes", "Memory.", memory.rss)
        yield gauge("process_virtual_memory_bytes", "Address space.", memory.vms)
        yield gauge("process_open_fds", "Open files and connections.", process.num_fds())
        yield gauge("process_threads", "Threads.", process.num_threads())
        yield gauge("process_start_time_seconds", "When it began, since 1970.", process.create_time())
    yield gauge("mandor_build_info", "1.", {(__version__,): 1.0}, "version")
