"""Whom an identity believes at this moment: its CAs, what they revoked, foreign names, and pinned keys.

`Trust.verify` is the one place that says whom a certificate names and whether it may be believed now. Servers ask
it about callers, diallers about whom they met, and everybody about who signed a plan.
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

from fedelmy_node.errors import ConfigError, IdentityError
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
from fedelmy_node.identity.rules import NameRule, TrustRules
from fedelmy_node.identity.subject import Subject

if TYPE_CHECKING:
    from fedelmy_node.identity.revocation import RevocationList

__all__ = ["Trust", "CHAIN_CERTIFICATES"]

CHAIN_CERTIFICATES: Final = 8
"""A leaf with its intermediates; longer ones are not looked at."""
_REMEMBERED: Final = 256
"""Chains that need not be judged again; more callers than a federation has."""

Certificates = tuple[x509.Certificate, ...]
"""A leaf and what leads from it to a CA; or CAs."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Immutable, as long as its files are: rotation and revocation make a new one, which remembers nothing."""

    ca_pem: bytes = field(repr=False)
    """The CAs that are trusted, one or several."""
    lists_pem: bytes = field(default=b"", repr=False)
    """Their revocation lists."""
    rules: TrustRules = field(default_factory=TrustRules)
    """The site's own word about names and keys."""
    intermediates: Certificates = field(default=(), repr=False, compare=False)
    """Of our own certificate: they may sign lists, too."""
    lists: tuple[RevocationList, ...] = field(init=False, repr=False, compare=False)
    _roots: Certificates = field(init=False, repr=False, compare=False)
    _names: tuple[tuple[NameRule, x509.Name | None], ...] = field(init=False, repr=False, compare=False)
    _known: dict[Certificates, tuple[Certificates, Subject]] = field(init=False, repr=False, compare=False)

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
        self, chain: Sequence[x509.Certificate], now: datetime | None = None, *, unnamed: Subject | None = None
    ) -> Subject:
        """Whom the leaf of a chain names; the first flaw is raised.

        Signatures come first: what an untrusted certificate says of itself is worth nothing. `unnamed` is
        for one's own certificate alone: whom it means if nothing in it is a name of the federation.
        """
        now = now or datetime.now(UTC)
        known = self._known.get(tuple(chain)) if unnamed is None else None
        path, subject = known or self._judge(tuple(chain), now, unnamed)
        check_dates(path[0], str(subject), now)
        for number, certificate in enumerate(path[1:], 2):
            check_dates(certificate, "the federation's CA" if number == len(path) else f"the CA of {subject}", now)
        return subject

    def verify_once(self, chain: Sequence[x509.Certificate]) -> Subject:
        """Whom the leaf of a chain has named at some time, by the CAs that are trusted now.

        Dates, revocations and pins were looked at when it was accepted. A chain that has ever been valid was so at the
        moment when the last of its certificates began.
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
        """Whom our own certificate names, even if it may not be believed any more."""
        return self._subject(chain[0], unnamed)

    def offered(self, pem: bytes, origin: str) -> tuple[tuple[RevocationList, ...], tuple[RevocationList, ...]]:
        """The lists in a text that a trusted CA signed, and all that are in force once they were taken in."""
        from fedelmy_node.identity.revocation import newest

        lists = _parse_lists(pem, origin)
        for one in lists:
            one.check_signature(self._authorities)
        return lists, newest(self.lists, lists)

    def number(self, issuer: x509.Name) -> int:
        """Of the list of this authority; 0: there is none."""
        return next((one.number for one in self.lists if one.issuer == issuer), 0)

    def _judge(self, chain: Certificates, now: datetime, unnamed: Subject | None) -> tuple[Certificates, Subject]:
        """Everything about a chain that does not change with time; for others than ourselves, it is remembered."""
        if not 1 <= len(chain) <= CHAIN_CERTIFICATES:
            raise IdentityError(
                "E-IDENTITY-UNTRUSTED", f"a chain has 1 to {CHAIN_CERTIFICATES} certificates, not {len(chain)}"
            )
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
        """The path to a CA of ours whose signatures are right."""
        builder = verification.PolicyBuilder().store(verification.Store(list(self._roots))).time(now)
        builder = builder.extension_policies(ca_policy=_authorities_only(), ee_policy=_anything())
        try:
            return tuple(builder.build_client_verifier().verify(chain[0], list(chain[1:])).chain)
        except (verification.VerificationError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            self._blame_dates(chain, now)
            message = "the certificate was not signed by this federation's CA"
            raise IdentityError("E-IDENTITY-UNTRUSTED", message) from error

    def _blame_dates(self, chain: Certificates, now: datetime) -> None:
        """Of a chain that is refused anyway: is it only too old or too new? Then that is what its holder must know."""
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
            if (rule.san is not None and rule.san.lower() in names) or (whole is not None and whole == leaf.subject)
        }
        if len(found) > 1:
            raise IdentityError(
                "E-IDENTITY-FILE", f"the certificate has names of {' and '.join(sorted(map(str, found)))}"
            )
        if found:
            return next(iter(found))
        try:
            subject = read_subject(leaf)
        except IdentityError as error:
            if unnamed is not None:
                return unnamed
            shown = f"subject {leaf.subject.rfc4514_string()!r}, DNS names {', '.join(sorted(names)) or 'none'}"
            raise IdentityError("E-IDENTITY-UNTRUSTED", f"{error.message} ({shown})", hint=_HINT) from error
        if any(rule.subject == subject for rule, _ in self._names):
            raise IdentityError("E-IDENTITY-UNTRUSTED", f"{subject} is known by another name here", hint=_HINT)
        return subject

    def _check_revocation(self, path: Certificates, subject: Subject) -> None:
        for certificate in path[:-1]:
            for one in self.lists:
                since = one.revoked_at(certificate)
                if since is not None:
                    whose = f"{subject}" if certificate is path[0] else f"the CA of {subject}"
                    raise IdentityError(
                        "E-IDENTITY-REVOKED", f"the certificate of {whose} was revoked on {since:%Y-%m-%d %H:%M} UTC"
                    )

    def _check_pin(self, leaf: x509.Certificate, subject: Subject) -> None:
        pin, key = self.rules.pins.get(subject), public_key(leaf)
        if pin is not None and pin not in (fingerprint(key), full_fingerprint(key)):
            raise IdentityError(
                "E-IDENTITY-PIN", f"the key of {subject} has the fingerprint {fingerprint(key)}, {pin} was pinned"
            )


_HINT: Final = (
    "If its CA chose other names, map them to the site or operator: [[identity.names]] in site.toml, "
    "`certificate` under [[sites]] in federation.toml."
)


def _parse_lists(pem: bytes, origin: str) -> tuple[RevocationList, ...]:
    from fedelmy_node.identity.revocation import parse_lists  # an idle daemon is small, and most have no list

    return parse_lists(pem, origin)


def _distinguished(rule: NameRule) -> x509.Name | None:
    if rule.distinguished is None:
        return None
    try:
        return x509.Name.from_rfc4514_string(rule.distinguished)
    except ValueError as error:
        raise ConfigError(
            "E-CONFIG-VALUE",
            f"{rule.distinguished[:200]!r} is not a subject as RFC 4514 writes it",
            hint="Write it as `openssl x509 -noout -subject -nameopt RFC2253 -in FILE` prints it.",
        ) from error


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _shown(certificate: x509.Certificate) -> str:
    """How a certificate is spoken of whose holder is not believed."""
    try:
        return str(read_subject(certificate))
    except IdentityError:
        return repr(certificate.subject.rfc4514_string())


def _anything() -> verification.ExtensionPolicy:
    """Hospital CAs do not follow the rules for certificates of web sites; `check_form` says what we need."""
    return verification.ExtensionPolicy.permit_all()


def _authorities_only() -> verification.ExtensionPolicy:
    policy = verification.ExtensionPolicy.permit_all()
    policy = policy.require_present(x509.BasicConstraints, verification.Criticality.AGNOSTIC, _must_be_authority)
    return policy.may_be_present(x509.KeyUsage, verification.Criticality.AGNOSTIC, _must_sign_certificates)


def _must_be_authority(_: object, __: x509.Certificate, constraints: x509.BasicConstraints) -> None:
    if not constraints.ca:
        raise ValueError("not a CA")


def _must_sign_certificates(_: object, __: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("may not sign certificates")
