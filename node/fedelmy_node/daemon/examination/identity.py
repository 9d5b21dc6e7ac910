"""Would others believe this site? Its key, its certificate and whom it believes."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from fedelmy_node.domain.findings import Finding
from fedelmy_node.domain.names import SiteName
from fedelmy_node.errors import FedelmyError, IdentityError
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import EXPIRY_WARNING_DAYS, parse_certificates
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.rules import TrustRules

__all__ = ["examine_files", "examine_identity", "open_identity"]

_SUBJECT: Final = "identity"
_INSTALL: Final = (
    "Install what the operator signed once more: `fedelmy-node identity install FILE` brings the CA with it."
)
_RENEW: Final = "Have the operator sign identity/request.csr again, then `fedelmy-node identity install FILE`."


def open_identity(directory: Path, rules: TrustRules) -> Identity | FedelmyError:
    """The identity, even one that others will not believe; or why there is none."""
    try:
        return keystore.look_at(directory, rules)
    except FedelmyError as error:
        return error


def examine_files(directory: Path, opened: Identity | FedelmyError, site: SiteName | None) -> Iterator[Finding]:
    """Everything about the identity in a directory."""
    if isinstance(opened, FedelmyError):
        found = Finding.of(opened, _SUBJECT, "key" if "key" in opened.message else "certificate")
        yield replace(found, fix=_INSTALL) if opened.code == "E-IDENTITY-UNTRUSTED" else found
        return
    yield from _permissions(directory, opened)
    yield from examine_identity(opened)
    if site not in (None, opened.subject.name):
        message = f"site {site} is configured, the certificate says {opened.subject.name}"
        yield Finding.of(IdentityError("E-IDENTITY-SITE", message), _SUBJECT, "name")


def examine_identity(identity: Identity, now: datetime | None = None) -> Iterator[Finding]:
    """What the certificate says, its dates, and the revocation lists."""
    now = now or datetime.now(UTC)
    leaf, flaw = parse_certificates(identity.certificate_pem, "certificate.pem")[0], identity.flaw
    if identity.subject.role != "site":
        error = IdentityError(
            "E-IDENTITY-ROLE", f"a node needs the certificate of a site, this is {identity.subject}'s"
        )
        yield Finding.of(error, _SUBJECT, "role")
    if flaw is not None and flaw.code != "E-IDENTITY-EXPIRED":
        yield Finding.of(flaw, _SUBJECT, "certificate")
    else:
        message = f"{identity.subject}, signed by {leaf.issuer.rfc4514_string()}, for server and client"
        yield Finding(subject=_SUBJECT, check="certificate", verdict="ok", message=message)
    yield _dates(leaf.not_valid_before_utc, leaf.not_valid_after_utc, now)
    yield from _lists(identity, now)


def _dates(begins: datetime, ends: datetime, now: datetime) -> Finding:
    facts = {"expires": ends.timestamp()}
    if begins <= now <= ends:
        days = (ends - now) / timedelta(days=1)
        message = f"valid until {ends:%Y-%m-%d}, {days:.0f} more days"
        if days > EXPIRY_WARNING_DAYS:
            return Finding(subject=_SUBJECT, check="dates", verdict="ok", message=message, facts=facts)
        return Finding(
            subject=_SUBJECT, check="dates", verdict="warning", message=message, code="E-IDENTITY-EXPIRED", fix=_RENEW,
            facts=facts,
        )  # fmt: skip
    when = f"begins on {begins:%Y-%m-%d %H:%M}" if now < begins else f"expired on {ends:%Y-%m-%d %H:%M}"
    message = f"the certificate {when} UTC; this machine's clock says {now:%Y-%m-%d %H:%M}"
    fix = f"If the clock is wrong, correct it (`timedatectl set-ntp true`). Else: {_RENEW}"
    return Finding(
        subject=_SUBJECT, check="dates", verdict="failure", message=message, code="E-IDENTITY-EXPIRED", fix=fix,
        facts=facts,
    )  # fmt: skip


def _lists(identity: Identity, now: datetime) -> Iterator[Finding]:
    for one in identity.trust.lists:
        if one.is_stale(now):
            error = IdentityError("E-IDENTITY-LIST", f"revocation list {one.number} is out of date")
            yield Finding.of(error, _SUBJECT, "revocation", "warning")
        else:
            message = f"list {one.number} is in force, this certificate is not on it"
            if identity.flaw is not None and identity.flaw.code == "E-IDENTITY-REVOKED":
                message = f"list {one.number} is in force"
            yield Finding(subject=_SUBJECT, check="revocation", verdict="ok", message=message)
    if not identity.trust.lists:
        message = "the CA has revoked nothing, as far as is known here"
        yield Finding(subject=_SUBJECT, check="revocation", verdict="ok", message=message)


def _permissions(directory: Path, identity: Identity) -> Iterator[Finding]:
    """That others cannot read the key is a condition of opening it; here are the directories around it."""
    for place in (directory, directory.parent):
        mode = stat.S_IMODE(place.stat().st_mode)
        if mode & 0o077:
            yield Finding(
                subject=_SUBJECT, check="files", verdict="warning", message="other users can look into its directory",
                code="E-IDENTITY-FILE", fix=f"Run `chmod 700 {place}`; `fedelmy-node serve` does so, too.",
                private=f"{place}, mode {mode:04o}",
            )  # fmt: skip
    message = f"ECDSA P-256, fingerprint {identity.fingerprint}, only this user can read it"
    yield Finding(subject=_SUBJECT, check="key", verdict="ok", message=message)
