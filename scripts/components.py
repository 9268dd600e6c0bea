#!/usr/bin/env python3
"""Gets the real components that the tests run against, without adding anything to the system.

A component that is already on PATH in a recent enough version is used as it is. Otherwise its Debian packages are
downloaded with a private apt (own lists, own sources: the machine's own mirror with a newer suite) and unpacked
under `.components/`; /etc/apt is read, never written. Without root, or on another system, what is missing is
skipped with a line that says how to get it; `WITH=NAME` asks for a component all the same.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOME = Path(os.environ.get("MANDOR_COMPONENTS") or Path(__file__).resolve().parent.parent / ".components")
APT_ETC = Path("/etc/apt")
DEBIAN_RELEASES = {"bullseye": 11, "bookworm": 12, "trixie": 13, "forky": 14}


@dataclass(frozen=True)
class Component:
    """One thing the tests need for real: a row of the table below."""

    name: str
    purpose: str
    binaries: tuple[str, ...]
    """The first one decides whether the component is there."""
    version: tuple[str, ...]
    """Arguments that make the first binary print its version."""
    at_least: tuple[int, ...]
    """Empty: any version; the program does not print it."""
    packages: tuple[str, ...]
    suite: str
    """The oldest Debian suite whose packages are new enough."""
    hint: str
    only_when_asked: bool = False
    """Fetched with CI=true or WITH=name only."""
    whole: bool = False
    """Fetch the dependencies of the packages that the system lacks, too."""
    backports: bool = False
    """An older Debian has it in its backports, made for that system."""
    links: tuple[tuple[str, str], ...] = ()
    """Names that the packages make when they are installed: (path, what it leads to)."""
    ubuntu: tuple[str, ...] | None = None
    """Packages on Ubuntu; None: those of Debian; empty: Ubuntu has no package."""

    def packages_on(self, system: System) -> tuple[str, ...]:
        return self.packages if self.ubuntu is None or system.family != "ubuntu" else self.ubuntu


IPTABLES = (("usr/sbin/iptables", "xtables-nft-multi"), ("usr/sbin/ip6tables", "xtables-nft-multi"))
SYSTEM_FOLDERS = "/usr/sbin:/sbin"  # PATH of many users lacks them
FOLDERS = ("usr/lib/chromium", "usr/bin", "usr/sbin", "usr/libexec/incus", "bin", "sbin")

COMPONENTS = {
    component.name: component
    for component in (
        Component(
            name="etcd",
            purpose="the store of a control plane with several servers",
            binaries=("etcd", "etcdctl"),
            version=("--version",),
            at_least=(3, 4),
            packages=("etcd-server", "etcd-client"),
            suite="trixie",
            hint="as root on Debian or Ubuntu: make components; as another user: WITH=etcd make components; "
            "elsewhere: put etcd and etcdctl 3.4+ on PATH (https://etcd.io/docs/latest/install/)",
        ),
        Component(
            name="busybox",
            purpose="a shell and small tools in one static file: the image that engines run in tests",
            binaries=("busybox",),
            version=("--help",),
            at_least=(1, 30),
            packages=("busybox-static",),
            suite="bullseye",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put a static busybox on PATH",
        ),
        Component(
            name="bubblewrap",
            purpose="the example of an engine in a package of its own",
            binaries=("bwrap",),
            version=("--version",),
            at_least=(0, 5),
            packages=("bubblewrap",),
            suite="bookworm",
            hint="as root on Debian or Ubuntu: make components; elsewhere: install bubblewrap 0.5 or newer",
        ),
        Component(
            name="prometheus",
            purpose="reads the metrics, and checks dashboards and alerts",
            binaries=("prometheus", "promtool"),
            version=("--version",),
            at_least=(2, 30),
            packages=("prometheus",),
            suite="bookworm",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put prometheus and promtool 2.30+ on PATH",
        ),
        Component(
            name="chromium",
            purpose="the browser that the tests of the web panel use",
            binaries=("chromium",),
            version=("--version",),
            at_least=(100,),
            packages=("chromium", "fonts-dejavu-core"),
            suite="bookworm",
            hint="as root on Debian: make components; on Ubuntu, which has it as a snap only, and elsewhere: "
            "put chromium 100 or newer on PATH",
            whole=True,
            ubuntu=(),
        ),
        Component(
            name="docker",
            purpose="the docker engine",
            binaries=("dockerd", "docker"),
            version=("--version",),
            at_least=(20, 10),
            packages=("docker.io", "iptables"),
            suite="bullseye",
            hint="as root on Debian or Ubuntu: make components; elsewhere: install Docker 20.10 or newer "
            "(https://docs.docker.com/engine/install/)",
            whole=True,
            links=IPTABLES,
        ),
        Component(
            name="containerd",
            purpose="the cri engine",
            binaries=("containerd", "ctr"),
            version=("--version",),
            at_least=(1, 7),
            packages=("containerd", "containernetworking-plugins"),
            suite="trixie",
            hint="as root on Debian or Ubuntu: make components; elsewhere: install containerd 1.7 or newer "
            "with runc and the CNI plugins (https://github.com/containerd/containerd/blob/main/docs/getting-started.md)",
        ),
        Component(
            name="incus",
            purpose="the incus engine",
            binaries=("incusd", "incus"),
            version=("--version",),
            at_least=(6, 0),
            packages=("incus-base", "incus-client", "dnsmasq-base", "nftables"),
            ubuntu=("incus", "incus-client", "dnsmasq-base", "nftables"),
            suite="trixie",
            hint="as root on Debian or Ubuntu: make components; elsewhere: install Incus 6.0 or newer "
            "(https://linuxcontainers.org/incus/docs/main/installing/)",
            whole=True,
            backports=True,
        ),
        Component(
            name="rabbitmq",
            purpose="the queue through which tasks reach several servers",
            binaries=("rabbitmqadmin", "epmd"),  # the server's own program is not on PATH, and says nothing quickly
            version=("--version",),
            at_least=(3, 8),
            packages=("rabbitmq-server",),
            suite="bookworm",
            hint="as root on Debian or Ubuntu: make components; elsewhere: install RabbitMQ 3.8 or newer "
            "(https://www.rabbitmq.com/docs/download)",
            whole=True,
        ),
        Component(
            name="nats",
            purpose="an event bus that events are published to",
            binaries=("nats-server",),
            version=("--version",),
            at_least=(2, 9),
            packages=("nats-server",),
            suite="bookworm",
            hint="as root on Debian or Ubuntu: make components; elsewhere: install nats-server 2.9 or newer "
            "(https://docs.nats.io/running-a-nats-service/introduction/installation)",
        ),
        Component(
            name="rsyslog",
            purpose="a syslog server that logs are shipped to",
            binaries=("rsyslogd",),
            version=("-v",),
            at_least=(8, 1900),
            packages=("rsyslog",),
            suite="bullseye",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put rsyslogd 8.1900 or newer on PATH",
            whole=True,
        ),
        Component(
            name="iproute2",
            purpose="makes networks of namespaces",
            binaries=("ip",),
            version=("-Version",),
            at_least=(5, 0),
            packages=("iproute2",),
            suite="bullseye",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put `ip` of iproute2 5.0 or newer on PATH",
            whole=True,
        ),
        Component(
            name="e2fsprogs",
            purpose="makes the file systems of small disks",
            binaries=("mkfs.ext4",),
            version=("-V",),
            at_least=(1, 40),
            packages=("e2fsprogs",),
            suite="bullseye",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put mkfs.ext4 (e2fsprogs) on PATH",
            whole=True,
        ),
        Component(
            name="curl",
            purpose="runs the commands of the documents",
            binaries=("curl",),
            version=("--version",),
            at_least=(7, 50),
            packages=("curl",),
            suite="bullseye",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put curl 7.50 or newer on PATH",
            whole=True,
        ),
        Component(
            name="openssl",
            purpose="makes the certificates of the documents",
            binaries=("openssl",),
            version=("version",),
            at_least=(1, 1, 1),
            packages=("openssl",),
            suite="bullseye",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put openssl 1.1.1 or newer on PATH",
            whole=True,
        ),
        Component(
            name="dnsmasq",
            purpose="a name server that others ask, and the one that ours is compared with",
            binaries=("dnsmasq",),
            version=("--version",),
            at_least=(2, 80),
            packages=("dnsmasq-base",),
            suite="bookworm",
            hint="as root on Debian or Ubuntu: make components; elsewhere: install dnsmasq 2.80 or newer",
            whole=True,
        ),
        Component(
            name="nftables",
            purpose="networks of confined processes",
            binaries=("nft",),
            version=("--version",),
            at_least=(1, 0),
            packages=("nftables",),
            suite="bookworm",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put nft 1.0 or newer on PATH",
            whole=True,
        ),
        Component(
            name="pebble",
            purpose="a certificate authority with ACME",
            binaries=("pebble",),
            version=("-h",),
            at_least=(),
            packages=("pebble",),
            suite="bookworm",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put pebble 2.4 or newer on PATH "
            "(https://github.com/letsencrypt/pebble)",
        ),
        Component(
            name="haproxy",
            purpose="the proxy of gateways",
            binaries=("haproxy",),
            version=("-v",),
            at_least=(2, 6),
            packages=("haproxy",),
            suite="bookworm",
            hint="as root on Debian or Ubuntu: make components; elsewhere: put haproxy 2.6 or newer on PATH",
            whole=True,
        ),
        Component(
            name="podman",
            purpose="the podman engine",
            binaries=("podman",),
            version=("--version",),
            at_least=(4, 3),
            packages=(
                "podman",
                "conmon",
                "runc",
                "netavark",
                "aardvark-dns",
                "iptables",
                "uidmap",
                "slirp4netns",
            ),
            suite="bookworm",
            hint="as root on Debian or Ubuntu: make components; elsewhere: install podman 4.3 or newer "
            "(https://podman.io/docs/installation)",
            whole=True,
            links=IPTABLES,
        ),
    )
}


# Finding: what tests ask.


def find(name: str, binary: str | None = None) -> Path | None:
    """The path of a component's binary (the first one, if none is named), or None where it is missing."""
    component = COMPONENTS[name]
    for found in _places(component, component.binaries[0]):
        if _version(component, found) >= component.at_least:
            beside = next(iter(_places(component, binary or component.binaries[0])), None)
            return found if binary is None else beside
    return None


