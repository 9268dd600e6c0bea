"""Engine suite, mounts: announced kinds work, others are refused."""

from pathlib import Path

import pytest

from mandor.engines.base import Engine, Launch, Mount
from mandor.testing.engine_watch import EngineWatch

MIB = 1024 * 1024


class EngineMounts(EngineWatch):
    @pytest.mark.req("S2-37")
    async def test_a_folder_of_the_node_is_mounted_at_its_path(self, engine: Engine, volume: Path) -> None:
        launch = self.shows_file(f"{self.mount_path}/seen", mounts=self._at(volume))
        if await self._can(engine, "mounts"):
            assert await self._output(engine, launch) == ["kept"]
        else:
            await self._refuses(engine, launch)

    @pytest.mark.req("S2-37", "S2-39")
    async def test_files_in_a_volume_outlive_the_unit(self, engine: Engine, volume: Path) -> None:
        if not await self._can(engine, "mounts"):
            await self._refuses(engine, self.exits(0, mounts=self._at(volume)))
            return
        unit = await self._start(engine, self.writes_file(f"{self.mount_path}/new", "text", mounts=self._at(volume)))
        assert (await self._ended(engine, unit)).reason == "Completed"
        await engine.remove(unit)
        assert (volume / "new").read_text(encoding="utf-8") == "text\n"
        assert (volume / "seen").exists()
        launch = self.shows_file(f"{self.mount_path}/new", mounts=self._at(volume))
        assert await self._output(engine, launch) == ["text"]

    async def test_nothing_can_be_written_to_a_read_only_mount(self, engine: Engine, volume: Path) -> None:
        mounts = self._at(volume, read_only=True)
        unit = await self._start(engine, self.writes_file(f"{self.mount_path}/seen", "changed", mounts=mounts))
        ended = await self._ended(engine, unit)
        assert ended.reason == ("Error" if await self._can(engine, "mounts") else "StartFailed")
        assert (volume / "seen").read_text(encoding="utf-8") == "kept\n"

    async def test_a_running_task_reads_a_replaced_file_after_a_signal(self, engine: Engine, volume: Path) -> None:
        """How changed secrets reach a running task (`on_change: signal`)."""
        await self._needs(engine, "mounts", "signal")
        mounts = self._at(volume, read_only=True)
        unit = await self._start(engine, self.shows_on_signal("SIGUSR1", f"{self.mount_path}/seen", mounts=mounts))
        begun = await self._running(engine, unit)
        await self._printed(engine, unit, 1)
        for number, text in enumerate(("kept", "second", "third"), start=2):
            (volume / ".new").write_text(f"{text}\n", encoding="utf-8")
            (volume / ".new").replace(volume / "seen")
            (volume / "seen").chmod(0o644)
            await engine.signal(unit, "SIGUSR1")
            await self._printed(engine, unit, number)
            assert (await self._lines(engine, unit))[-1] == text
        assert (await self._look(engine, unit)).started_at == begun.started_at

    @pytest.mark.req("S2-37")
    async def test_a_new_volume_gets_the_content_of_the_image(self, engine: Engine, volume: Path) -> None:
        await self._needs(engine, "seed")
        folder, name = self.seeded_path
        if not folder:
            pytest.skip("the engine has images without content")
        (volume / "seen").unlink()
        mounts = (Mount(path=folder, source=str(volume), name="data", seed=True),)
        shown = await self._output(engine, self.shows_file(f"{folder}/{name}", mounts=mounts))
        assert "\n".join(shown).strip() == (volume / name).read_text(encoding="utf-8").strip() != ""
        (volume / name).write_text("changed\n", encoding="utf-8")
        assert await self._output(engine, self.shows_file(f"{folder}/{name}", mounts=mounts)) == ["changed"]

    async def test_a_volume_that_is_not_new_gets_nothing_from_the_image(self, engine: Engine, volume: Path) -> None:
        await self._needs(engine, "mounts", "seed")
        folder, _ = self.seeded_path
        if not folder:
            pytest.skip("the engine has images without content")
        (volume / "seen").unlink()
        mounts = (Mount(path=folder, source=str(volume), name="data"),)
        unit = await self._start(engine, self.writes_file(f"{folder}/new", "text", mounts=mounts))
        assert (await self._ended(engine, unit)).reason == "Completed"
        assert sorted(each.name for each in volume.iterdir()) == ["new"]

    async def test_a_command_in_a_unit_sees_its_mounts(self, engine: Engine, volume: Path) -> None:
        await self._needs(engine, "mounts", "exec")
        unit = await self._start(engine, self.sleeps(mounts=self._at(volume)))
        await self._running(engine, unit)
        command = self.tells_file(f"{self.mount_path}/seen")
        assert await self._run(engine, unit, command) == (b"kept\n", b"", 0)

    async def test_a_relative_path_is_below_the_working_directory(self, engine: Engine, volume: Path) -> None:
        launch = self.shows_file("some/data/seen", mounts=(Mount(path="some/data", source=str(volume), name="data"),))
        if await self._can(engine, "links"):
            assert await self._output(engine, launch) == ["kept"]
            assert (volume / "seen").exists()
        else:
            await self._refuses(engine, launch)

    async def test_a_tmpfs_has_the_given_size(self, engine: Engine) -> None:
        mounts = (Mount(path=self.mount_path, size_bytes=2 * MIB),)
        if not await self._can(engine, "tmpfs"):
            await self._refuses(engine, self.exits(0, mounts=mounts))
            return
        for size, reason in ((MIB, "Completed"), (4 * MIB, "Error")):
            unit = await self._start(engine, self.fills(self.mount_path, size, mounts=mounts))
            assert (await self._ended(engine, unit)).reason == reason

    async def test_a_missing_mount_source_is_refused_and_not_created(self, engine: Engine, volume: Path) -> None:
        missing = volume / "missing"
        await self._refuses(engine, self.exits(0, mounts=self._at(missing)))
        assert not missing.exists()

    @pytest.mark.req("S2-6")
    async def test_a_mounted_hosts_file_shows_later_changes(self, engine: Engine, volume: Path) -> None:
        """A single file, read-only, changed in place: how tasks find each other by name."""
        extras = await self._needs(engine, "hosts", "exec")
        file = volume / "hosts"
        mounts = (Mount(path="/etc/hosts", source=str(file), read_only=True),)
        command = self.tells_file("/etc/hosts")
        for sandbox in (False, True) if "sandbox" in extras else (False,):
            file.write_text("127.0.0.1 localhost\n192.0.2.1 first\n", encoding="utf-8")
            file.chmod(0o644)
            unit = await self._start(engine, self.sleeps(name="suite-0/main", mounts=mounts, sandbox=sandbox))
            await self._running(engine, unit)
            assert await self._run(engine, unit, command) == (file.read_bytes(), b"", 0)
            with file.open("r+", encoding="utf-8") as same:
                same.write("127.0.0.1 localhost\n192.0.2.2 second\n")
            assert await self._run(engine, unit, command) == (file.read_bytes(), b"", 0)

    def _at(self, source: Path, *, read_only: bool = False) -> tuple[Mount, ...]:
        return (Mount(path=self.mount_path, source=str(source), name="data", read_only=read_only),)

    async def _can(self, engine: Engine, word: str) -> bool:
        return word in (await engine.probe()).extras

    async def _refuses(self, engine: Engine, launch: Launch) -> None:
        unit = await self._start(engine, launch)
        ended = await self._ended(engine, unit)
        assert ended.reason == "StartFailed"
        assert launch.mounts[0].path in ended.message
