"""Engine suite, faults: cancelled starts, daemons that stop or hang, foreign objects."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from mandor.engines.base import Engine, Launch, Mount, Unit, UnitPhase
from mandor.errors import Conflict, EngineDown, Unavailable
from mandor.testing.engine_hooks import Line
from mandor.testing.engine_watch import EngineWatch


class EngineTrouble(EngineWatch):
    async def test_the_error_of_a_missing_image_has_its_name(self, engine: Engine) -> None:
        if self.image is None:
            pytest.skip("the engine runs no images")
        launch = self.lacks_image()
        unit = await self._start(engine, launch)
        ended = await self._ended(engine, unit)
        assert ended.reason == "StartFailed"
        assert str(launch.image) in ended.message
        await engine.remove(unit)
        assert unit not in await self._units(engine)

    @pytest.mark.parametrize("seconds", [0.0, 0.01, 0.05, 0.2])
    @pytest.mark.req("S0-27")
    async def test_a_cancelled_start_can_be_repeated(self, engine: Engine, seconds: float) -> None:
        unit, launch = self._unit(), self.sleeps()
        starting = asyncio.create_task(engine.start(unit, launch))
        await asyncio.sleep(seconds)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        await engine.start(unit, launch)
        await self._running(engine, unit)
        assert await self._units(engine) == [unit]
        await self._printed(engine, unit, 1)
        assert await self._lines(engine, unit) == ["begun"]

    async def test_a_cancelled_start_without_a_repeat_leaves_nothing(self, engine: Engine) -> None:
        for seconds in (0.0, 0.01, 0.05, 0.2):
            unit = self._unit()
            starting = asyncio.create_task(engine.start(unit, self.sleeps()))
            await asyncio.sleep(seconds)
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
        quiet = 0

        async def cleared() -> bool:
            """Wait for a request that was in flight."""
            nonlocal quiet
            seen = await engine.list()
            for each in seen:
                await engine.remove(each.unit)
            quiet = 0 if seen else quiet + 1
            return quiet > 20

        await self._until(cleared, lambda: "it comes up again and again")

    @pytest.mark.parametrize("end", ["cancelled, then list", "cut off, then list", "cut off, then stop"])
    @pytest.mark.req("S0-14", "S0-27")
    async def test_a_delayed_request_starts_nothing(
        self, engine: Engine, directory: Path, volume: Path, end: str
    ) -> None:
        """Each request of a start in turn is delayed until the unit is no longer wanted: its agent cancelled it, or
        died and was followed by another agent or by a guard."""
        lines = self.line(directory)
        if lines is None:
            pytest.skip("the suite has no `line` to delay requests on")
        launch = self.writes_file(
            f"{self.mount_path}/ran", "", mounts=(Mount(path=self.mount_path, source=str(volume)),)
        )
        with lines as line:
            async with line.engine:
                orders = 0
                while (starting := await self._hold_up(engine, line, orders, unit := self._unit(), launch)) is not None:
                    if end.startswith("cancelled"):
                        starting.cancel()
                    else:
                        line.cut()
                    with suppress(asyncio.CancelledError, EngineDown):
                        async with asyncio.timeout(self.patience_seconds):
                            await starting
                    if end.endswith("list"):
                        assert await self._units(engine) == []
                    else:
                        await engine.stop(unit, grace_seconds=0)
                    await line.release()
                    await self._until(lambda: self._nothing(engine), lambda: "it comes up again and again")
                    assert not (volume / "ran").exists(), f"it ran when order {orders} arrived"
                    orders += 1
        assert orders, "none was held up"
        assert (volume / "ran").exists(), "the one of which none was held up did not begin"

    async def _hold_up(
        self, engine: Engine, line: Line, number: int, unit: Unit, launch: Launch
    ) -> asyncio.Task[None] | None:
        """Start a unit with one delayed request; None: it has fewer requests, and the unit has ended."""
        line.hold(number)
        starting = asyncio.create_task(line.engine.start(unit, launch))

        async def held() -> bool:
            return line.holds or starting.done()

        await self._until(held, lambda: f"order {number} is not given")
        if line.holds:
            return starting
        await starting
        await self._ended(engine, unit)
        return None

    async def _nothing(self, engine: Engine) -> bool:
        """List twice: a request in flight during the first listing shows in the second."""
        return await self._units(engine) == [] and await self._units(engine) == []

    @pytest.mark.req("S0-14")
    async def test_a_foreign_object_with_the_name_of_a_unit_is_not_changed(self, engine: Engine) -> None:
        unit, launch = self._unit(), self.sleeps()
        occupied = self.occupies(unit)
        if occupied is None:
            pytest.skip("names of the engine cannot conflict")
        with occupied as lives:
            with pytest.raises(Conflict):
                await engine.start(unit, launch)
            await engine.stop(unit, grace_seconds=0)
            await engine.remove(unit)
            assert await engine.list() == []
            assert lives()
        await engine.start(unit, launch)
        await self._running(engine, unit)

    @pytest.mark.req("S0-29")
    async def test_a_restarted_daemon_lists_its_units(self, engine: Engine) -> None:
        unit = await self._start(engine, self.ticks())
        await self._printed(engine, unit, 1)
        away = self.away()
        if away is None:
            pytest.skip("the engine has no daemon that the suite can stop")
        with away:
            for verb in (engine.probe, engine.list, lambda: engine.start(self._unit(), self.sleeps())):
                with pytest.raises(EngineDown):
                    await verb()

        await self._back(engine)
        assert await self._units(engine) == [unit]
        seen = await self._look(engine, unit)
        assert seen.phase is UnitPhase.RUNNING or seen.exit_code is not None
        assert (await engine.probe()).up

    @pytest.mark.req("S0-27", "S0-29")
    async def test_a_daemon_that_stops_during_starts_starts_nothing_twice(self, engine: Engine) -> None:
        away = self.away()
        if away is None:
            pytest.skip("the engine has no daemon that the suite can stop")
        units, launch = [self._unit() for _ in range(4)], self.sleeps()
        starting = [asyncio.create_task(engine.start(unit, launch)) for unit in units]
        await asyncio.sleep(0.15)
        await asyncio.to_thread(away.__enter__)
        told = await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.to_thread(away.__exit__, None, None, None)
        assert all(each is None or getattr(each, "retry", False) for each in told), told
        await self._back(engine)
        for unit in units:
            await engine.start(unit, launch)
        assert sorted(await self._units(engine)) == sorted(units)
        for unit in units:
            # A unit whose start was cut may have ended; a running one was started once.
            if (await self._look(engine, unit)).phase is not UnitPhase.EXITED:
                await self._running(engine, unit)
                await self._printed(engine, unit, 1)
                assert await self._lines(engine, unit) == ["begun"]

    @pytest.mark.req("S0-27")
    async def test_a_hanging_daemon_is_reported_and_starts_nothing_twice(self, engine: Engine, directory: Path) -> None:
        hangs = self.hangs()
        if hangs is None:
            pytest.skip("the engine has no daemon that the suite can pause")
        unit, late = await self._start(engine, self.sleeps()), self._unit()
        async with self.make_impatient(directory) as impatient:
            await impatient.list()
            with hangs:
                for verb in (impatient.list, lambda: impatient.start(late, self.sleeps())):
                    with pytest.raises(EngineDown, match="does not answer"):
                        await verb()
        await self._back(engine)
        await engine.start(late, self.sleeps())
        await self._running(engine, late)
        assert sorted(await self._units(engine)) == sorted([unit, late])

    async def _back(self, engine: Engine) -> None:
        async def answers() -> bool:
            try:
                await engine.list()
            except Unavailable:  # down, or up and not ready yet
                return False
            return True

        await self._until(answers, lambda: "it does not come back")
