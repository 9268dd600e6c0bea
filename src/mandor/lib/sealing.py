"""Sealing: short texts that only the holder of a key can read, and that are good in one place only."""

import base64
import hashlib
import os

KEY_BYTES = 32
_NONCE_BYTES = 12
_FORM = "v1"


class Unsealable(Exception):
    """It was sealed with another key, for another thing, or is damaged."""


class Sealer:
    """AES-GCM. What is sealed `about` one thing cannot be passed off as another's."""

    def __init__(self, key: bytes) -> None:
        # Loaded when it is needed: few commands are about secrets.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(key) != KEY_BYTES:
            raise ValueError(f"a key for secrets has {KEY_BYTES} bytes, this one has {len(key)}")
        self._cipher = AESGCM(key)
        self.key_id = hashlib.sha256(b"mandor key id\0" + key).hexdigest()[:12]

    @classmethod
    def of(cls, text: str) -> "Sealer":
        """From a password of any length that is hard to guess, such as a token."""
        return cls(hashlib.sha256(b"mandor sealing\0" + text.encode()).digest())

    def seal(self, text: str, about: str) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, text.encode(), about.encode())
        return f"{_FORM}.{self.key_id}.{base64.b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, about: str) -> str:
        from cryptography.exceptions import InvalidTag

        form, _, rest = sealed.partition(".")
        key_id, _, data = rest.partition(".")
        if form != _FORM or key_id != self.key_id:
            raise Unsealable(f"{about} was sealed with the key {key_id or '?'}, and this is {self.key_id}")
        try:
            raw = base64.b64decode(data, validate=True)
            return self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], about.encode()).decode()
        except (InvalidTag, ValueError):
            raise Unsealable(f"what is sealed about {about} is damaged") from None
