"""Plugins and configuration that another user of the machine could change are refused."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mandor.agent.journal import SECRET_FILES, Journal
from mandor.baremetal.targets import read_targets
from mandor.errors import Invalid
from mandor.lib.owned_file import Unsafe, read_owned
from mandor.placement.plugin_source import find_plugins
from mandor.roots import agent, server
from mandor.roots.private_files import SERVER_FILES, check_private_files
from mandor.roots.settings import AgentRootSettings, ServerSettings, load
from mandor.scheduler.reload import ConfigSource

STRANGER = 4242
OPEN_FOLDERS = Path(tempfile.gettempdir())
"""Where other users can go; folders of pytest are closed to them."""
PLUGIN = """
from mandor.plugin import FilterPlugin

class Nothing(FilterPlugin):
    name = "Nothing"

    def filter(self, request, nodes):
        return nodes.everyone
"""


def world_writable(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def of_a_stranger(path: Path) -> None:
    if os.geteuid():
        pytest.skip("giving a file to another user takes root")
    os.chown(path, STRANGER, STRANGER)


def in_a_strange_folder(path: Path) -> None:
    world_writable(path.parent)


Spoil = Callable[[Path], None]
SPOILS: list[Spoil] = [world_writable, of_a_stranger, in_a_strange_folder]


def use_plugin(folder: Path) -> tuple[Path, Callable[[], object]]:
    file = folder / "nothing.py"
    file.write_text(PLUGIN)
    return file, lambda: find_plugins(folder, ())


def use_profiles(folder: Path) -> tuple[Path, Callable[[], object]]:
    file = folder / "scheduler.yaml"
    file.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    return file, ConfigSource(file, None).read


def use_settings(folder: Path) -> tuple[Path, Callable[[], object]]:
    file = folder / "mandor.toml"
    file.write_text("[server]\n")
    return file, lambda: load(ServerSettings, "server", file=str(file), environ={}, flags={})


def use_pipelines(folder: Path) -> tuple[Path, Callable[[], object]]:
    file = folder / "pipelines.yaml"
    file.write_text("{}\n")
    return file, lambda: read_targets(str(file))


USES = [use_plugin, use_profiles, use_settings, use_pipelines]


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("use", USES)
def test_a_file_that_others_can_change_is_refused_with_the_command_to_run(
    tmp_path: Path, use: Callable[[Path], tuple[Path, Callable[[], object]]], spoil: Spoil
) -> None:
    folder = tmp_path / "configuration"
    folder.mkdir()
    file, read = use(folder)
    read()
    spoil(file)
    with pytest.raises(Invalid, match=r"run `ch(mod|own) "):
        read()


def test_a_plugin_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Invalid, match="can be changed by other users"):
        find_plugins(folder, ())


def test_a_link_leads_to_a_file_that_is_checked_where_it_lies(tmp_path: Path) -> None:
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "real").write_text("text")
    strange.chmod(0o777)
    own = tmp_path / "own"
    own.mkdir()
    (own / "link").symlink_to(strange / "real")
    with pytest.raises(Unsafe):
        read_owned(own / "link")


def test_the_file_that_was_checked_is_the_one_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is exchanged after it was opened changes nothing."""
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("mine")
    other.write_text("theirs")
    real = os.fstat

    def exchange(handle: int) -> os.stat_result:
        if other.exists():
            other.replace(file)
        return real(handle)

    monkeypatch.setattr("mandor.lib.owned_file.os.fstat", exchange)
    assert read_owned(file) == b"mine"


def test_a_file_in_a_sticky_folder_is_fine_and_plugins_in_one_are_not(tmp_path: Path) -> None:
    sticky = tmp_path / "sticky"
    inside = sticky / "inside"
    inside.mkdir(parents=True)
    sticky.chmod(0o1777)
    (inside / "file").write_text("text")
    assert read_owned(inside / "file") == b"text"
    (sticky / "file").write_text("text")
    assert read_owned(sticky / "file") == b"text"
    with pytest.raises(Invalid):
        find_plugins(sticky, ())


# The data directory and the secrets in it.


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=OPEN_FOLDERS) as name:
        top = Path(name)
        top.chmod(0o755)
        data = top / "data"
        data.mkdir()
        data.chmod(0o755)
        yield data


def secret_file(path: Path, mode: int = 0o600) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("ab" * 32 + "\n")
    path.chmod(mode)
    return path


