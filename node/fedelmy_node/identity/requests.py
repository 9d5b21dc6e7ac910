"""Certificate requests: how a key asks for a certificate without ever leaving its machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedelmy_node.errors import IdentityError
from fedelmy_node.identity.certificates import UNREADABLE, fingerprint, full_fingerprint, public_key, subject_of_names
from fedelmy_node.identity.files import read_file
from fedelmy_node.identity.subject import Subject

__all__ = ["Request", "make_request", "read_request", "common_name"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request whose own signature is right: whoever made it holds the key."""

    path: Path
    """The file to send to the operator."""
    subject: Subject
    """What is asked for; the CA decides what is given."""
    key: ec.EllipticCurvePublicKey
    """The key to be certified."""

    @property
    def fingerprint(self) -> str:
        """What the site and the operator compare on the phone."""
        return fingerprint(self.key)

    @property
    def full_fingerprint(self) -> str:
        return full_fingerprint(self.key)


def common_name(text: str) -> x509.Name:
    """A distinguished name for people who look at certificates with other tools; nothing here reads it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def make_request(subject: Subject, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A PEM request that asks for a certificate of `subject` over the public half of `key`."""
    names = x509.SubjectAlternativeName([x509.DNSName(subject.dns_name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(common_name(subject.dns_name))
    request = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def read_request(path: Path) -> Request:
    """The request in a file, if it is whole, signed by its own key, and asks for one valid name."""
    try:
        request = x509.load_pem_x509_csr(read_file(path))
        valid = request.is_signature_valid
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except UNREADABLE as error:
        raise IdentityError("E-IDENTITY-FILE", f"{path} is not a request of `fedelmy-node identity init`") from error
    if not valid:
        raise IdentityError("E-IDENTITY-FILE", f"{path} is damaged: it is not signed by its own key")
    subject = subject_of_names(names.get_values_for_type(x509.DNSName))
    return Request(path=path, subject=subject, key=public_key(request))
