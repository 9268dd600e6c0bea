"""The configuration on disk: followed, and a bad change refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mandor.errors import Invalid
from mandor.lib.clock import ManualClock, settle
from mandor.lib.delay import Delay
from mandor.placement.framework.handle import DETACHED
from mandor.placement.framework.profile import Profile
from mandor.scheduler.queue import PAUSE
from mandor.scheduler.reload import LOOK_SECONDS, ConfigSource, Configured
from tests.unit.placement.test_plugin_source import write

ENABLED = "profiles:\n- plugins:\n    multiPoint:\n      enabled:\n      - name: {}\n"


class Desk:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler.yaml"
        self.plugins = folder / "plugins"
        self.plugins.mkdir()
        self.file.write_text("profiles: []\n")
        self.configured = Configured(ConfigSource(self.file, self.plugins))
        self.used = [self.configured.profiles(DETACHED)]

    def check(self) -> bool:
        return self.configured.check(self.use)

    def use(self, profiles: dict[str, Profile], pause: Delay) -> None:
        self.used.append(profiles)
        self.pause = pause

    @property
    def profile(self) -> Profile:
        return self.used[-1]["default"]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.req("S0-3", "S1-28", "S1-31")
def test_a_changed_file_applies_without_a_restart(desk: Desk) -> None:
    assert not desk.check()
    desk.file.write_text("profiles:\n- plugins: {score: {disabled: [{name: '*'}]}}\n")
    assert desk.check()
    assert desk.profile.scores == ()
    assert not desk.check(), "once"


@pytest.mark.req("S1-39")
def test_changed_pauses_apply_without_a_restart(desk: Desk) -> None:
    desk.file.write_text("podInitialBackoffSeconds: 3\npodMaxBackoffSeconds: 7\n")
    assert desk.check()
    assert desk.pause == Delay(3, 7)
    desk.file.write_text("profiles: []\n")
    assert desk.check()
    assert desk.pause == PAUSE


@pytest.mark.parametrize(
    "content",
    [
        "profiles: 3\n",
        ENABLED.format("Nobody"),
        "profiles: [",
        "\0",
        "profiles:\n- plugins: {bind: {disabled: [{name: '*'}]}}\n",
    ],
)
def test_a_bad_change_is_refused_and_the_old_goes_on(
    desk: Desk, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk.file.write_text(content)
    with caplog.at_level(logging.ERROR):
        assert not desk.check()
        assert not desk.check(), "said once"
    assert len(desk.used) == 1
    (record,) = caplog.records
    assert "is invalid, the previous one stays in use: " in record.getMessage()
    desk.file.write_text("profiles:\n- schedulerName: good\n")
    assert desk.check()


def test_a_file_that_vanishes_changes_nothing(desk: Desk) -> None:
    desk.file.unlink()
    assert not desk.check()
    assert len(desk.used) == 1


@pytest.mark.req("S1-29")
def test_a_plugin_file_is_taken_up_changed_and_refused_while_running(desk: Desk) -> None:
    write(desk.plugins, "mine.py")
    desk.file.write_text(ENABLED.format("Mine"))
    assert desk.check()
    first = desk.profile
    (version,) = first.versions
    assert version.startswith("Mine@")

    write(desk.plugins, "mine.py", answer="False")
    assert desk.check()
    assert desk.profile.versions != first.versions
    assert desk.profile.plugin("Mine") is not first.plugin("Mine")
    assert desk.profile.plugin("NodePorts") is first.plugin("NodePorts"), "the others live on"

    (desk.plugins / "mine.py").write_text("def broken(:\n")
    assert not desk.check()
    (desk.plugins / "mine.py").unlink()
    assert not desk.check(), "what is enabled cannot be taken away"


def test_at_the_start_a_mistake_is_raised(tmp_path: Path) -> None:
    for source, problem in (
        (ConfigSource(tmp_path / "nothing.yaml"), "cannot read the scheduler configuration"),
        (ConfigSource(None, tmp_path / "nowhere"), "cannot read the plugin folder"),
    ):
        with pytest.raises(Invalid, match=problem):
            Configured(source).profiles(DETACHED)
    assert list(Configured(ConfigSource()).profiles(DETACHED)) == ["default", "baremetal"]


def test_ignored_keys_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "c.yaml").write_text("percentageOfNodesToScore: 30\n")
    Configured(ConfigSource(tmp_path / "c.yaml")).profiles(DETACHED)
    assert "the unsupported key percentageOfNodesToScore, which is ignored" in caplog.text


async def test_files_are_checked_every_few_seconds(desk: Desk) -> None:
    import asyncio

    clock = ManualClock()
    following = asyncio.ensure_future(desk.configured.follow(clock, desk.use))
    await settle()
    desk.file.write_text("profiles:\n- schedulerName: other\n")
    await clock.advance(LOOK_SECONDS)
    following.cancel()
    assert "other" in desk.used[-1]


def test_the_pause_between_tries_is_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("podInitialBackoffSeconds: 3\n")
    assert Configured(ConfigSource(tmp_path / "c.yaml")).pause().first_seconds == 3
    assert Configured(ConfigSource()).pause().first_seconds == 1
