"""GitLab pipeline: triggers a pipeline with the order as variables and follows it until it ends."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from mandor.baremetal.pipeline import Pipeline, Run, VmOrder
from mandor.errors import Invalid, Unavailable
from mandor.model.receiver import HERE

POLL_SECONDS = 3.0
CALL_SECONDS = 30.0
UNDER_WAY = frozenset(
    {"created", "waiting_for_resource", "preparing", "pending", "running", "scheduled", "canceling", "manual"}
)
"""Final statuses of a GitLab pipeline; all but `success` are failures."""


class GitlabPipeline(Pipeline):
    """The jobs of the pipeline get the variables MANDOR_ACTION (`create`, `delete`), MANDOR_VM, MANDOR_CLUSTER,
    MANDOR_NODE, MANDOR_ADDRESS, MANDOR_CPU and MANDOR_MEMORY_MIB."""

    def __init__(
        self, url: str, project: str, ref: str, trigger_token_file: str, token_file: str, poll: float = POLL_SECONDS
    ) -> None:
        """The trigger token starts pipelines; the API token (scope `api`) reads and cancels them."""
        split = urlsplit(url)
        if split.scheme != "https" and not (split.scheme == "http" and split.hostname in HERE):
            raise Invalid(f"{url[:100]!r} is not the address of a GitLab server", hint="https://HOST")
        self._api = f"{url.rstrip('/')}/api/v4/projects/{quote(project, safe='')}"
        self._ref, self._poll = ref, poll
        self._trigger_file, self._token_file = Path(trigger_token_file), Path(token_file)
        self._session: aiohttp.ClientSession | None = None

    async def create(self, order: VmOrder, run: Run) -> None:
        await self._go("create", order, run)

    async def delete(self, order: VmOrder, run: Run) -> None:
        await self._go("delete", order, run)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _go(self, action: str, order: VmOrder, run: Run) -> None:
        """Start or follow a pipeline, stored as `create 17`; a run of the other action is cancelled first."""
        known, _, number = run.id.partition(" ")
        if known != action:
            if number:
                await self._break_off(number)
            number = str((await self._trigger(action, order))["id"])
            await run.keep(f"{action} {number}")
        status, page = await self._end(number)
        await run.keep("")
        if status != "success":
            raise Unavailable(f"GitLab pipeline {number} ended with status {status}: {page}")

    async def _break_off(self, number: str) -> None:
        status, _ = await self._status(number)
        if status in UNDER_WAY:
            await self._call("POST", f"/pipelines/{number}/cancel", token=True)
            await self._end(number)

    async def _end(self, number: str) -> tuple[str, str]:
        """Wait until the pipeline ends; return its status and the address of its page."""
        while True:
            status, page = await self._status(number)
            if status not in UNDER_WAY:
                return status, page
            await asyncio.sleep(self._poll)

    async def _status(self, number: str) -> tuple[str, str]:
        found = await self._call("GET", f"/pipelines/{number}", token=True, missing={"status": "deleted"})
        return str(found.get("status")), str(found.get("web_url", ""))

    async def _trigger(self, action: str, order: VmOrder) -> dict[str, Any]:
        variables = {
            "MANDOR_ACTION": action,
            "MANDOR_VM": order.name,
            "MANDOR_CLUSTER": order.cluster,
            "MANDOR_NODE": order.node,
            "MANDOR_ADDRESS": order.address,
            "MANDOR_CPU": str(order.cpu),
            "MANDOR_MEMORY_MIB": str(order.memory_mib),
        }
        form = {"token": _secret(self._trigger_file), "ref": self._ref}
        form |= {f"variables[{key}]": text for key, text in variables.items()}
        found: dict[str, Any] = await self._call("POST", "/trigger/pipeline", form)
        return found

    async def _call(
        self,
        method: str,
        path: str,
        form: dict[str, str] | None = None,
        *,
        token: bool = False,
        missing: dict[str, str] | None = None,
    ) -> Any:
        """Send a request; `missing` is returned for a 404 answer."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_SECONDS))
        headers = {"PRIVATE-TOKEN": _secret(self._token_file)} if token else {}
        try:
            async with self._session.request(
                method, f"{self._api}{path}", data=form, headers=headers, allow_redirects=False
            ) as answer:
                message = (await answer.content.read(1 << 20)).decode(errors="replace")
                if 200 <= answer.status < 300:
                    return _json(message)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"GitLab does not answer: {str(error) or 'timeout'}") from error
        if answer.status == 404 and missing is not None:
            return missing
        text = f"GitLab answered {answer.status}: {' '.join(message.split())[:200]}"
        raise Invalid(text) if answer.status in {400, 401, 403, 404} else Unavailable(text)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Unavailable(f"GitLab's answer is not JSON: {error}") from error


def _secret(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Unavailable(f"cannot read the GitLab token in {path}: {error.strerror}") from error
