"""Keys and certificates for one host-to-host transfer: created in memory, discarded after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# The clock of a host can be years off without harm: these keys are not stored.
_FROM, _TO = datetime(2000, 1, 1, tzinfo=timezone.utc), datetime(2999, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class RelayKey:
    """Key and certificate of one host, and the authority that it trusts; PEM."""

    key: str = field(repr=False)
    cert: str
    ca: str


class RelayKeys:
    """Certificate authority of one transfer; a certificate's common name is the host's name in hosts.yaml."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("toolkit relay")
        self._ca = self._sign(self._name, self._key.public_key(), authority=True)

    def of(self, host: str) -> RelayKey:
        """Return a new signed key for a host."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return RelayKey(private.decode(), _pem(self._sign(_name(host), key.public_key())), _pem(self._ca))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, authority: bool = False
    ) -> x509.Certificate:
        # OpenSSL 3 requires these extensions in strict mode, the default from Python 3.13 on.
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
