"""Fixtures and checks of all tests: real components by marker and fixture, and a check that no process is left over."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from scripts.components import find, missing
from tests.components.containerd import Containerd, start_containerd
from tests.components.daemon import Daemon
from tests.components.docker import Docker, RunningDocker, find_running, start_docker
from tests.components.etcd import Etcd, Tls, start_etcd
from tests.components.image import busybox_image
from tests.components.incus import Incus, start_incus
from tests.components.left_over import end_left_over, mark_run
from tests.components.network_tools import put_on_path
from tests.components.podman import Podman, start_podman
from tests.reasons import reasons_checked

# A busy machine is slow to think of examples, and that is no mistake of the code under test.
settings.register_profile("mandor", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mandor")

# A shell starts background programs with Ctrl-C ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

StartEtcd = Callable[..., Etcd]
HERE = Path(__file__).parent


# The order of files, which is the order in which workers take them.

WAITING = ("e2e", "integration", "conformance", "docs", "components")
"""Folders whose tests mostly wait for other programs; the slowest first, as in `COMPUTING`."""
COMPUTING = ("sim", "property", "api", "scenarios", "importers", "arch", "faults")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix the tests that wait with those that compute; many small files come last, so that all workers end together."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting, computing = _of_areas(files, WAITING), _of_areas(files, COMPUTING)
    small = [path for path in files if _area(path) not in {*WAITING, *COMPUTING}]
    items[:] = [item for path in [*_in_turns(waiting, computing), *small] for item in files[path]]


def _area(path: Path) -> str:
    return path.relative_to(HERE).parts[0] if path.is_relative_to(HERE) else ""


def _of_areas(paths: Iterable[Path], areas: Sequence[str]) -> list[Path]:
    return sorted((path for path in paths if _area(path) in areas), key=lambda path: areas.index(_area(path)))


def _in_turns(first: list[Path], second: list[Path]) -> list[Path]:
    """Each in its order and spread over the whole."""
    spread = [(number / len(each), path) for each in (first, second) for number, path in enumerate(each)]
    return [path for _, path in sorted(spread, key=itemgetter(0))]


# The marker `real("etcd")`.


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("real"):
        for name in marker.args:
            _require(name)


@cache
def _find(name: str) -> Path | None:
    return find(name)


def _require(name: str) -> Path:
    """The component's binary; where it is missing, the test is skipped, or fails with CI=true."""
    return _find(name) or _report_component(name)


def _report_component(name: str) -> NoReturn:
    report_missing(missing(name))


def report_missing(words: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(words, pytrace=False)
    pytest.skip(words)


SKIPS_IN_CI = (
    "the engine ",  # its conformance test pins its capabilities
    "names of the engine cannot conflict",
    "the suite has no `line`",
    "this kernel has no Landlock",
    "no cgroup may be made here",
    "no memory cgroup may be made here",
    "there is no list of system calls on this machine",
    "there is no such program for this processor",
    "there is no C compiler",
)
"""Beginnings of the only reasons for which a test is skipped with CI=true: limits of an engine, or of the machine."""


def skip_fails_in_ci(reason: str) -> bool:
    return not reason.removeprefix("Skipped: ").startswith(SKIPS_IN_CI)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip for any other reason into a failure, with CI=true."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if skip_fails_in_ci(reason):
            report.outcome, report.longrepr = "failed", f"skipped with CI=true: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def network_tools(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("network_tools")
    folder.chmod(0o755)
    put_on_path(folder)


# No process outlives the tests.


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left_over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process that a test started and did not end fails the run, by the name of that test."""
    mark = mark_run()
    yield
    left = end_left_over(mark, tmp_path_factory.getbasetemp())
    if left:
        pytest.fail("processes left over:\n  " + "\n  ".join(str(each) for each in left), pytrace=False)


# No test changes what later tests log.


@pytest.fixture(autouse=True)
def logging_is_restored() -> Iterator[None]:
    """A test that leaves loggers with another level, or disabled, fails; they are reset for the next test."""
    before = _logger_settings()
    yield
    after = _logger_settings()
    changed = {name: state for name, state in after.items() if state != before.get(name, _NEW_LOGGER)}
    for name in changed:
        level, logging.getLogger(name).disabled, logging.getLogger(name).propagate = before.get(name, _NEW_LOGGER)
        logging.getLogger(name).setLevel(level)
    if changed:
        pytest.fail(f"loggers were left changed (level, disabled, propagate): {changed}", pytrace=False)


_NEW_LOGGER = (logging.NOTSET, False, True)


def _logger_settings() -> dict[str, tuple[int, bool, bool]]:
    found = {
        name: (logger.level, logger.disabled, logger.propagate)
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "mandor"
    }
    return found | {"": (logging.root.level, logging.root.disabled, True)}


# Every recorded event has a documented reason.


@pytest.fixture(autouse=True, scope="session")
def reasons_are_documented() -> Iterator[None]:
    """An event with a reason that docs/reference/reasons.toml does not list fails the run."""
    with reasons_checked() as missing:
        yield
    if missing:
        pytest.fail("\n".join(dict.fromkeys(missing)), pytrace=False)


# etcd.


@pytest.fixture(scope="session")
def etcd_binary() -> Path:
    """The path of a real etcd; etcdctl stands beside it."""
    return _require("etcd")


@pytest.fixture(scope="session")
def etcd(etcd_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member, shared by this process's tests: keep apart by `etcd.prefix()`."""
    running = start_etcd(etcd_binary, tmp_path_factory.mktemp("etcd"))
    yield running
    running.stop()


@pytest.fixture
def new_etcd(etcd_binary: Path, tmp_path: Path) -> Iterator[StartEtcd]:
    """Starts an etcd of the test's own: `new_etcd(members=1, tls=None, options=())`; stopped when the test ends."""
    running: list[Etcd] = []

    def start(*, members: int = 1, tls: Tls | None = None, options: Sequence[str] = ()) -> Etcd:
        folder = tmp_path / f"own-{len(running)}"
        running.append(start_etcd(etcd_binary, folder, members=members, tls=tls, options=options))
        return running[-1]

    yield start
    for each in running:
        each.stop()


@pytest.fixture
def etcd_cluster(new_etcd: StartEtcd) -> Etcd:
    """Three members of the test's own: `.endpoints`, `.kill(i)`, `.start(i)`, `.pause(i)`, `.leader()`."""
    return new_etcd(members=3)


@pytest.fixture
def etcd_tls(new_etcd: StartEtcd, tmp_path: Path) -> Etcd:
    """One member that takes only TLS with a client certificate; the files are in `.tls`."""
    return new_etcd(tls=Tls.make(tmp_path / "tls"))


# Engines.

NewDocker = Callable[..., Docker]


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDocker]:
    """The dockerd that runs here, else a private one; with the busybox image, shared by this process's tests."""
    _require("busybox")
    binary = _require("docker")
    running = find_running(binary) or start_docker(
        _for_root("docker", binary), tmp_path_factory.mktemp("docker"), options=["--live-restore"]
    )
    running.cli("load", data=busybox_image())
    yield running
    running.close()