def environment(*names: str) -> dict[str, str]:
    """Return the variables with which programs of these components find each other and their libraries."""
    homes = [HOME / name for name in names if (HOME / name).is_dir()]
    if not homes:
        return {}
    kinds = ("*-linux-gnu*/*.so*", "*/pulseaudio/*.so*")
    libraries = sorted({str(path.parent) for home in homes for kind in kinds for path in _libraries(home, kind)})
    plugins = [str(path) for home in homes for path in _libraries(home, "*-linux-gnu*/xtables")]
    paths = [str(home / folder) for home in homes for folder in FOLDERS]
    found = {"PATH": ":".join([*paths, os.environ.get("PATH", os.defpath)])}
    if libraries:
        found["LD_LIBRARY_PATH"] = ":".join(libraries)
    if plugins:
        found["XTABLES_LIBDIR"] = plugins[0]
    return found


def _libraries(home: Path, pattern: str) -> Iterator[Path]:
    return (home / "usr" / "lib").glob(pattern)


def missing(name: str) -> str:
    """One line for people: what is missing, and how to get it."""
    component = COMPONENTS[name]
    least = "".join(f" {'.'.join(map(str, version))} or newer" for version in [component.at_least] if version)
    return f"{name}{least} is missing ({component.purpose}); {component.hint}"


