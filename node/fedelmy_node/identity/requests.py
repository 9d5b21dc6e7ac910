"""Certificate signing requests: the private key never leaves its machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedelmy_node.domain.errors import IdentityError
from fedelmy_node.domain.subject import Subject
from fedelmy_node.identity.certificates import (
    UNREADABLE,
    fingerprint,
    full_fingerprint,
    public_key,
    subject_of_names,
)
from fedelmy_node.identity.keys import read_file


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request with a valid signature, which proves possession of the key."""

    path: Path
    """The file to send to the operator."""
    subject: Subject
    """The requested subject; the CA decides."""
    key: ec.EllipticCurvePublicKey

    @property
    def fingerprint(self) -> str:
        """For comparison by phone between site and operator."""
        return fingerprint(self.key)

    @property
    def full_fingerprint(self) -> str:
        return full_fingerprint(self.key)


def common_name(text: str) -> x509.Name:
    """Return a distinguished name, shown by other tools only; fedelmy does not read it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def make_request(subject: Subject, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a PEM request for a certificate of `subject` with this key."""
    names = x509.SubjectAlternativeName([x509.DNSName(subject.dns_name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(common_name(subject.dns_name))
    request = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def read_request(path: Path) -> Request:
    """Read a request that is signed by its own key and has one valid name."""
    try:
        request = x509.load_pem_x509_csr(read_file(path))
        valid = request.is_signature_valid
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except UNREADABLE as error:
        message = f"{path} is not a request of `fedelmy-node identity init`"
        raise IdentityError("E-IDENTITY-FILE", message) from error
    if not valid:
        raise IdentityError("E-IDENTITY-FILE", f"{path} is damaged: invalid signature")
    subject = subject_of_names(names.get_values_for_type(x509.DNSName))
    return Request(path=path, subject=subject, key=public_key(request))
