"""Where components come from: the machine's own mirror, whatever its form, and nothing without being asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import components
from scripts.components import COMPONENTS, System, sources

ETCD = COMPONENTS["etcd"]

DEB822 = """\
Types: deb
URIs: https://mirror.example/security
Suites: bookworm-security
Components: main

Types: deb
# as it was delivered
URIs: https://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""

ONE_LINE = """\
# deb cdrom:[Debian]/ bookworm main
deb-src https://mirror.example/debian bookworm main
deb https://mirror.example/security bookworm-security main
deb [signed-by=/k.gpg arch=amd64] https://mirror.example/debian bookworm main contrib
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_a_newer_suite_comes_from_the_same_mirror_with_the_same_key(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources").write_text(DEB822)
    found = sources(etc, "bookworm", "trixie")
    assert found is not None
    suffix, text = found
    assert suffix == ".sources"
    assert text.splitlines() == [
        "Types: deb",
        "URIs: https://mirror.example/debian",
        "Suites: trixie",
        "Components: main",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
    ]


def test_the_one_line_form_is_understood_with_its_options(etc: Path) -> None:
    (etc / "sources.list").write_text(ONE_LINE)
    assert sources(etc, "bookworm", "trixie") == (
        ".list",
        "deb [signed-by=/k.gpg arch=amd64] https://mirror.example/debian trixie main contrib\n",
    )


def test_a_machine_without_a_source_is_reported_apart(etc: Path) -> None:
    assert sources(etc, "bookworm", "trixie") is None


@pytest.mark.parametrize(
    ("release", "suite"),
    [
        ("ID=debian\nVERSION_CODENAME=bookworm\n", "trixie"),
        ("ID=debian\nVERSION_CODENAME=trixie\n", "trixie"),
        ("ID=debian\nVERSION_CODENAME=forky\n", "forky"),
        ('ID=ubuntu\nVERSION_CODENAME="noble"\n', "noble"),
    ],
)
def test_packages_are_taken_from_a_newer_suite_only_where_they_must_be(release: str, suite: str) -> None:
    assert System.here(release).suite_for(ETCD) == suite


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A Debian machine without any component; the list fills with what would be fetched."""
    fetched: list[str] = []
    monkeypatch.setattr(components, "find", lambda name, binary=None: Path("/x") if name in fetched else None)
    monkeypatch.setattr(components, "fetch", lambda component, system: fetched.append(component.name))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(System, "here", staticmethod(lambda: System("debian", "bookworm")))
    return fetched


ALL = list(components.COMPONENTS)


@pytest.mark.parametrize(
    ("user", "environ", "fetched"),
    [(0, {}, ALL), (1000, {}, []), (1000, {"WITH": "etcd"}, ["etcd"]), (1000, {"CI": "true"}, ALL)],
)
def test_nothing_is_fetched_without_root_unless_it_was_asked_for(
    bare: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    user: int,
    environ: dict[str, str],
    fetched: list[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert components.main(environ) == 0
    assert bare == fetched
    said = capsys.readouterr().out
    assert ("unpacking etcd-server, etcd-client (trixie)" in said) == bool(fetched)
    assert ("skipped: etcd 3.4 or newer is missing" in said) == (not fetched)


def test_another_system_skips_what_is_missing_and_reports_it(
    bare: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(System, "here", staticmethod(lambda: System("fedora", "")))
    assert components.main({"CI": "true"}) == 0
    assert bare == []
    assert "elsewhere: put etcd and etcdctl 3.4+ on PATH" in capsys.readouterr().out


def test_an_unknown_component_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert components.main({"WITH": "etdc"}) == 2
    assert "no component called etdc" in capsys.readouterr().out


def test_a_binary_that_is_too_old_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "etcd"
    old.write_text("#!/bin/sh\necho etcd Version: 3.3.25\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(components, "HOME", tmp_path / "none")
    assert components.find("etcd") is None
    old.write_text("#!/bin/sh\necho etcd Version: 3.4.30\n")
    assert components.find("etcd") == old


def test_packages_have_the_names_of_the_system(
    bare: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(System, "here", staticmethod(lambda: System("ubuntu", "noble")))
    assert components.main({}) == 0
    shown = capsys.readouterr().out
    assert "unpacking incus, incus-client, dnsmasq-base, nftables (noble)" in shown
    assert "skipped: chromium 100 or newer is missing" in shown
    assert bare == [name for name in ALL if name != "chromium"]
