"""Reads the secrets of tasks from the control plane, or from the encrypted copy in the journal."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from mandor.agent.fetch import Fetch
from mandor.agent.launch import pull_secret_of
from mandor.agent.order import Order
from mandor.errors import Unavailable
from mandor.lib.sealing import Sealer, Unsealable
from mandor.model.secret import whole

ANSWER_SECONDS = 5.0
"""Timeout in seconds of a read while there is a copy."""


def names_of(order: Order) -> set[str]:
    """Return the references to all secret values that an order needs, including registry logins."""
    assert order.template is not None
    tasks = order.template.tasks.values()
    logins = {whole(name) for task in tasks if (name := pull_secret_of(order, task))}
    return logins | {each for task in tasks for each in task.secret_references}


class Vault:
    """`key`: this node's own, such as its credential; copies are worthless without it."""

    def __init__(self, fetch: Fetch, key: Callable[[], str]) -> None:
        self._fetch, self._key = fetch, key

    async def read(self, order: Order) -> tuple[Mapping[str, str], Order]:
        """Return the values by reference, and the order with a sealed copy of them and the content ids of the secrets;
        `NotFound`: one is missing."""
        assert order.template is not None
        names = names_of(order)
        copy = self._copy(order)
        try:
            async with asyncio.timeout(ANSWER_SECONDS if copy is not None else None):
                found = await self._fetch.secrets(order.instance, names)
        except (Unavailable, TimeoutError, OSError):
            if copy is None or not names <= copy.keys():
                raise
            return copy, order
        order = msgspec.structs.replace(order, secret_ids=found.content_ids)
        if found.values == copy:
            return found.values, order
        sealed = Sealer.of(self._key()).seal(msgspec.json.encode(found.values).decode(), order.uid)
        return found.values, msgspec.structs.replace(order, secrets=sealed)

    def _copy(self, order: Order) -> dict[str, str] | None:
        if not order.secrets:
            return None
        try:
            return msgspec.json.decode(Sealer.of(self._key()).open(order.secrets, order.uid), type=dict[str, str])
        except (Unsealable, msgspec.DecodeError):
            return None