def _places(component: Component, binary: str) -> Iterator[Path]:
    for folder in FOLDERS:
        unpacked = HOME / component.name / folder / binary
        if unpacked.exists():
            yield unpacked
    on_path = shutil.which(binary, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}")
    if on_path:
        yield Path(on_path)


def _version(component: Component, binary: Path) -> tuple[int, ...]:
    try:
        answer = subprocess.run(
            [binary, *component.version],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            env=os.environ | environment(component.name),
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    number = re.search(r"\d+(\.\d+)+", answer.stdout + answer.stderr)
    return tuple(int(part) for part in number.group().split(".")) if number else ()


# Sources: the machine's own mirror, another suite.


@dataclass(frozen=True)
class System:
    """The distribution, as /etc/os-release names it."""

    family: str
    codename: str

    @staticmethod
    def here(text: str | None = None) -> System:
        if text is None:
            try:
                text = Path("/etc/os-release").read_text()
            except OSError:
                text = ""
        facts = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', text, re.MULTILINE))
        return System(facts.get("ID", ""), facts.get("VERSION_CODENAME", ""))

    def suite_for(self, component: Component) -> str:
        """The component's suite on an older Debian, the system's own everywhere else."""
        if self.family != "debian":
            return self.codename
        mine, needed = DEBIAN_RELEASES.get(self.codename, 99), DEBIAN_RELEASES[component.suite]
        if mine < needed and component.backports:
            return f"{self.codename}-backports"
        return component.suite if mine < needed else self.codename


def sources(etc: Path, codename: str, suite: str) -> tuple[str, str] | None:
    """The machine's main archive with `suite` in place of its own: file suffix and text for a private apt."""
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            text = "\n".join(line for line in stanza.splitlines() if not line.startswith("#"))
            suites = re.search(r"^Suites:(.*)$", text, re.MULTILINE)
            if suites and codename in suites.group(1).split() and re.search(r"^Types:.*\bdeb\b", text, re.MULTILINE):
                return ".sources", re.sub(r"^Suites:.*$", f"Suites: {suite}", text, flags=re.MULTILINE) + "\n"
    one_line = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    for path in one_line:
        for line in path.read_text().splitlines() if path.exists() else ():
            parts = re.match(rf"(deb\s+(?:\[[^]]*\]\s+)?\S+\s+){re.escape(codename)}(\s+.*)$", line)
            if parts:
                return ".list", f"{parts.group(1)}{suite}{parts.group(2)}\n"
    return None


def _private_apt(suffix: str, text: str, suite: str) -> list[str]:
    """An apt-get that reads the system's keys and settings, and keeps everything else under `.components/apt`."""
    home = HOME / "apt" / suite
    for folder in ("lists/partial", "cache/archives/partial", "sources.d"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / f"sources.d/mandor{suffix}").write_text(text)
    settings = {
        "Dir::State": home,
        "Dir::State::lists": home / "lists",
        "Dir::State::status": home / "status",
        "Dir::Cache": home / "cache",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": home / "sources.d",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": 3,
    }
    (home / "status").touch()
    return ["apt-get", "-q", *(f"-o{key}={value}" for key, value in settings.items())]


# Getting: what `make components` does.


def fetch(component: Component, system: System) -> None:
    """Download and unpack the component's packages; complete or not there at all."""
    suite, packages = system.suite_for(component), component.packages_on(system)
    found = sources(APT_ETC, system.codename, suite)
    if found is None:
        raise SystemExit(f"components: no source for {system.codename} in {APT_ETC}; {component.hint}")
    kind, text = found
    release: list[str] = []
    if suite.endswith("-backports"):  # What it depends on is in the system's own suite, where nothing newer is needed.
        _, own = sources(APT_ETC, system.codename, system.codename) or ("", "")
        text, release = f"{own}\n{text}", ["--target-release", suite]
    apt = _private_apt(kind, text, suite)
    scratch = HOME / f".{component.name}.{os.getpid()}"
    try:
        (scratch / "debs").mkdir(parents=True)
        _run([*apt, "update"], cwd=scratch)
        if component.whole:
            (scratch / "debs" / "partial").mkdir()
            _run([*apt, *release, *_as_if_installed(scratch / "debs"), *packages], cwd=scratch)
        else:
            _run([*apt, "download", *packages], cwd=scratch / "debs")
        for package in sorted((scratch / "debs").glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(scratch / "root")], cwd=scratch)
        for path, target in component.links:
            name = scratch / "root" / path
            if name.with_name(target).exists() and not name.exists():
                name.symlink_to(target)
        home = HOME / component.name
        shutil.rmtree(home, ignore_errors=True)
        (scratch / "root").rename(home)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _as_if_installed(folder: Path) -> list[str]:
    """Download what the system would need for these packages; it is asked what it has, and gets nothing."""
    return [
        "-oDir::State::status=/var/lib/dpkg/status",
        f"-oDir::Cache::archives={folder}/",
        "-oDebug::NoLocking=1",
        "--yes",
        "--no-install-recommends",
        "--download-only",
        "install",
    ]


