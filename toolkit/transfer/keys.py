"""Keys and certificates for one transfer between hosts: made here, in memory, and forgotten with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# Hosts' clocks may be years off, and it does not matter: nobody keeps these keys.
_FROM, _TO = datetime(2000, 1, 1, tzinfo=timezone.utc), datetime(2999, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class RelayKey:
    """What one host proves itself with, and what it recognises the others by; PEM."""

    key: str = field(repr=False)
    cert: str
    ca: str


class RelayKeys:
    """An authority of its own; the common name of a certificate is the host's name in the hosts file."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("toolkit relay")
        self._ca = self._sign(self._name, self._key.public_key(), authority=True)

    def of(self, host: str) -> RelayKey:
        """Return a new key for a host, signed."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return RelayKey(private.decode(), _pem(self._sign(_name(host), key.public_key())), _pem(self._ca))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, authority: bool = False
    ) -> x509.Certificate:
        # The extensions that OpenSSL 3 in strict mode, the default from Python 3.13 on, wants to see.
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_FROM)
            .not_valid_after(_TO)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer, critical=False)
        )
        if authority:
            signs = x509.KeyUsage(
                *(False, False, False, False, False),
                key_cert_sign=True,
                crl_sign=False,
                encipher_only=False,
                decipher_only=False,
            )
            builder = builder.add_extension(signs, critical=True)
        return builder.sign(self._key, hashes.SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
