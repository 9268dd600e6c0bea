"""Checks of a certificate for a host name. `cryptography` is imported on demand."""

from typing import NamedTuple


class CertificateState(NamedTuple):
    """Result of the check of a certificate and its key."""

    not_after: float = 0.0
    """Unix time at which it expires."""
    reason: str = ""
    """One word for programs; empty: there is no problem."""
    problem: str = ""


def check_certificate(chain: str, key: str, host: str) -> CertificateState:
    """Check that a PEM chain and key belong together and fit the host; `host` empty: any.

    `*.example.com` as host is fit by a certificate for `*.example.com` only.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    try:
        certificate = x509.load_pem_x509_certificates(chain.encode())[0]
        x509.load_pem_x509_certificates(chain.encode())
    except (ValueError, IndexError):
        return CertificateState(reason="CertificateInvalid", problem="`tls.crt` is not a certificate in PEM format")
    try:
        private = serialization.load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError):
        problem = "`tls.key` is not a private key in PEM format without a password"
        return CertificateState(reason="KeyInvalid", problem=problem)
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        return CertificateState(reason="KeyInvalid", problem="`tls.key` does not belong to `tls.crt`")
    end = certificate.not_valid_after_utc.timestamp()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
    except x509.ExtensionNotFound:
        known = []
    if host and not any(_fits(name, host) for name in known):
        shown = ", ".join(known[:5]) or "no host name"
        return CertificateState(end, "HostMismatch", f"the certificate is for {shown}, not for {host}")
    return CertificateState(end)


def _fits(name: str, host: str) -> bool:
    if name == host:
        return True
    return name.startswith("*.") and "." in host and not host.startswith("*") and name[2:] == host.partition(".")[2]