def starts(data: Path, kind: str, **settings: Any) -> None:
    """Start the program as far as its checks; `Started` is raised by what follows them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        if kind == "server":
            server.run(ServerSettings(data=str(data), **settings))
        else:
            agent.run(AgentRootSettings(data=str(data), server=("https://127.0.0.1:1",), **settings))
    finally:  # A program sets up logging for its whole process.
        root.handlers[:] = handlers
        root.setLevel(level)


class Started(Exception):
    pass


@pytest.fixture(autouse=True)
def _stop_after_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise Started

    monkeypatch.setattr("mandor.roots.server._allow_files", stop)
    monkeypatch.setattr("mandor.roots.agent.hold", stop)


def check_refused(data: Path, kind: str, command: str, **settings: Any) -> None:
    with pytest.raises(Invalid) as caught:
        starts(data, kind, **settings)
    assert f"run `{command}`" in str(caught.value)


@pytest.mark.parametrize("kind", ["server", "agent"])
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777], ids=oct)
def test_a_data_directory_that_others_can_write_is_refused(home: Path, kind: str, mode: int) -> None:
    with pytest.raises(Started):
        starts(home, kind)
    home.chmod(mode)
    check_refused(home, kind, f"chmod go-w {home}")


@pytest.mark.parametrize("kind", ["server", "agent"])
def test_a_data_directory_in_a_folder_that_others_can_write_is_refused(home: Path, kind: str) -> None:
    home.parent.chmod(0o777)
    check_refused(home, kind, f"chmod go-w {home.parent}")
    home.parent.chmod(0o1777)  # as /tmp: others cannot replace it
    with pytest.raises(Started):
        starts(home, kind)
    missing = home / "not" / "yet"
    home.chmod(0o777)
    check_refused(missing, kind, f"chmod go-w {home}")


@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("server", each) for each in ("secrets.key", *SERVER_FILES)), *(("agent", each) for each in SECRET_FILES)],
)
def test_a_secret_file_that_others_can_read_or_write_is_refused(home: Path, kind: str, name: str) -> None:
    file = secret_file(home / name)
    with pytest.raises(Started):
        starts(home, kind)
    file.chmod(0o604)
    check_refused(home, kind, f"chmod o-r {file}")
    file.chmod(0o602)
    check_refused(home, kind, f"chmod go-w {file}")


def test_a_key_of_another_folder_is_checked_where_it_lies(home: Path) -> None:
    file = secret_file(home.parent / "elsewhere" / "key", 0o644)
    file.parent.chmod(0o755)
    check_refused(home, "server", f"chmod o-r {file}", secrets_key=str(file))
    link = home / "link"
    link.symlink_to(file)
    check_refused(home, "server", f"chmod o-r {file}", secrets_key=str(link))
    file.chmod(0o600)
    file.parent.chmod(0o777)
    check_refused(home, "server", f"chmod go-w {file.parent}", secrets_key=str(link))


def test_a_group_may_read_where_this_process_is_in_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Volumes of Kubernetes belong to root and to the group of `fsGroup`."""
    file = secret_file(home / "secrets.key", 0o640)
    with pytest.raises(Started):
        starts(home, "server")
    monkeypatch.setattr("mandor.lib.private_path.os.getgroups", lambda: [STRANGER])
    monkeypatch.setattr("mandor.lib.private_path.os.getegid", lambda: STRANGER)
    check_refused(home, "server", f"chmod g-r {file}")


def test_a_folder_that_is_closed_to_others_hides_what_is_below_it(home: Path) -> None:
    """A volume that everybody may write, as `emptyDir` of Kubernetes is, in the home of the image's user."""
    home.parent.chmod(0o700)
    home.chmod(0o777)
    secret_file(home / "secrets.key", 0o644)
    for kind in ("server", "agent"):
        with pytest.raises(Started):
            starts(home, kind)


def test_a_volume_of_another_user_is_fine(home: Path) -> None:
    of_a_stranger(home)
    check_private_files(home, SERVER_FILES)


def test_files_that_programs_write_themselves_pass_the_check(home: Path) -> None:
    journal = Journal(home)
    journal.keep_credential("first")
    journal.keep_next_credential("second")
    journal.node_key(lambda: "key")
    check_private_files(home, SECRET_FILES)
