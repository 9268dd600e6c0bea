"""Encryption of short texts, each bound to one purpose."""

import base64
import hashlib
import os
from collections.abc import Iterable, Sequence

KEY_BYTES = 32
_NONCE_BYTES = 12
_FORM = "v1"


class Unsealable(Exception):
    """The text was encrypted with another key or for another purpose, or is damaged."""


class Sealer:
    """AES-GCM with one key. A text encrypted with one `about` cannot be decrypted with another."""

    def __init__(self, key: bytes) -> None:
        # Loaded when it is needed: few commands are about secrets.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(key) != KEY_BYTES:
            raise ValueError(f"a key for secrets has {KEY_BYTES} bytes, this one has {len(key)}")
        self._cipher = AESGCM(key)
        self.key_id = hashlib.sha256(b"mandor key id\0" + key).hexdigest()[:12]

    @classmethod
    def of(cls, text: str) -> "Sealer":
        """Make a sealer from a secret of any length that is hard to guess, such as a token."""
        return Sealer(hashlib.sha256(b"mandor sealing\0" + text.encode()).digest())

    def seal(self, text: str, about: str) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, text.encode(), about.encode())
        return f"{_FORM}.{self.key_id}.{base64.b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, about: str) -> str:
        from cryptography.exceptions import InvalidTag

        key_id = key_id_of(sealed)
        if key_id != self.key_id:
            raise Unsealable(f"{about} was sealed with the key {key_id or '?'}, and this is {self.key_id}")
        try:
            raw = base64.b64decode(sealed.rpartition(".")[2], validate=True)
            return self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], about.encode()).decode()
        except (InvalidTag, ValueError):
            raise Unsealable(f"the encrypted value of {about} is damaged") from None


class KeyRing(Sealer):
    """Several keys: the first one encrypts, all of them decrypt. The keys can be replaced at any time."""

    def __init__(self, sealers: Sequence[Sealer]) -> None:
        self.use(sealers)

    @property
    def sealers(self) -> list[Sealer]:
        return list(self._by_id.values())

    @property
    def key_ids(self) -> tuple[str, ...]:
        return tuple(self._by_id)

    def use(self, sealers: Sequence[Sealer]) -> None:
        """Replace all keys."""
        self._by_id = {each.key_id: each for each in sealers}
        self._first = sealers[0]
        self.key_id = self._first.key_id

    def seal(self, text: str, about: str) -> str:
        return self._first.seal(text, about)

    def open(self, sealed: str, about: str) -> str:
        key_id = key_id_of(sealed)
        sealer = self._by_id.get(key_id)
        if sealer is None:
            known = ", ".join(self._by_id)
            raise Unsealable(f"{about} was sealed with the key {key_id or '?'}, and this server has {known}")
        return sealer.open(sealed, about)


def key_id_of(sealed: str) -> str:
    """Return the id of the key that encrypted a text; empty if it is not an encrypted text."""
    form, _, rest = sealed.partition(".")
    return rest.partition(".")[0] if form == _FORM else ""


def parse_keys(text: str) -> list[bytes]:
    """Parse keys of 64 hexadecimal digits, one per line, the encrypting one first; `#` starts a comment."""
    lines: Iterable[str] = (line.partition("#")[0].strip() for line in text.splitlines())
    keys = [bytes.fromhex(line) for line in lines if line]
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"a key for secrets has {KEY_BYTES} bytes")
    return keys
