"""Workload identities: signed with keys that are sealed in the store, and verifiable with the published ones."""

import json
import secrets
from itertools import pairwise
from typing import Any

from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import Clock
from mandor.lib.sealing import Sealer, Unsealable
from mandor.model.meta import Key, Meta
from mandor.model.role import IdentityKey, IdentityKeySpec
from mandor.store.base import Delete, Put, Store, Write

ALGORITHM = "ES256"
ROTATE_SECONDS = 30 * 86_400.0
"""Age at which a new key is created."""
TOKENS_SECONDS = 25 * 3600.0
"""Longest lifetime of a token: an older key is published this long after its last signature."""


def about(name: str) -> str:
    """Return the context that the private half of a key is sealed with."""
    return str(Key(IdentityKey.kind, "", name))


class IdentityKeys:
    """The signing keys of the cluster."""

    def __init__(self, store: Store, clock: Clock, sealer: Sealer | None) -> None:
        self._store, self._clock, self._sealer = store, clock, sealer
        self._opened: dict[Key, tuple[int, Any]] = {}

    async def published(self) -> list[dict[str, str]]:
        """Return the public keys as JWKs, the newest first; create one if there is none."""
        keys = await self._keys() or [await self._made()]
        return [{**each.spec.public, "kid": each.meta.name, "use": "sig", "alg": ALGORITHM} for each in keys]

    async def sign(self, claims: dict[str, Any]) -> str:
        import jwt

        keys = await self._keys()
        if not keys or self._clock.now() - keys[0].spec.made_at > ROTATE_SECONDS:
            keys = [await self._made()]
        return jwt.encode(claims, self._private(keys[0]), algorithm=ALGORITHM, headers={"kid": keys[0].meta.name})

    async def _keys(self) -> list[IdentityKey]:
        found = [each for each in (await self._store.list(IdentityKey.kind)).items if isinstance(each, IdentityKey)]
        return sorted(found, key=lambda each: (each.spec.made_at, each.meta.name), reverse=True)

    def _private(self, key: IdentityKey) -> Any:
        version, opened = self._opened.get(key.key, (0, None))
        if opened is None or version != key.meta.version:
            from cryptography.hazmat.primitives.serialization import load_pem_private_key

            try:
                text = self._need_sealer().open(key.spec.sealed, about(key.meta.name))
            except Unsealable as error:
                raise Unavailable(str(error), hint="servers of one cluster share one key for secrets") from error
            opened = load_pem_private_key(text.encode(), None)
            self._opened = {key.key: (key.meta.version, opened)}
        return opened

    def _need_sealer(self) -> Sealer:
        if self._sealer is None:
            raise Unavailable("this server has no key for secrets, so it cannot sign identities")
        return self._sealer

    async def _made(self) -> IdentityKey:
        """Store a new key and delete keys whose last token has expired, in one commit."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from jwt.algorithms import ECAlgorithm

        now, name = self._clock.now(), secrets.token_hex(8)
        private = ec.generate_private_key(ec.SECP256R1())
        pem = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = {key: str(value) for key, value in json.loads(ECAlgorithm.to_jwk(private.public_key())).items()}
        spec = IdentityKeySpec(
            public={key: public[key] for key in ("kty", "crv", "x", "y")},
            sealed=self._need_sealer().seal(pem.decode(), about(name)),
            made_at=now,
        )
        key = IdentityKey(meta=Meta(name=name), spec=spec)
        old = await self._keys()
        # A key has signed until the one after it was made.
        ended = [each for newer, each in pairwise(old) if now - newer.spec.made_at > TOKENS_SECONDS]
        writes: list[Write] = [Put(key), *(Delete(each.key, each.meta.version) for each in ended)]
        try:
            await self._store.commit(*writes)
        except Conflict:
            await self._store.commit(Put(key))  # another server deletes them just now
        return key
