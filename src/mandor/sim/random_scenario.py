"""A small cluster from a seed: nodes, workloads of every type, and what their owners do to them."""

import random
from pathlib import Path
from typing import Any

from mandor.lib.yaml12 import dump
from mandor.sim.run import LoadedScenario
from mandor.sim.scenario import read_scenario
from mandor.sim.work import load_work

TROUBLE_SECONDS = 200.0
"""Length of the timeline in seconds."""
DEEDS = ("scale", "scale", "rollout", "rollout", "restart", "drain", "cordon", "uncordon", "uncordon", "delete")


def random_scenario(seed: int, profile: str = "") -> LoadedScenario:
    """Return the random scenario of a seed. `profile`: a scheduler configuration; empty: the built-in one."""
    made = _ScenarioMaker(random.Random(f"a cluster {seed}"))
    strategies = {"strategies": {"as written": {"profile": profile}}} if profile else {}
    text = dump(made.scenario(seed) | strategies)
    scenario, _ = read_scenario(text, f"seed {seed}")
    first = load_work(scenario.workloads, Path(), f"seed {seed}").objects
    later = [load_work(each.submit, Path(), f"seed {seed}").objects for each in scenario.timeline]
    return LoadedScenario(scenario, Path(), first, later)


class _ScenarioMaker:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._nodes = [f"n{number}" for number in range(chance.randint(3, 5))]
        self._workloads: dict[str, dict[str, Any]] = {}
        self._gone: list[str] = []

    def scenario(self, seed: int) -> dict[str, Any]:
        makers = (self._web, self._api, self._jobs, self._everywhere, self._nightly, self._important, self._ring)
        for make in (*makers, self._sweep):
            each = make()
            if each is not None:
                self._workloads[each["name"]] = each
        first = list(self._workloads.values())
        return {
            "name": f"seed {seed}",
            "nodes": [self._node(name) for name in self._nodes],
            "workloads": first,
            "arrival": {"within": "20s"},
            "timeline": self._timeline(),
            "end": f"{TROUBLE_SECONDS:g}s",
        }

    def _node(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "cpu": self._chance.choice([2, 3, 4]),
            "memory": "8Gi",
            "labels": {"zone": self._chance.choice("ab")},
            "engines": ["fake"],
        }

    # The work.

    def _workload(self, name: str, *, cpu: int, behaves: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        made = {
            "name": name,
            "engine": "fake",
            "image": f"{name}:1",
            "resources": {"cpu": f"{cpu}m", "memory": "64Mi"},
            "reschedule": {"delay": "5s", "max_delay": "20s"},
            "restart": {"delay": "2s", "max_delay": "10s"},
            "stop": {"grace": "10s"},
            **more,
        }
        return made | ({"options": {"fake": behaves}} if behaves else {})

    def _web(self) -> dict[str, Any]:
        chance, placement = self._chance, {}
        rule = chance.choice(["spread", "apart", ""])
        if rule == "spread":
            placement = {"spread": [{"over": chance.choice(["node", "zone"]), "strength": "should"}]}
        elif rule == "apart":
            placement = {"apart": [{"workload": "self", "over": "node", "strength": chance.choice(["must", "should"])}]}
        more: dict[str, Any] = {"placement": placement} if placement else {}
        if chance.random() < 0.6:
            more["disruption"] = {"max_unavailable": 1}
        more["update"] = self._update()
        if chance.random() < 0.3:
            more["disconnect"] = {"lost_after": "45s", "stop_after": "20s"}
        return self._workload("web", cpu=chance.choice([200, 400]), replicas=chance.randint(2, 5), **more)

    def _update(self) -> dict[str, Any]:
        surge = self._chance.choice([0, 1, 2])
        away = self._chance.choice([1, 2]) if not surge else self._chance.choice([0, 1])
        return {"max_surge": surge, "max_unavailable": away, "min_healthy": self._chance.choice(["0s", "5s"])}

    def _api(self) -> dict[str, Any] | None:
        """Return a workload that depends on another one and fails twice before it stays up."""
        if self._chance.random() < 0.3:
            return None
        needs = {"web": self._chance.choice(["started", "healthy"])}
        behaves = {"after": "20s", "exit_code": 1, "good_attempt": 3}
        return self._workload("api", cpu=200, replicas=2, depends_on=needs, behaves=behaves, update=self._update())

    def _jobs(self) -> dict[str, Any]:
        batch = {"completions": self._chance.randint(2, 6), "parallelism": 2, "retries": 50}
        batch["indexed"] = self._chance.random() < 0.5
        return self._workload("jobs", cpu=300, type="batch", batch=batch, behaves={"after": "25s"})

    def _everywhere(self) -> dict[str, Any] | None:
        if self._chance.random() < 0.3:
            return None
        return self._workload("probe", cpu=50, type="daemon", update={"max_unavailable": 1})

    def _nightly(self) -> dict[str, Any] | None:
        if self._chance.random() < 0.4:
            return None
        overlap = self._chance.choice(["allow", "forbid", "replace"])
        schedule = {"cron": "*/2 * * * *", "overlap": overlap, "missed": self._chance.choice(["skip", "run"])}
        batch = {"completions": 1, "retries": 50}
        return self._workload(
            "tick", cpu=100, type="batch", batch=batch, schedule=schedule, behaves={"after": "15s", "stop_delay": "1s"}
        )

    def _important(self) -> dict[str, Any] | None:
        if self._chance.random() < 0.4:
            return None
        return self._workload("core", cpu=self._chance.choice([800, 1500]), replicas=2, priority=50)

    def _ring(self) -> dict[str, Any] | None:
        if self._chance.random() < 0.6:
            return None
        return self._workload("ring", cpu=300, replicas=3, gang={"timeout": "30s"})

    def _sweep(self) -> dict[str, Any] | None:
        if self._chance.random() < 0.5:
            return None
        batch = {"per_node": True, "retries": 50}
        return self._workload("sweep", cpu=50, type="batch", batch=batch, behaves={"after": "12s"})

    # What is done to it.

    def _timeline(self) -> list[dict[str, Any]]:
        at, found = 25.0, []
        while (at := at + self._chance.uniform(5, 40)) < TROUBLE_SECONDS:
            deed = self._chance.choice(DEEDS)
            done: dict[str, Any] | None = getattr(self, f"_{deed}")()
            if done is not None:
                found.append({"at": f"{at:.3f}s", **done})
        return found

    def _service(self) -> str | None:
        found = [name for name, each in self._workloads.items() if "type" not in each and name not in self._gone]
        return self._chance.choice(found) if found else None

    def _scale(self) -> dict[str, Any] | None:
        name = self._service()
        return {"scale": {"workload": name, "replicas": self._chance.randint(0, 6)}} if name else None

    def _rollout(self) -> dict[str, Any] | None:
        name = self._service()
        return {"rollout": {"workload": name, "image": f"{name}:{self._chance.randint(1, 4)}"}} if name else None

    def _restart(self) -> dict[str, Any] | None:
        name = self._chance.choice([None, self._service()])
        return {"rollout": {"workload": name}} if name else None

    def _drain(self) -> dict[str, Any]:
        return {"drain": self._chance.choice(self._nodes)}

    def _cordon(self) -> dict[str, Any]:
        return {"cordon": self._chance.choice(self._nodes)}

    def _uncordon(self) -> dict[str, Any]:
        return {"uncordon": self._chance.choice(self._nodes)}

    def _delete(self) -> dict[str, Any]:
        """And, where that was done before, again what it was."""
        if self._gone:
            return {"submit": self._workloads[self._gone.pop()]}
        name = self._chance.choice([name for name in self._workloads if name != "web"])
        self._gone.append(name)
        return {"delete": name}
