"""GitLab's API as its documentation describes it, as far as pipelines go: strict about tokens, forms and states.

The jobs are ours: a pipeline that succeeds has made what its variables name, or has taken it away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

TRIGGER, TOKEN, READER = "trigger-token", "api-token", "read-token"
PROJECT = "infra/vms"
OVER = frozenset({"success", "failed", "canceled", "skipped"})
VARIABLES = frozenset(
    f"variables[MANDOR_{name}]" for name in ("ACTION", "VM", "CLUSTER", "NODE", "ADDRESS", "CPU", "MEMORY_MIB")
)


@dataclass
class Gitlab:
    """Each look at a pipeline moves it one state on, through those that it was triggered with."""

    states: tuple[str, ...] = ("created", "running", "success")
    plans: list[tuple[str, ...]] = field(default_factory=list)
    runs: list[dict[str, str]] = field(default_factory=list)
    looks: dict[int, int] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    machines: dict[str, dict[str, str]] = field(default_factory=dict)

    async def trigger(self, request: web.Request) -> web.Response:
        form = {key: str(value) for key, value in (await request.post()).items()}
        if request.match_info["project"] != PROJECT or form.get("token") != TRIGGER:
            return web.json_response({"message": "404 Not Found"}, status=404)
        if form.get("ref") != "main":
            return web.json_response({"message": {"base": ["Reference not found"]}}, status=400)
        if form.keys() != VARIABLES | {"token", "ref"}:
            return web.json_response({"error": "variables is invalid"}, status=400)
        self.runs.append(form)
        self.plans.append(self.states)
        return web.json_response(self._shown(len(self.runs), "created"), status=201)

    async def status(self, request: web.Request) -> web.Response:
        number, refusal = self._asked(request, {TOKEN, READER})
        if refusal is not None:
            return refusal
        if number not in self.cancelled:
            self.looks[number] = self.looks.get(number, 0) + 1
        return web.json_response(self._shown(number, self.state(number)))

    async def cancel(self, request: web.Request) -> web.Response:
        number, refusal = self._asked(request, {TOKEN})
        if refusal is not None:
            return refusal
        if self.state(number) not in OVER:
            self.cancelled.add(number)
        return web.json_response(self._shown(number, self.state(number)))

    def state(self, number: int) -> str:
        plan = ("canceled",) if number in self.cancelled else self.plans[number - 1]
        state = plan[min(max(self.looks.get(number, 0), 1), len(plan)) - 1]
        if state == "success":
            self._do(self.runs[number - 1])
        return state

    def _do(self, form: dict[str, str]) -> None:
        name = form["variables[MANDOR_VM]"]
        if form["variables[MANDOR_ACTION]"] == "create":
            self.machines[name] = form
        else:
            self.machines.pop(name, None)

    def _asked(self, request: web.Request, tokens: set[str]) -> tuple[int, web.Response | None]:
        number, token = int(request.match_info["id"]), request.headers.get("PRIVATE-TOKEN")
        if token not in {TOKEN, READER}:
            return number, web.json_response({"message": "401 Unauthorized"}, status=401)
        if token not in tokens:
            return number, web.json_response({"error": "insufficient_scope", "scope": "api"}, status=403)
        if not 0 < number <= len(self.runs):
            return number, web.json_response({"message": "404 Not found"}, status=404)
        return number, None

    def _shown(self, number: int, state: str) -> dict[str, object]:
        return {"id": number, "status": state, "ref": "main", "web_url": f"https://gitlab.test/{PROJECT}/{number}"}


@asynccontextmanager
async def serving(*routes: web.RouteDef) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gitlab_at(gitlab: Gitlab) -> AsyncIterator[str]:
    base = "/api/v4/projects/{project}"
    async with serving(
        web.post(f"{base}/trigger/pipeline", gitlab.trigger),
        web.get(f"{base}/pipelines/{{id}}", gitlab.status),
        web.post(f"{base}/pipelines/{{id}}/cancel", gitlab.cancel),
    ) as url:
        yield url
