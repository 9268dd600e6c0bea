"""Signed requests of ACME: JSON Web Signatures, key authorizations and certificate ids. No I/O.

`cryptography` is imported on demand, because most programs never need it.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

COORDINATE_BYTES = 32  # of a point on P-256


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Raise `ValueError` for invalid text."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


class AccountKey:
    """The private key of an account, on the curve P-256."""

    def __init__(self, pem: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        found = load_pem_private_key(pem.encode(), None)
        if not isinstance(found, EllipticCurvePrivateKey):
            raise ValueError("the key of the account is not one of an elliptic curve")
        self._key = found

    @cached_property
    def public(self) -> dict[str, str]:
        """Public key as a JWK, its members in the order that thumbprints need (RFC 7638)."""
        numbers = self._key.public_key().public_numbers()
        x, y = (base64url(each.to_bytes(COORDINATE_BYTES, "big")) for each in (numbers.x, numbers.y))
        return {"crv": "P-256", "kty": "EC", "x": x, "y": y}

    def authorization(self, token: str) -> str:
        """Return the key authorization of a challenge's token."""
        digest = hashlib.sha256(json.dumps(self.public, separators=(",", ":")).encode()).digest()
        return f"{token}.{base64url(digest)}"

    def signed(self, url: str, payload: Any, *, nonce: str, account: str = "") -> bytes:
        """Return the body of a request. `payload`: None for a request that only reads. `account`: URL of the account;
        empty: the request contains the public key.
        """
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        header: dict[str, Any] = {"alg": "ES256", "nonce": nonce, "url": url}
        header |= {"kid": account} if account else {"jwk": self.public}
        head, body = _encoded(header), "" if payload is None else _encoded(payload)
        r, s = decode_dss_signature(self._key.sign(f"{head}.{body}".encode(), ECDSA(hashes.SHA256())))
        signature = r.to_bytes(COORDINATE_BYTES, "big") + s.to_bytes(COORDINATE_BYTES, "big")
        return _flattened(head, body, signature)

    def binding(self, url: str, key_id: str, mac_key: str) -> dict[str, str]:
        """Return the external account binding: the public key, signed with the key that the authority gave."""
        head, body = _encoded({"alg": "HS256", "kid": key_id, "url": url}), _encoded(self.public)
        signature = hmac.digest(from_base64url(mac_key), f"{head}.{body}".encode(), "sha256")
        found: dict[str, str] = json.loads(_flattened(head, body, signature))
        return found


def certificate_id(certificate: str) -> str:
    """Return the id of a certificate for renewal information (RFC 9773); empty: it names no issuing key."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.encode())
    try:
        issuer = found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound:
        issuer = None
    if not issuer:
        return ""
    serial = found.serial_number
    # The length leaves room for a sign bit, as DER does.
    return f"{base64url(issuer)}.{base64url(serial.to_bytes(serial.bit_length() // 8 + 1, 'big'))}"


def _encoded(value: Mapping[str, Any]) -> str:
    return base64url(json.dumps(value, separators=(",", ":")).encode())


def _flattened(head: str, body: str, signature: bytes) -> bytes:
    return json.dumps({"protected": head, "payload": body, "signature": base64url(signature)}).encode()
