"""Writes the first tokens of a cluster into the server's data directory, and keeps `join.token` valid."""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from mandor.api.audit import SERVER, Auditor
from mandor.api.auth import make_token, split_token
from mandor.api.routes.tokens import JOIN_SECONDS
from mandor.errors import Conflict, MandorError
from mandor.lib.clock import Clock
from mandor.model.meta import Key
from mandor.model.record import RENEWAL_SHARE, Role, Token
from mandor.roots.secret_file import replacing, write_secret
from mandor.store.base import Delete, Put, Store, Write

log = logging.getLogger("mandor.server")

CHECK_SECONDS = 5.0
JOIN = "join:first"
"""Identity of the tokens in `join.token`."""


class KeyFiles:
    """Writes `admin.token`, which does not expire, and `join.token`, which expires after 24 hours and is replaced after
    16."""

    def __init__(
        self, store: Store, clock: Clock, folder: Path, *, admin: bool, fingerprint: Callable[[], str] = lambda: ""
    ) -> None:
        """`admin`: write `admin.token`, too. `fingerprint`: of the authority that issued the servers' certificates; it
        is appended to the tokens."""
        self._fingerprint = fingerprint
        self._store, self._clock, self._folder, self._admin = store, clock, folder, admin
        self._failure = ""
        """Reason of the last failure; empty: the files are up to date."""

    async def keep(self) -> None:
        """Write each file whose token is missing, revoked or about to expire."""
        if self._admin:
            await self._keep("admin.token", "admin", "user:admin")
        await self._keep("join.token", "join", JOIN)

    async def run(self) -> None:
        """Write the files and keep them up to date; failures are retried."""
        while True:
            await self.try_keep()
            await self._clock.sleep(CHECK_SECONDS)

    async def try_keep(self) -> None:
        """Write the files; a failure is logged when it is new."""
        try:
            await self.keep()
            self._failure = ""
        except (MandorError, OSError) as error:
            if str(error) != self._failure:
                self._failure = str(error)
                log.error("cannot update the token files in %s, retrying: %s", self._folder, error)

    async def _keep(self, file: str, role: Role, identity: str) -> None:
        path, now = self._folder / file, self._clock.now()
        found = await self._store.get(Key(Token.kind, "", _token_name(path)))
        if isinstance(found, Token) and (role != "join" or _fresh(found, now)):
            self._write(path, path.read_text().strip().partition(".")[0])
            return
        token, text = make_token(role, identity, expires_at=now + JOIN_SECONDS if role == "join" else 0.0)
        made = Put(token)
        record = Auditor(self._clock).of_commit(SERVER, "create", "", [(made, None)])
        with replacing(path, self._with_fingerprint(text)):  # A token that cannot be written is not stored.
            await self._store.commit(made, *_ending(found, now), *record)
        if role == "join":
            await self._delete_expired(now)

    def _write(self, path: Path, text: str) -> None:
        """Write the token with the current fingerprint, if the file differs."""
        wanted = self._with_fingerprint(text)
        if not path.exists() or path.read_text().strip() != wanted:
            write_secret(path, wanted)

    def _with_fingerprint(self, text: str) -> str:
        fingerprint = self._fingerprint()
        return f"{text}.{fingerprint}" if fingerprint else text

    async def _delete_expired(self, now: float) -> None:
        """Delete expired tokens of earlier versions of `join.token`."""
        for each in (await self._store.list(Token.kind)).items:
            if isinstance(each, Token) and each.spec.identity == JOIN and each.ends_at < now:
                try:
                    await self._store.commit(Delete(each.key, each.meta.version))
                except Conflict:
                    continue  # Another server deleted it.


def _fresh(token: Token, now: float) -> bool:
    return now < token.ends_at - (1 - RENEWAL_SHARE) * JOIN_SECONDS < float("inf")


def _ending(replaced: object, now: float) -> list[Write]:
    """Return the end of a replaced token: unchanged, or 24 hours for one without an end from an older version."""
    if not isinstance(replaced, Token) or replaced.spec.expires_at:
        return []
    return [Put(replaced.changed(spec=msgspec.structs.replace(replaced.spec, expires_at=now + JOIN_SECONDS)))]


def _token_name(path: Path) -> str:
    """Return the public half of the token in the file; `-`: no such file, or no token in it."""
    try:
        parts = split_token(path.read_text().strip())
    except FileNotFoundError:
        return "-"
    return parts[0] if parts else "-"
