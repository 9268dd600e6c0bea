"""Revocation: ends open calls when their token is revoked, expires or loses rights, on every server."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mandor.api.auth import Auth
from mandor.api.caller import LOCAL, Caller
from mandor.errors import Expired, Forbidden, MandorError, Unauthenticated
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.meta import Key
from mandor.model.record import Token
from mandor.model.role import CustomRole, Issuer, RoleBinding
from mandor.store.base import Change, Filter, Listing, Store
from mandor.store.list_watch import ListWatch

log = logging.getLogger("mandor.api")

BACKOFF = Backoff(first_seconds=0.1, most_seconds=5.0, jitter=0.3)
ENDS = (Unauthenticated, Forbidden)
"""Errors of a call whose token became invalid."""
FOLLOWED = frozenset({Token.kind, CustomRole.kind, RoleBinding.kind, Issuer.kind})
"""Kinds that decide what a caller may do."""
TICK_SECONDS = 1.0
"""Seconds between two checks of tokens that expire."""


@dataclass(slots=True, eq=False)
class _Open:
    """One open call."""

    caller: Caller
    task: "asyncio.Task[object]"
    error: Unauthenticated | Forbidden | None = None
    """The error that ends the call."""


class Revocation:
    """Registers open calls by their token, and watches the tokens in the store, whichever server changes them."""

    def __init__(self, store: Store, clock: Clock, auth: Auth) -> None:
        self._store, self._clock, self._auth = store, clock, auth
        self._open: dict[str, set[_Open]] = {}
        self._ending: set[str] = set()
        """Names of tokens with open calls that have an expiry time."""

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    @asynccontextmanager
    async def guard(self, caller: Caller) -> AsyncIterator[None]:
        """Cancel the block, and raise `Unauthenticated` or `Forbidden`, when the caller's token becomes invalid."""
        if caller is LOCAL:
            yield
            return
        name = caller.token or caller.identity
        task = asyncio.current_task()
        assert task is not None
        call = _Open(caller, task)
        calls = self._open.setdefault(name, set())
        calls.add(call)
        try:
            # The token may have been revoked between authentication and registration.
            await self._auth.check_valid(caller)
            await self._note_end(name)
            yield
        except asyncio.CancelledError:
            if call.error is None or task.uncancel():
                raise  # cancelled for another reason, too
            raise call.error from None
        finally:
            calls.discard(call)
            if not calls and self._open.get(name) is calls:
                del self._open[name]
                self._ending.discard(name)

    async def run(self) -> None:
        """Watch tokens, roles and issuers until cancelled."""
        async with Background() as tasks:
            tasks.start(self._watch_expiry(), "expiry of tokens")
            await self._follow()

    async def _follow(self) -> None:
        where = Filter(kinds=FOLLOWED)
        follow = ListWatch(self._store, None, where, backoff=BACKOFF, sleep=self._clock.sleep)
        await follow.run(self._listed, self._changed, _interrupted)

    async def _listed(self, listing: Listing) -> None:
        await self._check(list(self._open))

    async def _changed(self, batch: Sequence[Change]) -> None:
        for name in self._concerned(batch):
            await self._check([name])
            await self._note_end(name)

    def _concerned(self, changes: Sequence[Change]) -> list[str]:
        """Return the tokens to check: the changed ones, or all if a role, binding or issuer changed."""
        keys = [each.key for each in changes if not each.bookmark]
        if any(key.kind != Token.kind for key in keys):
            return list(self._open)
        return [key.name for key in keys if key.name in self._open]

    async def _watch_expiry(self) -> None:
        while True:
            await self._clock.sleep(TICK_SECONDS)
            try:
                await self._check(list(self._ending))
            except MandorError as error:
                log.warning("cannot check whether tokens have expired: %s", error)

    async def _note_end(self, name: str) -> None:
        token = None if ":" in name else await self._store.get(Key(Token.kind, "", name))
        if not isinstance(token, Token) or token.spec.expires_at or token.spec.former is not None:
            self._ending.add(name)
        else:
            self._ending.discard(name)

    async def _check(self, names: Iterable[str]) -> None:
        for name in names:
            for call in list(self._open.get(name, ())):
                if call.error is not None:
                    continue
                try:
                    await self._auth.check_valid(call.caller)
                except ENDS as error:
                    call.error = error
                    call.task.cancel("the token is no longer valid")


def _interrupted(error: MandorError, failures: int) -> None:
    if failures > 1 or not isinstance(error, Expired):
        log.warning("cannot follow revoked tokens: %s", error)
