"""Checks of this site's key, its certificate and its trust."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from fedelmy_node.domain.errors import FedelmyError, IdentityError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import Finding
from fedelmy_node.domain.subject import TrustRules
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import EXPIRY_WARNING_DAYS, parse_certificates
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.ops.doctor.findings import ok, problem

_SUBJECT: Final = "identity"
_INSTALL: Final = (
    "Install the signed file from the operator again: `fedelmy-node identity install FILE`"
    " includes the CA."
)
_RENEW: Final = (
    "Have the operator sign identity/request.csr again, then `fedelmy-node identity install FILE`."
)


def open_identity(directory: Path, rules: TrustRules) -> Identity | FedelmyError:
    """Return the identity, even one that others will refuse, or why there is none."""
    try:
        return keystore.load_unchecked(directory, rules)
    except FedelmyError as error:
        return error


def examine_files(
    directory: Path, opened: Identity | FedelmyError, site: SiteName | None
) -> Iterator[Finding]:
    """Check everything about the identity in a directory."""
    if isinstance(opened, FedelmyError):
        found = Finding.of(opened, _SUBJECT, "key" if "key" in opened.message else "certificate")
        yield replace(found, fix=_INSTALL) if opened.code == "E-IDENTITY-UNTRUSTED" else found
        return
    yield from _permissions(directory, opened)
    yield from examine_identity(opened)
    if site not in (None, opened.subject.name):
        message = f"site {site} is configured, but the certificate is for {opened.subject.name}"
        yield Finding.of(IdentityError("E-IDENTITY-SITE", message), _SUBJECT, "name")


def examine_identity(identity: Identity, now: datetime | None = None) -> Iterator[Finding]:
    """Check the certificate, its dates and the revocation lists."""
    now = now or datetime.now(UTC)
    leaf, flaw = parse_certificates(identity.certificate_pem, "certificate.pem")[0], identity.flaw
    if identity.subject.role != "site":
        message = f"a node needs a site's certificate, but this one is for {identity.subject}"
        yield Finding.of(IdentityError("E-IDENTITY-ROLE", message), _SUBJECT, "role")
    if flaw is not None and flaw.code != "E-IDENTITY-EXPIRED":
        yield Finding.of(flaw, _SUBJECT, "certificate")
    else:
        issuer = leaf.issuer.rfc4514_string()
        message = f"{identity.subject}, signed by {issuer}, for server and client"
        yield ok(_SUBJECT, "certificate", message)
    yield _dates(leaf.not_valid_before_utc, leaf.not_valid_after_utc, now)
    yield from _lists(identity, now)


def _dates(begins: datetime, ends: datetime, now: datetime) -> Finding:
    code, facts = "E-IDENTITY-EXPIRED", {"expires": ends.timestamp()}
    if begins <= now <= ends:
        days = (ends - now) / timedelta(days=1)
        message = f"valid until {ends:%Y-%m-%d}, {days:.0f} more days"
        if days > EXPIRY_WARNING_DAYS:
            return ok(_SUBJECT, "dates", message, facts)
        return problem(_SUBJECT, "dates", code, message, _RENEW, facts=facts)
    early = now < begins
    when = (
        f"is not valid before {begins:%Y-%m-%d %H:%M}"
        if early
        else f"expired on {ends:%Y-%m-%d %H:%M}"
    )
    message = f"the certificate {when} UTC; this machine's clock says {now:%Y-%m-%d %H:%M}"
    fix = f"If the clock is wrong, correct it (`timedatectl set-ntp true`). Otherwise: {_RENEW}"
    return problem(_SUBJECT, "dates", code, message, fix, facts=facts, verdict="failure")


def _lists(identity: Identity, now: datetime) -> Iterator[Finding]:
    revoked = identity.flaw is not None and identity.flaw.code == "E-IDENTITY-REVOKED"
    for one in identity.trust.lists:
        if one.is_stale(now):
            error = IdentityError("E-IDENTITY-LIST", f"revocation list {one.number} is out of date")
            yield Finding.of(error, _SUBJECT, "revocation", "warning")
        else:
            clean = "" if revoked else "; this certificate is not on it"
            yield ok(_SUBJECT, "revocation", f"list {one.number} is in force{clean}")
    if not identity.trust.lists:
        yield ok(_SUBJECT, "revocation", "no revocation list is installed")


def _permissions(directory: Path, identity: Identity) -> Iterator[Finding]:
    """Check the directories around the key; a key that others can read is not opened at all."""
    for place in (directory, directory.parent):
        mode = stat.S_IMODE(place.stat().st_mode)
        if mode & 0o077:
            message = "other users can list the identity directory"
            fix = f"Run `chmod 700 {place}`; `fedelmy-node serve` does so as well."
            private = f"{place}, mode {mode:04o}"
            yield problem(_SUBJECT, "files", "E-IDENTITY-FILE", message, fix, private=private)
    message = f"ECDSA P-256, fingerprint {identity.fingerprint}, only this user can read it"
    yield ok(_SUBJECT, "key", message)
