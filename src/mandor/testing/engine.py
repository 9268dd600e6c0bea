"""Conformance suite for engines. Subclass `EngineSuite`, define `make_engine`, run pytest.

class TestMyEngine(EngineSuite):
    image = "busybox"  # for engines that run images; it must have a POSIX shell

    def make_engine(self, directory: Path) -> Engine:
        return MyEngine(directory=directory)

What a task does in a test is asked of a small hook (`sleeps`, `prints`, `exits` …), which by default runs a shell; an
engine without one overrides the hooks. What an engine announces (`Capabilities`) is tested to be so; what it does not
announce is tested to do no harm.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from mandor.engines.base import Engine, LogLine, Unit, UnitPhase
from mandor.errors import NotFound, Unsupported
from mandor.model.task import File
from mandor.testing.engine_images import EngineImages
from mandor.testing.engine_mounts import EngineMounts
from mandor.testing.engine_network import EngineNetwork
from mandor.testing.engine_trouble import EngineTrouble
from mandor.testing.engine_watch import where_announced

LIMITS = {"cpu", "memory", "processes"}
EXTRAS = {"logs", "exec", "signal", "stats", "events", "pull", "sandbox", "snapshot", "migrate", "user", "network"}
EXTRAS |= {"security", "mounts", "links", "tmpfs", "ports", "hosts", "clean", "confined", "mapped-users", "seed"}
EXTRAS |= {"resolver", "overlay"}

LOADS = {"archive", "incus"}


class EngineSuite(EngineTrouble, EngineNetwork, EngineMounts, EngineImages):
    @pytest.fixture(autouse=True)
    async def nothing_is_left(self) -> AsyncIterator[None]:
        """Check that removed units leave no process, no cgroup and no mount."""
        self._uids: list[str] = []
        yield
        await self._until(lambda: _finished(not self.traces(self._uids)), lambda: f"left: {self.traces(self._uids)}")

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return tmp_path / "engine"

    @pytest.fixture
    async def engine(self, nothing_is_left: None, directory: Path) -> AsyncIterator[Engine]:
        async with self.make_engine(directory) as engine:
            yield engine
            for observed in await engine.list():
                await engine.remove(observed.unit)

    # Start, stop, remove.

    async def test_its_capabilities_are_known_and_complete(self, engine: Engine) -> None:
        capabilities = await engine.probe()
        assert capabilities.limits <= LIMITS
        assert capabilities.extras <= EXTRAS
        assert capabilities.loads <= LOADS
        assert capabilities.up
        assert capabilities.images == (self.image is not None)
        assert self.limits is None or capabilities.limits == self.limits
        assert self.extras is None or capabilities.extras == self.extras

    @pytest.mark.req("S2-25")
    async def test_a_started_unit_runs_until_it_is_stopped(self, engine: Engine) -> None:
        unit = await self._start(engine, self.sleeps())
        running = await self._running(engine, unit)
        assert abs(running.started_at - time.time()) < self.patience_seconds
        await self._printed(engine, unit, 1)
        await engine.stop(unit, grace_seconds=self.patience_seconds)
        ended = await self._look(engine, unit)
        assert (ended.phase, ended.exit_code, ended.reason) == (UnitPhase.EXITED, 0, "Completed")
        assert ended.started_at <= ended.finished_at <= time.time() + 1
        await engine.remove(unit)
        assert unit not in await self._units(engine)

    @pytest.mark.req("S0-27")
    async def test_a_second_start_starts_nothing(self, engine: Engine) -> None:
        unit, launch = self._unit(), self.sleeps()
        await asyncio.gather(*(engine.start(unit, launch) for _ in range(5)))
        await self._running(engine, unit)
        await engine.start(unit, launch)
        await self._printed(engine, unit, 1)
        assert [observed.unit for observed in await engine.list()] == [unit]
        await engine.stop(unit, grace_seconds=self.patience_seconds)
        assert await self._lines(engine, unit) == ["begun"]

    @pytest.mark.req("S0-27")
    async def test_an_exited_unit_is_not_started_again(self, engine: Engine) -> None:
        unit = await self._start(engine, self.prints(["once"]))
        before = await self._ended(engine, unit)
        await engine.start(unit, self.prints(["twice"]))
        assert await self._look(engine, unit) == before
        assert await self._lines(engine, unit) == ["once"]

    async def test_attempts_and_tasks_of_an_instance_are_separate_units(self, engine: Engine) -> None:
        uid = self._unit().uid
        units = [Unit(uid, "main", 0), Unit(uid, "main", 1), Unit(uid, "log-shipper", 0)]
        await asyncio.gather(*(engine.start(unit, self.sleeps()) for unit in units))
        assert sorted(await self._units(engine)) == sorted(units)
        await engine.remove(units[0])
        assert sorted(await self._units(engine)) == sorted(units[1:])
        assert (await self._running(engine, units[1])).unit == units[1]

    @pytest.mark.req("S0-15")
    async def test_many_start_at_once(self, engine: Engine) -> None:
        units = [self._unit() for _ in range(8)]
        await asyncio.gather(*(engine.start(unit, self.sleeps()) for unit in units))
        await asyncio.gather(*(self._running(engine, unit) for unit in units))
        await asyncio.gather(*(engine.remove(unit) for unit in units))
        assert await engine.list() == []

    async def test_stop_and_remove_of_an_unknown_unit_do_nothing(self, engine: Engine) -> None:
        other = await self._start(engine, self.sleeps())
        unit = self._unit()
        await engine.stop(unit, grace_seconds=0)
        await engine.remove(unit)
        assert [observed.unit for observed in await engine.list()] == [other]

    async def test_stopping_and_removing_again_changes_nothing(self, engine: Engine) -> None:
        unit = await self._start(engine, self.sleeps())
        await self._printed(engine, unit, 1)
        grace = self.patience_seconds
        await asyncio.gather(*(engine.stop(unit, grace_seconds=grace) for _ in range(4)))
        ended = await self._look(engine, unit)
        await engine.stop(unit, grace_seconds=grace)
        assert await self._look(engine, unit) == ended
        await asyncio.gather(*(engine.remove(unit) for _ in range(4)))
        await engine.remove(unit)
        assert await engine.list() == []

    async def test_a_unit_can_be_stopped_while_it_starts(self, engine: Engine) -> None:
        unit = self._unit()
        starting = asyncio.create_task(engine.start(unit, self.sleeps()))
        await asyncio.sleep(0.02)
        await engine.stop(unit, grace_seconds=0)
        await starting
        await engine.stop(unit, grace_seconds=0)
        assert (await self._ended(engine, unit)).phase is UnitPhase.EXITED

    async def test_remove_ends_a_running_unit(self, engine: Engine) -> None:
        unit = await self._start(engine, self.ignores())
        await self._printed(engine, unit, 1)
        await engine.remove(unit)
        assert await engine.list() == []

    # Ends.

    @pytest.mark.req("S2-44")
    @pytest.mark.parametrize("code", [0, 1, 7, 255])
    async def test_the_exit_code_is_the_programs_own(self, engine: Engine, code: int) -> None:
        unit = await self._start(engine, self.exits(code))
        ended = await self._ended(engine, unit)
        assert (ended.exit_code, ended.reason) == (code, "Error" if code else "Completed")

    @pytest.mark.req("S2-44")
    async def test_an_end_by_a_signal_is_reported(self, engine: Engine) -> None:
        unit = await self._start(engine, self.dies("SIGKILL"))
        ended = await self._ended(engine, unit)
        assert (ended.exit_code, ended.reason) == (137, "Signalled")

    @pytest.mark.req("S2-44")
    async def test_a_unit_that_cannot_start_is_listed_as_exited_with_a_reason(self, engine: Engine) -> None:
        unit = await self._start(engine, self.cannot_start())
        ended = await self._ended(engine, unit)
        assert ended.reason == "StartFailed"
        assert ended.message

    async def test_stop_sends_the_signal_of_the_launch(self, engine: Engine) -> None:
        unit = await self._start(engine, self.obeys("SIGUSR1", 42))
        await self._printed(engine, unit, 1)
        await engine.stop(unit, grace_seconds=self.patience_seconds)
        assert (await self._look(engine, unit)).exit_code == 42

    async def test_a_task_that_ignores_the_stop_signal_is_killed_after_the_grace(self, engine: Engine) -> None:
        unit = await self._start(engine, self.ignores())
        await self._printed(engine, unit, 1)
        await engine.stop(unit, grace_seconds=0.5)
        ended = await self._look(engine, unit)
        assert (ended.exit_code, ended.reason) == (137, "Signalled")
        assert ended.finished_at - ended.started_at >= 0.5

    # Launches.

    @pytest.mark.req("S0-13")
    async def test_the_command_gets_its_arguments_as_they_are(self, engine: Engine) -> None:
        arguments = ["plain", "with space", "", "quo'te\"s", "$HOME `id` \\n", "ünïcödé", "-n", "*"]
        assert await self._output(engine, self.shows_arguments(arguments)) == arguments

    @pytest.mark.req("S0-13")
    async def test_the_environment_arrives(self, engine: Engine) -> None:
        launch = self.shows_variable("GREETING", env={"GREETING": "hello = 'world' $PATH é"})
        assert await self._output(engine, launch) == ["hello = 'world' $PATH é"]

    async def test_the_environment_of_the_agent_is_not_passed_on(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MANDOR_SUITE_SECRET", "do not tell")
        assert await self._output(engine, self.shows_variable("MANDOR_SUITE_SECRET")) == [""]

    @pytest.mark.req("S0-13")
    async def test_files_exist_before_the_task_starts(self, engine: Engine) -> None:
        files = (File(path="conf/app.ini", content="first\nsecond é\n"), File(path="key", content="k", mode="0600"))
        assert await self._output(engine, self.shows_file("conf/app.ini", files=files)) == ["first", "second é"]
        assert await self._output(engine, self.shows_mode("key", files=files)) == ["600"]

    async def test_a_task_starts_in_its_working_directory(self, engine: Engine) -> None:
        assert await self._output(engine, self.shows_folder(working_dir="/tmp")) == ["/tmp"]

    async def test_a_task_runs_as_its_user_or_not_at_all(self, engine: Engine) -> None:
        launch = self.shows_user(user=self.other_user)
        if "user" in (await engine.probe()).extras:
            assert await self._output(engine, launch) == [self.other_user]
        else:
            unit = await self._start(engine, launch)
            assert (await self._ended(engine, unit)).reason == "StartFailed"

    @pytest.mark.req("S2-44")
    async def test_an_end_for_lack_of_memory_is_reported(self, engine: Engine) -> None:
        limit = self.memory_limit_bytes
        if "memory" not in (await engine.probe()).limits:
            unit = await self._start(engine, self.exits(0, memory_bytes=limit))
            assert (await self._ended(engine, unit)).reason == "Completed"
            return
        unit = await self._start(engine, self.eats_memory(memory_bytes=limit))
        ended = await self._ended(engine, unit)
        assert ended.exit_code != 0

        async def known() -> bool:
            return (await self._look(engine, unit)).reason == "OOMKilled"

        # Some engines report the end before its cause.
        await self._until(known, lambda: f"it ended as {ended.reason}: {ended.message}")

    async def test_processor_time_is_limited_where_that_is_announced(self, engine: Engine) -> None:
        capabilities = await engine.probe()
        begun = time.monotonic()
        unit = await self._start(engine, self.burns_cpu(cpu_milli=200))
        await self._printed(engine, unit, 1)
        if "cpu" in capabilities.limits and "stats" in capabilities.extras:
            await asyncio.sleep(2.0)
            used = (await engine.usage())[unit].cpu_seconds
            # Only an upper bound: on a busy machine it gets less. It may be ahead by one period.
            assert used <= 0.2 * (time.monotonic() - begun) * 1.5 + 0.1
        await engine.stop(unit, grace_seconds=self.patience_seconds)
        assert (await self._look(engine, unit)).exit_code == 0

    async def test_the_number_of_processes_is_limited_where_that_is_announced(self, engine: Engine) -> None:
        unit = await self._start(engine, self.forks(40, processes=10))
        ended = await self._ended(engine, unit)
        limited = "processes" in (await engine.probe()).limits
        assert ended.reason == ("Error" if limited else "Completed")

    # Logs.

    async def test_logs_have_both_streams_with_times(self, engine: Engine) -> None:
        begun = time.time()
        unit = await self._start(engine, self.prints(["one", "", " three "], ["oops"]))
        await self._ended(engine, unit)
        lines = [line async for line in engine.logs(unit)]
        assert [line.text for line in lines if line.stream == "stdout"] == [b"one", b"", b" three "]
        assert [line.text for line in lines if line.stream == "stderr"] == [b"oops"]
        assert all(begun - 1 <= line.at <= time.time() + 1 for line in lines)

    async def test_the_last_lines_can_be_asked_for(self, engine: Engine) -> None:
        unit = await self._start(engine, self.prints([f"line {n}" for n in range(20)]))
        await self._ended(engine, unit)
        for tail, expected in (
            (3, ["line 17", "line 18", "line 19"]),
            (0, []),
            (500, [f"line {n}" for n in range(20)]),
        ):
            assert await self._lines(engine, unit, tail=tail) == expected

    async def test_lines_since_a_moment_can_be_asked_for(self, engine: Engine) -> None:
        unit = await self._start(engine, self.ticks())
        await self._printed(engine, unit, 6)
        await engine.stop(unit, grace_seconds=self.patience_seconds)
        lines = [line async for line in engine.logs(unit)]
        moment = lines[3].at
        since = [line async for line in engine.logs(unit, since=moment)]
        assert since == [line for line in lines if line.at >= moment]
        assert 0 < len(since) < len(lines)

    async def test_following_shows_what_comes_and_ends_with_the_unit(self, engine: Engine) -> None:
        unit = await self._start(engine, self.ticks())
        seen: list[LogLine] = []
        stopping = None
        async with asyncio.timeout(self.patience_seconds):
            async for line in engine.logs(unit, follow=True):
                seen += [line] if line.stream == "stdout" else []
                if len(seen) == 5 and stopping is None:
                    stopping = asyncio.create_task(engine.stop(unit, grace_seconds=self.patience_seconds))
        assert stopping is not None
        await stopping
        assert [line.text for line in seen] == [f"tick {n}".encode() for n in range(len(seen))]
        assert [line.text.decode() for line in seen] == await self._lines(engine, unit)

    async def test_an_unknown_unit_has_no_logs(self, engine: Engine) -> None:
        with pytest.raises(NotFound):
            async for _ in engine.logs(self._unit()):
                pass

    async def test_a_verb_that_is_not_announced_is_refused(self, engine: Engine) -> None:
        extras = (await engine.probe()).extras
        unit = await self._start(engine, self.sleeps())
        await self._running(engine, unit)
        if "exec" not in extras:
            with pytest.raises(Unsupported):
                await engine.exec(unit, self.says("hello"))
        if "signal" not in extras:
            with pytest.raises(Unsupported):
                await engine.signal(unit, "SIGHUP")
        if "events" not in extras:
            with pytest.raises(Unsupported):
                engine.events()

    # Signals.

    @where_announced("signal")
    async def test_a_unit_that_does_not_run_gets_no_signal(self, engine: Engine) -> None:
        with pytest.raises(NotFound):
            await engine.signal(self._unit(), "SIGHUP")
        unit = await self._start(engine, self.exits(0))
        await self._ended(engine, unit)
        with pytest.raises(NotFound):
            await engine.signal(unit, "SIGHUP")

    # Commands beside the task.

    @where_announced("exec")
    async def test_a_command_runs_in_a_running_unit(self, engine: Engine) -> None:
        unit = await self._start(engine, self.sleeps(env={"WORD": "from the unit"}))
        await self._running(engine, unit)
        assert await self._run(engine, unit, self.says("hello")) == (b"hello\n", b"", 0)
        assert await self._run(engine, unit, self.complains("oops")) == (b"", b"oops\n", 0)
        assert await self._run(engine, unit, self.ends_with(7)) == (b"", b"", 7)
        assert await self._run(engine, unit, self.tells_variable("WORD")) == (b"from the unit\n", b"", 0)
        assert (await self._look(engine, unit)).phase is UnitPhase.RUNNING

    @where_announced("exec")
    async def test_input_of_a_command_reaches_it(self, engine: Engine) -> None:
        unit = await self._start(engine, self.sleeps())
        await self._running(engine, unit)
        data = bytes(range(256)) * 2048
        assert await self._run(engine, unit, self.copies(), data) == (data, b"", 0)

    @where_announced("exec")
    async def test_a_terminal_has_the_size_it_was_given(self, engine: Engine) -> None:
        unit = await self._start(engine, self.sleeps())
        await self._running(engine, unit)
        execution = await engine.exec(unit, self.shows_size(), terminal=True, rows=31, columns=97)
        out, _, code = await self._collect(execution)
        assert (out, code) == (b"31 97\r\n", 0)

    @where_announced("exec")
    async def test_closing_ends_the_command_and_not_the_task(self, engine: Engine) -> None:
        unit = await self._start(engine, self.sleeps())
        await self._running(engine, unit)
        for terminal in (False, True):
            execution = await engine.exec(unit, self.copies(), terminal=terminal)
            await execution.resize(40, 120)
            await execution.close()
            assert await execution.wait() != 0
            await execution.close()
        assert (await self._look(engine, unit)).phase is UnitPhase.RUNNING

    @where_announced("exec")
    async def test_no_command_runs_in_an_exited_unit(self, engine: Engine) -> None:
        unit = await self._start(engine, self.exits(0))
        await self._ended(engine, unit)
        for each in (unit, self._unit()):
            with pytest.raises(NotFound):
                await engine.exec(each, self.says("hello"))

    @pytest.mark.req("S2-26")
    async def test_usage_of_a_running_unit_is_measured(self, engine: Engine) -> None:
        unit, other = await self._start(engine, self.burns_cpu()), await self._start(engine, self.exits(0))
        await self._ended(engine, other)
        if "stats" not in (await engine.probe()).extras:
            assert await engine.usage() == {}
            return

        async def counted() -> bool:
            used = (await engine.usage()).get(unit)
            return used is not None and used.cpu_seconds > 0.01 and used.memory_bytes > 0

        await self._until(counted, lambda: "nothing was counted")
        used = await engine.usage()
        assert set(used) == {unit}
        assert type(used[unit].memory_bytes) is int, "only a plain number is one to a server, too"

    @where_announced("events")
    async def test_an_end_sends_an_event(self, engine: Engine) -> None:
        unit = await self._start(engine, self.sleeps())
        await self._printed(engine, unit, 1)
        events = engine.events()
        stopping = asyncio.create_task(engine.stop(unit, grace_seconds=self.patience_seconds))
        async with asyncio.timeout(self.patience_seconds):
            async for _ in events:
                if (await self._look(engine, unit)).phase is UnitPhase.EXITED:
                    break
        await stopping

    # Ownership.

    @pytest.mark.req("S0-14")
    async def test_foreign_objects_are_neither_listed_nor_changed(self, engine: Engine) -> None:
        with self.foreigner() as lives:
            unit = await self._start(engine, self.ignores())
            await self._running(engine, unit)
            assert [observed.unit for observed in await engine.list()] == [unit]
            await engine.stop(unit, grace_seconds=0.1)
            await engine.remove(unit)
            assert await engine.list() == []
            assert lives()

    @pytest.mark.req("S0-29")
    async def test_a_new_engine_object_lists_running_units(self, directory: Path) -> None:
        async with self.make_engine(directory) as engine:
            unit = await self._start(engine, self.ticks())
            before = await self._running(engine, unit)
        async with self.make_engine(directory) as again:
            # It may have got its address meanwhile.
            assert [replace(each, address=before.address) for each in await again.list()] == [before]
            await again.start(unit, self.ticks())
            count = len(await self._lines(again, unit))
            await self._printed(again, unit, count + 3)
            await again.stop(unit, grace_seconds=self.patience_seconds)
            assert (await self._look(again, unit)).exit_code == 0
            lines = await self._lines(again, unit)
            assert lines == [f"tick {n}" for n in range(len(lines))]
            await again.remove(unit)
            assert await again.list() == []

    @pytest.mark.req("S0-29")
    async def test_an_end_without_an_engine_object_is_reported_later(self, directory: Path) -> None:
        async with self.make_engine(directory) as engine:
            unit = await self._start(engine, self.exits_later(0.5, 9))
            over = await self._start(engine, self.exits(3))
            await self._ended(engine, over)
        await asyncio.sleep(1.0)
        async with self.make_engine(directory) as again:
            assert (await self._ended(again, unit)).exit_code == 9
            assert (await self._look(again, over)).exit_code == 3
            for each in (unit, over):
                await again.remove(each)


async def _finished(value: bool) -> bool:
    return value
