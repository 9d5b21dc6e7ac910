"""Verification of certificates: CAs, revocation lists, mapped names and pinned keys.

`Trust.verify` decides alone whom a certificate names and whether it is valid now: for callers of a
server, for the servers that a client connects to, and for the signers of plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509 import verification

from fedelmy_node.domain.errors import ConfigError, IdentityError
from fedelmy_node.domain.subject import NameRule, Subject, TrustRules
from fedelmy_node.identity.certificates import (
    check_authority,
    check_dates,
    check_form,
    dns_names,
    fingerprint,
    full_fingerprint,
    parse_certificates,
    public_key,
    read_subject,
)

if TYPE_CHECKING:
    from fedelmy_node.identity.revocation_list import RevocationList


CHAIN_CERTIFICATES: Final = 8
"""Limit of a leaf with its intermediates."""
_REMEMBERED: Final = 256
"""Verified chains to remember: more than a federation has callers."""

Certificates = tuple[x509.Certificate, ...]


@dataclass(frozen=True, slots=True)
class Trust:
    """The trusted CAs with their lists and rules; replaced whenever the files change."""

    ca_pem: bytes = field(repr=False)
    lists_pem: bytes = field(default=b"", repr=False)
    """Revocation lists of the CAs."""
    rules: TrustRules = field(default_factory=TrustRules)
    """The site's own rules about names and keys."""
    intermediates: Certificates = field(default=(), repr=False, compare=False)
    """Those of our own certificate, which may sign revocation lists as well."""
    lists: tuple[RevocationList, ...] = field(init=False, repr=False, compare=False)
    _roots: Certificates = field(init=False, repr=False, compare=False)
    _names: tuple[tuple[NameRule, x509.Name | None], ...] = field(
        init=False, repr=False, compare=False
    )
    _known: dict[Certificates, tuple[Certificates, Subject]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        roots = tuple(parse_certificates(self.ca_pem, "ca.pem"))
        for root in roots:
            check_authority(root)
        lists = _parse_lists(self.lists_pem, "the revocation list") if self.lists_pem else ()
        names = tuple((rule, _distinguished(rule)) for rule in self.rules.names)
        for name, value in (("_roots", roots), ("lists", lists), ("_names", names), ("_known", {})):
            object.__setattr__(self, name, value)
        for one in lists:
            one.check_signature(self._authorities)

    @property
    def _authorities(self) -> Certificates:
        return self._roots + self.intermediates

    def verify(
        self,
        chain: Sequence[x509.Certificate],
        now: datetime | None = None,
        *,
        unnamed: Subject | None = None,
    ) -> Subject:
        """Return the subject of a chain's leaf; raise the first problem found.

        Signatures are checked first: the content of an untrusted certificate means nothing.
        `unnamed` is only for our own certificate: its subject if it has no federation name.
        """
        now = now or datetime.now(UTC)
        known = self._known.get(tuple(chain)) if unnamed is None else None
        path, subject = known or self._judge(tuple(chain), now, unnamed)
        check_dates(path[0], str(subject), now)
        for number, certificate in enumerate(path[1:], 2):
            root = number == len(path)
            check_dates(certificate, "the federation's CA" if root else f"the CA of {subject}", now)
        return subject

    def verify_once(self, chain: Sequence[x509.Certificate]) -> Subject:
        """Return the subject of a chain that was valid at some time, for the current CAs.

        Dates, revocations and pins were checked on acceptance. A chain that was ever valid was
        valid when the last of its certificates became valid.
        """
        moments = {certificate.not_valid_before_utc for certificate in (*chain, *self._roots)}
        for moment in sorted(moments, reverse=True):
            with suppress(IdentityError):
                leaf = self._verified(tuple(chain[:CHAIN_CERTIFICATES]), moment)[0]
                check_form(leaf)
                return self._subject(leaf, None)
        message = "the certificate was not signed by a CA that this site trusts"
        raise IdentityError("E-IDENTITY-UNTRUSTED", message)

    def holder(self, chain: Sequence[x509.Certificate], unnamed: Subject | None) -> Subject:
        """Return the subject of our own certificate, valid or not."""
        return self._subject(chain[0], unnamed)

    def offered(
        self, pem: bytes, origin: str
    ) -> tuple[tuple[RevocationList, ...], tuple[RevocationList, ...]]:
        """Parse and verify revocation lists; return them, and all current lists including them."""
        from fedelmy_node.identity.revocation_list import newest

        lists = _parse_lists(pem, origin)
        for one in lists:
            one.check_signature(self._authorities)
        return lists, newest(self.lists, lists)

    def number(self, issuer: x509.Name) -> int:
        """Return the number of this CA's list; 0 if there is none."""
        return next((one.number for one in self.lists if one.issuer == issuer), 0)

    def _judge(
        self, chain: Certificates, now: datetime, unnamed: Subject | None
    ) -> tuple[Certificates, Subject]:
        """Check everything but dates; remember the result for certificates of others."""
        if not 1 <= len(chain) <= CHAIN_CERTIFICATES:
            message = f"a chain has 1 to {CHAIN_CERTIFICATES} certificates, not {len(chain)}"
            raise IdentityError("E-IDENTITY-UNTRUSTED", message)
        path = self._verified(chain, now)
        check_form(path[0])
        subject = self._subject(path[0], unnamed)
        self._check_revocation(path, subject)
        self._check_pin(path[0], subject)
        if unnamed is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[chain] = path, subject
        return path, subject

    def _verified(self, chain: Certificates, now: datetime) -> Certificates:
        """Return the path from the leaf to one of our CAs."""
        builder = verification.PolicyBuilder().store(verification.Store(list(self._roots)))
        # Hospital CAs do not follow the rules for web sites; `check_form` checks what we need.
        anything = verification.ExtensionPolicy.permit_all()
        builder = builder.extension_policies(ca_policy=_ca_policy(), ee_policy=anything)
        try:
            verifier = builder.time(now).build_client_verifier()
            return tuple(verifier.verify(chain[0], list(chain[1:])).chain)
        except (verification.VerificationError, *_INVALID) as error:
            self._blame_dates(chain, now)
            message = "the certificate was not signed by this federation's CA"
            raise IdentityError("E-IDENTITY-UNTRUSTED", message) from error

    def _blame_dates(self, chain: Certificates, now: datetime) -> None:
        """Report the dates as the cause if they are the only problem of a refused chain."""
        known = chain[1:] + self._roots
        for certificate in chain:
            if not any(_issued(certificate, issuer) for issuer in known):
                return
        for certificate in (*chain, *(root for root in self._roots if _issued(chain[-1], root))):
            check_dates(certificate, _shown(certificate), now)

    def _subject(self, leaf: x509.Certificate, unnamed: Subject | None) -> Subject:
        names = {name.lower() for name in dns_names(leaf)}
        found = {
            rule.subject
            for rule, whole in self._names
            if (rule.san is not None and rule.san.lower() in names)
            or (whole is not None and whole == leaf.subject)
        }
        if len(found) > 1:
            message = f"the certificate has names of {' and '.join(sorted(map(str, found)))}"
            raise IdentityError("E-IDENTITY-FILE", message)
        if found:
            return next(iter(found))
        try:
            subject = read_subject(leaf)
        except IdentityError as error:
            if unnamed is not None:
                return unnamed
            holder, known = leaf.subject.rfc4514_string(), ", ".join(sorted(names)) or "none"
            message = f"{error.message} (subject {holder!r}, DNS names {known})"
            raise IdentityError("E-IDENTITY-UNTRUSTED", message, hint=_HINT) from error
        if any(rule.subject == subject for rule, _ in self._names):
            message = f"{subject} is mapped to another name here"
            raise IdentityError("E-IDENTITY-UNTRUSTED", message, hint=_HINT)
        return subject

    def _check_revocation(self, path: Certificates, subject: Subject) -> None:
        for certificate in path[:-1]:
            for one in self.lists:
                since = one.revoked_at(certificate)
                if since is not None:
                    whose = f"{subject}" if certificate is path[0] else f"the CA of {subject}"
                    when = f"{since:%Y-%m-%d %H:%M} UTC"
                    message = f"the certificate of {whose} was revoked on {when}"
                    raise IdentityError("E-IDENTITY-REVOKED", message)

    def _check_pin(self, leaf: x509.Certificate, subject: Subject) -> None:
        pin, key = self.rules.pins.get(subject), public_key(leaf)
        if pin is not None and pin not in (fingerprint(key), full_fingerprint(key)):
            message = (
                f"the key of {subject} has fingerprint {fingerprint(key)}, not {pin} as pinned"
            )
            raise IdentityError("E-IDENTITY-PIN", message)


_INVALID: Final = (ValueError, TypeError, UnsupportedAlgorithm)
_HINT: Final = (
    "If another CA chose its names, map them: [[identity.names]] in site.toml, or `certificate` "
    "under [[sites]] in federation.toml."
)


def _parse_lists(pem: bytes, origin: str) -> tuple[RevocationList, ...]:
    from fedelmy_node.identity.revocation_list import parse_lists  # most daemons have no list

    return parse_lists(pem, origin)


def _distinguished(rule: NameRule) -> x509.Name | None:
    if rule.distinguished is None:
        return None
    try:
        return x509.Name.from_rfc4514_string(rule.distinguished)
    except ValueError as error:
        message = f"{rule.distinguished[:200]!r} is not a distinguished name (RFC 4514)"
        hint = "Copy the output of `openssl x509 -noout -subject -nameopt RFC2253 -in FILE`."
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint) from error


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *_INVALID):
        return False
    return True


def _shown(certificate: x509.Certificate) -> str:
    """Describe an untrusted certificate."""
    try:
        return str(read_subject(certificate))
    except IdentityError:
        return repr(certificate.subject.rfc4514_string())


def _ca_policy() -> verification.ExtensionPolicy:
    policy, agnostic = verification.ExtensionPolicy.permit_all(), verification.Criticality.AGNOSTIC
    policy = policy.require_present(x509.BasicConstraints, agnostic, _must_be_authority)
    return policy.may_be_present(x509.KeyUsage, agnostic, _must_sign_certificates)


def _must_be_authority(_: object, __: x509.Certificate, constraints: x509.BasicConstraints) -> None:
    if not constraints.ca:
        raise ValueError("not a CA")


def _must_sign_certificates(_: object, __: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("may not sign certificates")