@pytest.fixture
def new_docker() -> Iterator[NewDocker]:
    """Starts a dockerd of the test's own, to be killed, paused and started again: `new_docker(*options)`."""
    _require("busybox")
    running: list[Docker] = []
    # A short path: the names of sockets have at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="mandor-docker-", ignore_cleanup_errors=True) as folder:

        def start(*options: str) -> Docker:
            binary = _for_root("docker", _require("docker"))
            running.append(start_docker(binary, Path(folder, str(len(running))), options=options))
            running[-1].furnish()
            return running[-1]

        yield start
        for each in running:
            each.close()


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """A private podman service with the busybox image, shared by this process's tests."""
    yield from _podman(rootless=False)


@pytest.fixture(scope="session")
def rootless_podman() -> Iterator[Podman]:
    """A private podman service of an ordinary user."""
    yield from _podman(rootless=True)


def _podman(*, rootless: bool) -> Iterator[Podman]:
    _require("busybox")
    binary = _for_root("podman", _require("podman"))
    # Not in the folder of pytest: each other run of pytest makes that one private again, also for the rootless user.
    with tempfile.TemporaryDirectory(prefix="mandor-podman-", ignore_cleanup_errors=True) as folder:
        running = start_podman(binary, Path(folder), rootless=rootless)
        running.furnish()
        yield running
        running.close()


def _for_root(name: str, binary: Path) -> Path:
    if os.geteuid() != 0:
        report_missing(f"a private {name} needs root: run the tests as root, or start {name} before them")
    return binary


@pytest.fixture(scope="session")
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    """A private containerd with the busybox image, shared by this process's tests."""
    _require("busybox")
    _require("docker")  # for its runc
    binary = _for_root("containerd", _require("containerd"))
    running = start_containerd(binary, tmp_path_factory.mktemp("containerd"))
    running.furnish()
    yield running
    running.close()


NewDaemon = Callable[..., Daemon]
DAEMONS: dict[str, Callable[[Path, Path], Daemon]] = {
    "docker": Docker,
    "podman": Podman,
    "containerd": Containerd,
    "incus": Incus,
}
SMALL_DISK_MEBIBYTES = 48


@pytest.fixture
def new_daemon() -> Iterator[NewDaemon]:
    """A daemon of the test's own, with the busybox image: `new_daemon("podman", small=True)`, in the main thread.

    `small`: what it makes is on a small disk of its own, which `daemon.full()` fills.
    """
    _require("busybox")
    running: list[Daemon] = []
    with tempfile.TemporaryDirectory(prefix="mandor-own-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # the users of its containers go through it

        def start(name: str, *, small: bool = False) -> Daemon:
            _require("docker")  # for its runc
            daemon = DAEMONS[name](_for_root(name, _require(name)), Path(folder, str(len(running))))
            running.append(daemon)
            if small:
                daemon.give_disk(SMALL_DISK_MEBIBYTES)
            daemon.boot()
            daemon.furnish()
            return daemon

        yield start
        for each in running:
            each.close()


@pytest.fixture(scope="session")
def incus() -> Iterator[Incus]:
    """A private incusd with the busybox image, shared by this process's tests."""
    _require("busybox")
    binary = _for_root("incus", _require("incus"))
    with tempfile.TemporaryDirectory(prefix="mandor-incus-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # the users of its containers go through it
        running = start_incus(binary, Path(folder))
        yield running
        running.close()