def _run(command: Sequence[str], *, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise SystemExit(f"components: `{command[0]} … {' '.join(command[-3:])}` failed:\n{said}")


def main(environ: Mapping[str, str]) -> int:
    """Get what is missing, and say in one line for each component what became of it."""
    system = System.here()
    apt = shutil.which("apt-get") and shutil.which("dpkg") and system.family in {"debian", "ubuntu"}
    asked = set(environ.get("WITH", "").replace(",", " ").split())
    on_ci = environ.get("CI") == "true"
    unknown = asked - COMPONENTS.keys()
    if unknown:
        print(f"components: no component called {', '.join(sorted(unknown))}; known: {', '.join(COMPONENTS)}")
        return 2
    for component in COMPONENTS.values():
        there = find(component.name)
        if there:
            print(f"components: {component.name} is there: {there}")
            continue
        wanted = component.name in asked or on_ci or (os.geteuid() == 0 and not component.only_when_asked)
        packages = component.packages_on(system)
        if not (apt and wanted and packages):
            print(f"components: skipped: {missing(component.name)}")
            continue
        suite = system.suite_for(component)
        print(
            f"components: {component.name}: unpacking {', '.join(packages)} ({suite}) under {HOME}",
            flush=True,
        )
        fetch(component, system)
        if find(component.name) is None:
            print(f"components: what was unpacked does not run: {missing(component.name)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
