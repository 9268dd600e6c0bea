"""Pipeline provisioner: a signed webhook asks an external pipeline for a machine; the node joins by itself."""

import time
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from mandor.errors import Invalid, Unavailable
from mandor.lib.signing import sign
from mandor.model.codec import to_plain
from mandor.provision.base import MachineOrder, NotMade, Provisioner

SECONDS = 30.0
ANSWER_MOST = 64 * 1024
HERE = frozenset({"127.0.0.1", "::1", "localhost"})


class PipelineOptions(Struct, frozen=True, forbid_unknown_fields=True):
    parameters: dict[str, str] = {}
    """Parameters that are passed to the pipeline unchanged."""


class PipelineProvisioner(Provisioner):
    """Sends POST requests with `action: create` or `delete` and the id of the machine, so that repeats are harmless."""

    name: ClassVar[str] = "pipeline"
    options: ClassVar[type[Struct]] = PipelineOptions
    file_settings: ClassVar[tuple[str, ...]] = ("secret_file",)
    url_settings: ClassVar[tuple[str, ...]] = ("url",)

    def __init__(self, url: str, secret_file: str) -> None:
        """`secret_file`: file on the server with the secret that signs requests."""
        split = urlsplit(url)
        if split.scheme not in {"http", "https"} or not split.hostname:
            raise Invalid(f"{url[:100]!r} is no address of a pipeline", hint="https://HOST/PATH")
        if split.scheme == "http" and split.hostname not in HERE:
            raise Invalid("a request carries a join token, and goes over https", hint=f"https://{split.netloc}…")
        self._url, self._secret_file = url, Path(secret_file)
        self._session: aiohttp.ClientSession | None = None

    async def create(self, order: MachineOrder) -> None:
        what = to_plain(order.what)
        body = {
            "action": "create",
            "id": order.id,
            "cluster": order.cluster,
            "pool": order.pool,
            "kind": order.kind,
            "machine": {key: value for key, value in what.items() if key != "options"},
            "parameters": what.get("options", {}).get("parameters", {}),
            "join": msgspec.to_builtins(order.join),
        }
        await self._post(body)

    async def list(self, cluster: str) -> None:
        """Return None: a pipeline cannot list its machines; nodes show up when they join."""

    async def delete(self, cluster: str, machine: str) -> None:
        await self._post({"action": "delete", "id": machine, "cluster": cluster})

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _post(self, body: dict[str, Any]) -> None:
        content = msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"{body['id']}.{body['action']}"}
        headers |= sign(self._secret(), content, time.time())
        if self._session is None:
            connector = aiohttp.TCPConnector(socket_factory=self.egress.socket_factory(self._url))
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=SECONDS), cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with self._session.post(self._url, data=content, headers=headers, allow_redirects=False) as answer:
                answer_text = (await answer.content.read(ANSWER_MOST)).decode(errors="replace").strip()
        except aiohttp.ClientConnectorError as error:
            raise NotMade(f"cannot connect to the pipeline at {self._shown}: {error}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"the pipeline at {self._shown} does not answer: {str(error) or 'too late'}") from error
        gone = body["action"] == "delete" and answer.status == 404
        if 200 <= answer.status < 300 or gone:
            return
        refused = f"the pipeline at {self._shown} answered {answer.status}: {answer_text[:200]}"
        raise Invalid(refused) if 400 <= answer.status < 500 else Unavailable(refused)

    @property
    def _shown(self) -> str:
        """Return the URL without its query, which can contain a key."""
        return self._url.partition("?")[0]

    def _secret(self) -> bytes:
        try:
            found = self._secret_file.read_bytes().strip()
        except OSError as error:
            raise NotMade(f"the secret of the pipeline cannot be read: {error.strerror}") from error
        if len(found) < 16:
            raise NotMade("the secret of the pipeline is shorter than 16 bytes")
        return found
