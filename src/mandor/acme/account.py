"""StoredAccount: the account of the cluster at a certificate authority, in the store, with its key encrypted."""

import hashlib
from dataclasses import dataclass

from msgspec.structs import replace

from mandor.errors import Conflict, Unavailable
from mandor.lib import x509
from mandor.lib.egress import host_of
from mandor.lib.sealing import Sealer, Unsealable
from mandor.model.acme_account import AcmeAccount, AcmeAccountSpec
from mandor.model.meta import Key, Meta
from mandor.store.base import Put, Store

TRIES = 5


@dataclass(frozen=True, slots=True)
class Account:
    key: str
    """Private key in PEM format."""
    url: str = ""
    """URL of the account; empty: it is not registered yet."""
    email: str = ""


class StoredAccount:
    """All servers use the same account, whichever of them leads. Every directory has an account of its own."""

    def __init__(self, store: Store, sealer: Sealer | None) -> None:
        self._store, self._sealer = store, sealer

    async def load(self, directory: str) -> Account:
        """Return the account of a directory; create its key if there is none."""
        for _ in range(TRIES):
            found = await self._store.get(_key(directory))
            if isinstance(found, AcmeAccount):
                return Account(self._opened(found), found.spec.url, found.spec.email)
            made = AcmeAccount(meta=Meta(name=_key(directory).name), spec=self._new_spec(directory))
            try:
                await self._store.commit(Put(made))
            except Conflict as error:
                if error.facts.get("key") not in {None, made.key}:
                    raise  # this server leads no longer
        raise Conflict("the ACME account is being changed by another server", hint="the next attempt follows")

    async def registered(self, directory: str, url: str, email: str) -> None:
        """Store what the authority knows about the account."""
        found = await self._store.get(_key(directory))
        if isinstance(found, AcmeAccount):
            await self._store.commit(Put(found.changed(spec=replace(found.spec, url=url, email=email))))

    def _new_spec(self, directory: str) -> AcmeAccountSpec:
        return AcmeAccountSpec(
            directory=directory, sealed=self._need_sealer().seal(x509.new_key(), str(_key(directory)))
        )

    def _opened(self, account: AcmeAccount) -> str:
        try:
            return self._need_sealer().open(account.spec.sealed, str(account.key))
        except Unsealable as error:
            raise Unavailable(str(error), hint="servers of one cluster share one key for secrets") from error

    def _need_sealer(self) -> Sealer:
        if self._sealer is None:
            raise Unavailable("this server has no key for secrets", hint="start it with --secrets-key FILE")
        return self._sealer


def _key(directory: str) -> Key:
    """Return the key of the account: the host of the directory, with a digest of the whole URL."""
    digest = hashlib.sha256(directory.encode()).hexdigest()[:8]
    return Key(AcmeAccount.kind, "", f"{host_of(directory)[0].strip('[]').replace(':', '-')}-{digest}")
