"""Engines are found by name, and errors name the engine or the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from mandor.engines.fake import FakeEngine
from mandor.engines.process import ProcessEngine
from mandor.engines.registry import known_engines, make_engine
from mandor.errors import Invalid
from mandor.lib import registry
from mandor.roots.agent import make_engines

BUILT_IN = ("cri", "docker", "fake", "incus", "podman", "process")


def test_the_built_in_engines_are_known() -> None:
    assert set(BUILT_IN) <= set(known_engines())


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_built_in_engine_can_be_made_and_touches_nothing(name: str, tmp_path: Path) -> None:
    assert make_engine(name, directory=tmp_path / name).name == name
    assert not (tmp_path / name / "owner").exists()


def test_an_engine_is_made_by_name_with_its_settings(tmp_path: Path) -> None:
    assert isinstance(make_engine("process", directory=tmp_path / "p", limits=False), ProcessEngine)
    fake = make_engine("fake", directory=tmp_path / "f", seed=7)
    assert isinstance(fake, FakeEngine)


def test_an_engine_that_does_not_exist_is_refused_with_a_guess(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no engine 'proces'") as caught:
        make_engine("proces", directory=tmp_path)
    assert caught.value.hint == "did you mean `process`?"


def test_a_setting_that_does_not_exist_is_refused_with_a_guess(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no setting `limit`") as caught:
        make_engine("process", directory=tmp_path, limit=True)
    assert "limits" in (caught.value.hint or "")


def test_an_entry_point_that_makes_no_engine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandor.lib.registry.load", lambda group, name: lambda directory: "not an engine")
    with pytest.raises(Invalid, match="is not an Engine"):
        make_engine("strange", directory=tmp_path)


def test_an_engine_whose_package_is_broken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(group: str, name: str) -> object:
        raise ModuleNotFoundError("No module named 'missing'")

    monkeypatch.setattr("mandor.lib.registry.load", load)
    with pytest.raises(Invalid, match="cannot be loaded: No module named 'missing'"):
        make_engine("broken", directory=tmp_path)


def test_text_settings_are_converted_to_the_types_of_the_engine(tmp_path: Path) -> None:
    engine = make_engine("process", directory=tmp_path, limits="false")
    assert isinstance(engine, ProcessEngine)
    with pytest.raises(Invalid, match=r"process\.limits has an invalid value 'perhaps'"):
        make_engine("process", directory=tmp_path, limits="perhaps")


def test_engine_options_of_an_agent_configure_its_engines(tmp_path: Path) -> None:
    made = make_engines(("docker", "process"), tmp_path, ("docker.socket=/somewhere/else.sock", "process.limits=false"))
    assert list(made) == ["docker", "process"]
    for wrong in ("docker.sokcet=/x", "dokcer.socket=/x", "socket=/x", "docker.socket"):
        with pytest.raises(Invalid):
            make_engines((), tmp_path, (wrong,))


def test_an_engine_that_cannot_be_loaded_is_left_out_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = registry.load

    def load(group: str, name: str) -> object:
        if name == "cri":
            raise ModuleNotFoundError("No module named 'grpc'")
        return whole(group, name)

    monkeypatch.setattr("mandor.lib.registry.load", load)
    assert "cri" not in make_engines((), tmp_path)
    with pytest.raises(Invalid, match="grpc"):
        make_engines(("cri",), tmp_path)
