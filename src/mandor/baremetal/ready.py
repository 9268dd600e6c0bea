"""Checks whether a virtual machine has joined its cluster: with the Kubernetes API, or as a node of this cluster."""

import asyncio
import ssl
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec

from mandor.errors import Invalid, Unavailable
from mandor.model.meta import Key
from mandor.model.node import Node, NodePhase
from mandor.model.receiver import HERE
from mandor.store.base import Store

CALL_SECONDS = 15.0


class Ready(ABC):
    @abstractmethod
    async def check(self, name: str) -> str:
        """Return what the machine waits for, empty if it is ready; raise `Unavailable` if that is unknown."""

    async def close(self) -> None:
        return


class AlwaysReady(Ready):
    """A machine is ready as soon as the pipeline has made it."""

    async def check(self, name: str) -> str:
        return ""


class OwnNode(Ready):
    """A machine is ready when its node in this cluster is."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def check(self, name: str) -> str:
        node = await self._store.get(Key(Node.kind, "", name))
        if not isinstance(node, Node):
            return "the machine has not joined"
        return "" if node.status.phase is NodePhase.READY else f"the node is {node.status.phase.value}"


class KubernetesNode(Ready):
    """A machine is ready when its node in Kubernetes has the condition `Ready`."""

    def __init__(self, url: str, token_file: str = "", ca: str = "") -> None:
        split = urlsplit(url)
        if split.scheme != "https" and not (split.scheme == "http" and split.hostname in HERE):
            raise Invalid(f"{url[:100]!r} is not the address of a Kubernetes API", hint="https://HOST:6443")
        self._url, self._token_file, self._ca = url.rstrip("/"), token_file, ca
        self._session: aiohttp.ClientSession | None = None

    async def check(self, name: str) -> str:
        headers = {"Accept": "application/json"}
        try:
            if self._token_file:
                token = await asyncio.to_thread(Path(self._token_file).read_text)
                headers["Authorization"] = f"Bearer {token.strip()}"
            async with self._open().get(
                f"{self._url}/api/v1/nodes/{name}", headers=headers, allow_redirects=False
            ) as answer:
                body = await answer.content.read(4 << 20)
        except (aiohttp.ClientError, OSError, ssl.SSLError, TimeoutError) as error:
            raise Unavailable(f"the Kubernetes API does not answer: {str(error) or 'timeout'}") from error
        if answer.status == 404:
            return "the machine has not joined"
        if answer.status != 200:
            raise Unavailable(f"the Kubernetes API answered {answer.status}")
        return _not_ready_reason(body)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trusted = ssl.create_default_context(cafile=self._ca) if self._ca else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trusted), timeout=aiohttp.ClientTimeout(total=CALL_SECONDS)
            )
        return self._session


def _not_ready_reason(body: bytes) -> str:
    try:
        node = msgspec.json.decode(body)
        conditions = node["status"]["conditions"]
        (ready,) = [each for each in conditions if each["type"] == "Ready"]
        status, message = ready["status"], str(ready.get("message", ""))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return "the node has no condition Ready"
    return "" if status == "True" else f"the node is not ready: {message[:200]}"
