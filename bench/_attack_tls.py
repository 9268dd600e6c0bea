"""Certificates: clients with damaged, foreign, expired or no certificates, and bytes that are no TLS."""

from __future__ import annotations

import contextlib
import datetime
import random
import socket
import ssl
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bench._attack_target import Campaign, Target

HANDSHAKE_SECONDS = 5.0


def make_certificate(folder: Path, name: str, *, days: float = 1.0, began_days: float = -1.0) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=began_days))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert, secret = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    secret.write_bytes(private)
    return cert, secret


def by_certificates(target: Target, dice: random.Random, until: float) -> Campaign:
    """Every kind of bad handshake; in between, the server has to answer a good one."""
    campaign = Campaign("certificates")
    foreign = make_certificate(target.folder, "foreign")
    expired = make_certificate(target.folder, "expired", days=-1.0, began_days=-3.0)
    hello = _client_hello()
    while time.monotonic() < until:
        kind = dice.choice(["none", "foreign", "expired", "bytes", "hello", "plain", "old"])
        began = time.monotonic()
        try:
            status = _try(target.port, kind, dice, foreign, expired, hello)
        except (OSError, ssl.SSLError) as error:
            status = f"{kind}: {type(error).__name__}"
        campaign.note(status, time.monotonic() - began)
        if status.endswith("200 with no token"):
            campaign.found(f"{kind}: the server gave nodes to a caller without a token")
        if campaign.tried % 100 == 0 and not target.ready():
            campaign.found(f"no good handshake after {kind}")
    target.settle(campaign)
    return campaign


def _try(
    port: int, kind: str, dice: random.Random, foreign: tuple[Path, Path], expired: tuple[Path, Path], hello: bytes
) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=HANDSHAKE_SECONDS) as line:
        if kind in {"bytes", "hello", "plain"}:
            line.sendall(_bytes(kind, dice, hello))
            line.shutdown(socket.SHUT_WR)
            return f"{kind}: {'closed' if not line.recv(4096) else 'answered'}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if kind in {"foreign", "expired"}:
            context.load_cert_chain(*(foreign if kind == "foreign" else expired))
        if kind == "old":
            context.set_ciphers("AES128-SHA:@SECLEVEL=0")
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        with context.wrap_socket(line, server_hostname="localhost") as secure:
            secure.sendall(b"GET /v1/nodes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            words = secure.recv(65536).split(b" ", 2)
            status = words[1].decode() if len(words) > 1 else "closed"
            return f"{kind}: {status}{' with no token' if status == '200' else ''}"


def _bytes(kind: str, dice: random.Random, hello: bytes) -> bytes:
    if kind == "bytes":
        return dice.randbytes(dice.randrange(1, 4000))
    if kind == "plain":
        return b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
    data = bytearray(hello)
    for _ in range(dice.randrange(1, 6)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data[: dice.randrange(1, len(data) + 1)])


def _client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
