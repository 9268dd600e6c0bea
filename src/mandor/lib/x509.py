"""X.509 certificates: an authority, the certificates that it signs, and reading of certificates. ECDSA on P-256.

`cryptography` is imported on demand, because most programs never need it.
"""

import hashlib
import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

BACKDATED = timedelta(hours=1)
"""Certificates are valid from this long before they are made, for machines whose clocks are behind."""
REQUEST_BYTES_MOST = 4096
CURVES = frozenset({"secp256r1", "secp384r1"})
_MARK = "-----BEGIN CERTIFICATE-----"


class Pair(NamedTuple):
    """A certificate and its private key in PEM format."""

    certificate: str
    key: str


def fingerprint(certificate: str) -> str:
    """Return the SHA-256 of a certificate in hexadecimal."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()


def split_bundle(text: str) -> list[str]:
    """Return the certificates of a PEM file."""
    end = "-----END CERTIFICATE-----"
    found = [part for part in text.split(_MARK)[1:] if end in part]
    return [f"{_MARK}{part.partition(end)[0]}{end}\n" for part in found]


def new_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )


def make_authority(name: str, *, now: float, seconds: float) -> Pair:
    """Make a self-signed authority."""
    from cryptography import x509

    key = new_key()
    subject = _name(name)
    public = _private(key).public_key()
    builder = _builder(subject, subject, public, now, _moment(now) + timedelta(seconds=seconds))
    builder = _as_authority(builder).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False
    )
    return Pair(_signed(builder, key), key)


def cross_sign(authority: Pair, certificate: str, *, now: float) -> str:
    """Sign the subject and key of another authority with this one, for clients that trust only this one so far."""
    issuer, other = _loaded(authority.certificate), _loaded(certificate)
    builder = _builder(
        other.subject, issuer.subject, _curve_key(other.public_key()), now, min(_end(issuer), _end(other))
    )
    return _signed(_issued_by(_as_authority(builder), issuer), authority.key)


def make_request(key: str, name: str = "", *, hosts: Iterable[str] = ()) -> str:
    """Make a certificate signing request, which proves that its sender has the key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name) if name else x509.Name([]))
    if names := [_host(each) for each in hosts]:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    request = builder.sign(_private(key), hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def read_request(text: str) -> bytes:
    """Return the public key of a request (DER) after checking its signature; raises `ValueError` if it is invalid."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    if len(text) > REQUEST_BYTES_MOST:
        raise ValueError(f"a certificate signing request has at most {REQUEST_BYTES_MOST} bytes")
    try:
        request = x509.load_pem_x509_csr(text.encode())
        valid = request.is_signature_valid
        public = _curve_key(request.public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("not a certificate signing request for an elliptic curve key") from None
    if not valid:
        raise ValueError("the certificate signing request is not signed by its own key")
    return _der(public)


def public_key(key: str) -> bytes:
    """Return the public key of a private key as DER."""
    return _der(_private(key).public_key())


def key_id(public: bytes) -> str:
    """Return the SHA-256 of a public key in hexadecimal."""
    return hashlib.sha256(public).hexdigest()


def issue(
    authority: Pair,
    public: bytes,
    name: str,
    *,
    uri: str = "",
    hosts: Iterable[str] = (),
    server: bool = False,
    now: float,
    seconds: float,
) -> str:
    """Issue a certificate for this public key: for a client, or with `server` for a server with these host names."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_der_public_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = _loaded(authority.certificate)
    ends = min(_moment(now) + timedelta(seconds=seconds), _end(issuer))
    builder = _builder(_name(name), issuer.subject, _curve_key(load_der_public_key(public)), now, ends)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    names: list[x509.GeneralName] = [_host(each) for each in hosts]
    if uri:
        names.append(x509.UniformResourceIdentifier(uri))
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return _signed(_issued_by(builder, issuer), authority.key)


def check_pair(pair: Pair) -> None:
    """Raise `ValueError` unless this is the certificate of an authority with its key."""
    from cryptography import x509

    certificate = _loaded(pair.certificate)
    if _der(_private(pair.key).public_key()) != _der(_curve_key(certificate.public_key())):
        raise ValueError("the key does not belong to the certificate")
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        raise ValueError("the certificate is not that of an authority") from None
    if not basic.ca:
        raise ValueError("the certificate is not that of an authority")


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """The content of a certificate."""

    key: str
    """Id of its public key."""
    uris: tuple[str, ...]
    hosts: tuple[str, ...]
    starts_at: float
    ends_at: float
    certificate: "x509.Certificate"

    def issued_by(self, authority: str) -> bool:
        """Return whether this authority, as PEM, signed it."""
        from cryptography.exceptions import InvalidSignature

        try:
            self.certificate.verify_directly_issued_by(_loaded(authority))
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def read(certificate: str | bytes) -> CertificateInfo:
    """Read a certificate in PEM or DER format; raises `ValueError` if it is invalid."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        found = _loaded(certificate) if isinstance(certificate, str) else x509.load_der_x509_certificate(certificate)
        public = _der(_curve_key(found.public_key()))
        try:
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            names = None
        uris = tuple(names.get_values_for_type(x509.UniformResourceIdentifier)) if names else ()
        hosts = tuple(names.get_values_for_type(x509.DNSName)) if names else ()
        hosts += tuple(str(each) for each in names.get_values_for_type(x509.IPAddress)) if names else ()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("not a certificate of an elliptic curve key") from None
    starts, ends = found.not_valid_before_utc.timestamp(), _end(found).timestamp()
    return CertificateInfo(key_id(public), uris, hosts, starts, ends, found)


# The parts of a certificate.


def _name(text: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        return x509.DNSName(text)


def _builder(
    subject: "x509.Name", issuer: "x509.Name", public: "EllipticCurvePublicKey", now: float, ends: datetime
) -> "x509.CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(now) - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _as_authority(builder: "x509.CertificateBuilder") -> "x509.CertificateBuilder":
    from cryptography import x509

    return builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).add_extension(
        _usage(signs=True), critical=True
    )


def _issued_by(builder: "x509.CertificateBuilder", issuer: "x509.Certificate") -> "x509.CertificateBuilder":
    from cryptography import x509

    try:
        own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        known = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
    except x509.ExtensionNotFound:
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(_curve_key(issuer.public_key()))
    return builder.add_extension(known, critical=False)


def _usage(*, signs: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: "x509.CertificateBuilder", key: str) -> str:
    from cryptography.hazmat.primitives import hashes, serialization

    return builder.sign(_private(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _private(key: str) -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    found = load_pem_private_key(key.encode(), None)
    if not isinstance(found, EllipticCurvePrivateKey):
        raise ValueError("the key is not one of an elliptic curve")
    return found


def _curve_key(public: object) -> "EllipticCurvePublicKey":
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    if not isinstance(public, EllipticCurvePublicKey) or public.curve.name not in CURVES:
        raise ValueError("the key is not one of the curves P-256 and P-384")
    return public


def _der(public: "EllipticCurvePublicKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _loaded(certificate: str) -> "x509.Certificate":
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate.encode())


def _end(certificate: "x509.Certificate") -> datetime:
    return certificate.not_valid_after_utc


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
