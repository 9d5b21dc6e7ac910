"""A hospital's own CA, as it exists in many: RSA root, RSA intermediate, its own idea of names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedelmy_node.identity.certificates import to_pem

BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Hospital:
    """Signs what it is given, under names that it chooses."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._root_key = rsa.generate_private_key(65537, 2048)
        self._key = rsa.generate_private_key(65537, 2048)
        root, name = (
            _name("CN=Hospital Root,O=South Hospital,C=DE"),
            _name("CN=Issuing CA 3,O=South Hospital,C=DE"),
        )
        self.root = _authority(root, root, self._root_key, self._root_key)
        self.intermediate = _authority(name, root, self._key, self._root_key)
        self.root_file = directory / "hospital-root.pem"
        self.root_file.write_bytes(to_pem(self.root))

    def certify(
        self,
        request: Path,
        *,
        subject: str = "CN=node1,O=South Hospital,C=DE",
        sans: Sequence[str] = (),
        usages: Sequence[x509.ObjectIdentifier] = BOTH,
        days: float = 90,
    ) -> Path:
        """The leaf and the intermediate in one file, as such CAs send them back."""
        key = x509.load_pem_x509_csr(request.read_bytes()).public_key()
        builder = _builder(_name(subject), self.intermediate.subject, key, days)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if sans:
            names = x509.SubjectAlternativeName([x509.DNSName(san) for san in sans])
            builder = builder.add_extension(names, critical=False)
        leaf = builder.sign(self._key, hashes.SHA256())
        out = self.directory / f"{leaf.serial_number:x}.pem"
        out.write_bytes(to_pem(leaf) + to_pem(self.intermediate))
        return out

    def revoke(self, *certificates: x509.Certificate, number: int = 1, days: float = 7) -> Path:
        """The intermediate's list of what it revoked."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder(
            self.intermediate.subject, now - timedelta(days=8), now + timedelta(days=days)
        )
        for certificate in certificates:
            entry = x509.RevokedCertificateBuilder(certificate.serial_number, now)
            builder = builder.add_revoked_certificate(entry.build())
        crl = builder.add_extension(x509.CRLNumber(number), critical=False).sign(
            self._key, hashes.SHA256()
        )
        out = self.directory / f"list-{number}.pem"
        out.write_bytes(crl.public_bytes(serialization.Encoding.PEM))
        return out


def _name(text: str) -> x509.Name:
    return x509.Name.from_rfc4514_string(text)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: object, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)  # type: ignore[arg-type]
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(days=1)).not_valid_after(
        now + timedelta(days=days)
    )


def _authority(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, issuer_key: rsa.RSAPrivateKey
) -> x509.Certificate:
    builder = _builder(subject, issuer, key.public_key(), 3650)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(issuer_key, hashes.SHA256())
