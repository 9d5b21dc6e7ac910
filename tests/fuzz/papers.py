"""Identities for the targets: a CA with its key, certificates, chains, revocation lists, and whom a
site believes.

Damaged papers are refused at their signature. So that what is behind it is reached, too,
`certified` and `listed` sign whatever they are given: a CA that is trusted, but writes what nobody
expects.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.subject import NameRule, Subject, TrustRules
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import KEY_USAGES, parse_certificates, to_pem
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.identity.requests import common_name
from fedelmy_node.identity.signatures import Purpose, sign
from fedelmy_node.identity.trust import Trust
from tests.fuzz.mutate import join_frames, split_frames
from tests.fuzz.place import directory

__all__ = ["operator", "live", "trust", "certified", "listed"]

_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
FOREIGN = "CN=node1,O=South Hospital,C=DE"


@cache
def _ca() -> Path:
    authority.init(directory() / "ca")
    return directory() / "ca"


@cache
def _ca_key() -> ec.EllipticCurvePrivateKey:
    return keystore.read_key(_ca() / "ca.key")


@cache
def _middle_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def operator() -> keystore.Identity:
    return keystore.load(_ca() / "operator")


@cache
def _north() -> bytes:
    """The certificate of a site, and its CA."""
    home = directory() / "north" / "identity"
    keystore.init(home, "north", "site")
    authority.sign(_ca(), home / "request.csr", directory() / "north.pem")
    return (directory() / "north.pem").read_bytes()


@cache
def _lists() -> bytes:
    _north(), operator()
    return authority.revoke(_ca(), "north", reason="key-compromise").path.read_bytes()


@cache
def live() -> LiveIdentity:
    return LiveIdentity(_ca() / "operator")


@cache
def _hospital() -> x509.Certificate:
    """A CA that, unlike ours, may have others below it; with the same key, so that one key signs
    every last link.
    """
    name = common_name("hospital")
    return _made(name, name, _ca_key(), _ca_key(), is_ca=True)


@cache
def trust() -> Trust:
    """Whom a site believes that has lists, foreign names and pins."""
    names = (
        NameRule(subject=Subject.of("south", "site"), distinguished=FOREIGN),
        NameRule(subject=Subject.of("west", "site"), san="west.hospital.example"),
    )
    pins = {Subject.of("operator", "operator"): operator().fingerprint}
    return Trust(
        operator().ca_pem + to_pem(_hospital()), _lists(), TrustRules(names=names, pins=pins)
    )


# --- whatever it is, the CA has signed it
# -------------------------------------------------------------------------


def certified(frames: bytes) -> bytes:
    """PEM of a chain: what is signed of each certificate, the last one by the CA, the others by the
    next one's key.
    """
    parts = split_frames(frames)[:10]
    keys = [_middle_key()] * (len(parts) - 1) + [_ca_key()]
    return b"".join(
        _pem("CERTIFICATE", _signed(part, key)) for part, key in zip(parts, keys, strict=False)
    )


def listed(body: bytes) -> bytes:
    """PEM of a revocation list: what is signed of it."""
    return _pem("X509 CRL", _signed(body, _ca_key()))


def _signed(body: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    value = b"\x00" + key.sign(body, ec.ECDSA(hashes.SHA256()))
    return _der(0x30, body + _ECDSA_SHA256 + _der(0x03, value))


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + content


def _pem(label: str, der: bytes) -> bytes:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(der).decode()}-----END {label}-----\n".encode()


# --- valid inputs
# -----------------------------------------------------------------------------------------------


@cache
def certificate_seeds() -> list[bytes]:
    return [
        operator().certificate_pem,
        operator().ca_pem,
        operator().certificate_pem + operator().ca_pem,
    ]


@cache
def request_seeds() -> list[bytes]:
    _north()
    return [(directory() / "north" / "identity" / "request.csr").read_bytes()]


@cache
def caller_seeds() -> list[bytes]:
    leaf, ca = operator().certificate_pem, operator().ca_pem
    return [join_frames([leaf]), join_frames([leaf, leaf + ca])]


@cache
def signature_seeds() -> list[bytes]:
    signature = sign(operator(), b"payload", purpose=Purpose.PLAN)
    return [join_frames([signature.value, signature.certificate_pem])]


@cache
def chain_seeds() -> list[bytes]:
    """Of our own CA; of an intermediate one with a foreign name; one that was revoked."""
    ours = parse_certificates(operator().certificate_pem, "it")[0]
    middle = _made(common_name("middle"), _hospital().subject, _middle_key(), _ca_key(), is_ca=True)
    foreign = _made(
        x509.Name.from_rfc4514_string(FOREIGN),
        middle.subject,
        _ca_key(),
        _middle_key(),
        is_ca=False,
    )
    revoked = parse_certificates(_north(), "it")[0]
    chains = ([ours], [foreign, middle], [revoked])
    return [join_frames([each.tbs_certificate_bytes for each in chain]) for chain in chains]


def _made(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signs: ec.EllipticCurvePrivateKey,
    is_ca: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
    )
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(300))
    builder = builder.add_extension(
        x509.BasicConstraints(ca=is_ca, path_length=None), critical=True
    )
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key())
    builder = builder.add_extension(authority_key, critical=False)
    if not is_ca:
        names = [x509.DNSName("node1.hospital.example"), x509.RFC822Name("it@hospital.example")]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(KEY_USAGES), critical=False)
    return builder.sign(signs, hashes.SHA256())


@cache
def list_seeds() -> list[bytes]:
    return [_lists(), _lists() + _lists()]


@cache
def list_body_seeds() -> list[bytes]:
    return [x509.load_pem_x509_crl(_lists()).tbs_certlist_bytes]


@cache
def leaves() -> tuple[x509.Certificate, ...]:
    """Whose serial numbers are looked for in lists."""
    return tuple(parse_certificates(_north() + operator().certificate_pem, "it"))


@cache
def name_seeds() -> list[bytes]:
    fingerprints = (operator().fingerprint, "sha256:" + "ab" * 32)
    names = (FOREIGN, "CN=a\\,b+OU=\\23c,DC=x", "2.5.4.3=#0c0161", "west.hospital.example")
    return [text.encode() for text in (*names, *fingerprints)]
