"""Engine suite, networks."""

import pytest

from mandor.engines.base import Engine, Unit
from mandor.testing.engine_watch import EngineWatch

PORT = 18765


class EngineNetwork(EngineWatch):
    @pytest.mark.req("S2-6")
    async def test_tasks_of_one_instance_share_a_network_where_that_is_announced(self, engine: Engine) -> None:
        await self._needs(engine, "sandbox")
        uid = self._unit().uid
        server, client = Unit(uid, "server", 1), Unit(uid, "client", 1)
        await engine.start(server, self.serves(PORT, "next door", name="suite-0/server", sandbox=True))
        await engine.start(client, self.fetches(PORT, name="suite-0/client", sandbox=True))
        await self._ended(engine, client)
        assert await self._lines(engine, client) == ["next door"]

        again = client._replace(attempt=2)
        await engine.remove(client)
        await engine.start(again, self.fetches(PORT, name="suite-0/client", sandbox=True))
        await self._ended(engine, again)
        assert await self._lines(engine, again) == ["next door"]
        assert sorted(await self._units(engine)) == sorted([server, again])

    async def test_a_shared_network_is_removed_with_the_last_task(self, engine: Engine) -> None:
        uid = self._unit().uid
        units = [Unit(uid, name, 1) for name in ("one", "two")]
        for unit in units:
            await engine.start(unit, self.sleeps(name=f"suite-0/{unit.task}", sandbox=True))
        for unit in units:
            await self._running(engine, unit)
            await engine.remove(unit)
        assert await engine.list() == []  # Leftovers on the machine are checked after each test.
