"""What a certificate says, and which ones are not believed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.errors import ConfigError, IdentityError
from fedelmy_node.domain.subject import Subject
from fedelmy_node.identity.certificates import (
    check_authority,
    fingerprint,
    full_fingerprint,
    public_key,
    read_subject,
    subject_of_names,
)
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.trust import Trust

Forge = Callable[..., Identity]


def leaf(identity: Identity) -> x509.Certificate:
    return x509.load_pem_x509_certificate(identity.certificate_pem)


def test_name_and_role_survive_the_certificate(identities: Mapping[str, Identity]) -> None:
    for name, role in (("north", "site"), ("operator", "operator")):
        identity = identities[name]
        assert identity.trust.verify([leaf(identity)]) == Subject.of(name, role)


@given(
    name=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True),
    role=st.sampled_from(["site", "operator"]),
)
def test_every_valid_subject_survives_its_texts(name: str, role: str) -> None:
    subject = Subject.of(name, role)
    assert subject_of_names([subject.dns_name]) == subject
    assert Subject.parse(str(subject)) == subject


@pytest.mark.parametrize(
    "dns",
    [
        "north.fedelmy",
        "north.site",
        "north.site.fedelmy.example",
        "north.admin.fedelmy",
        "NORTH.site.fedelmy",
        "*.site.fedelmy",
        "-.site.fedelmy",
        ".site.fedelmy",
        "a.north.site.fedelmy",
    ],
)
def test_other_names_are_refused(dns: str, forge: Forge) -> None:
    with pytest.raises(IdentityError, match="E-IDENTITY-FILE"):
        read_subject(leaf(forge(dns)))


def test_bad_subjects_are_refused() -> None:
    for text in ("north", "admin/north", "site/North", "site/", "/"):
        with pytest.raises(ConfigError, match="E-CONFIG-VALUE"):
            Subject.parse(text)


@pytest.mark.parametrize(
    "flaw",
    [
        {"more_names": (x509.DNSName("north.site.fedelmy"),)},
        {"more_names": (x509.UniformResourceIdentifier("spiffe://fedelmy/site/north"),)},
        {"usages": (ExtendedKeyUsageOID.SERVER_AUTH,)},
        {"usages": (ExtendedKeyUsageOID.CLIENT_AUTH,)},
        {"curve": ec.SECP384R1()},
    ],
    ids=["two names", "a URI", "server only", "client only", "P-384"],
)
def test_other_forms_are_refused(flaw: dict[str, object], forge: Forge) -> None:
    identity = forge(**flaw)
    with pytest.raises(
        IdentityError,
        match=r"E-IDENTITY-(FILE|UNTRUSTED): (the key|the cert.*(allow|other than)|exactly one name)",
    ):
        identity.trust.verify([leaf(identity)])


def test_dates_count_on_both_sides(identities: Mapping[str, Identity]) -> None:
    north = identities["north"]
    for now in (datetime.now(UTC) - timedelta(hours=1), north.not_after + timedelta(seconds=1)):
        with pytest.raises(IdentityError, match=r"E-IDENTITY-EXPIRED.*site/north"):
            north.trust.verify([leaf(north)], now)
    north.trust.verify([leaf(north)], north.not_after)


def test_nothing_outlives_its_ca(forge: Forge) -> None:
    identity = forge(ends_days=5000)
    with pytest.raises(IdentityError, match=r"E-IDENTITY-EXPIRED.*FedELMY CA"):
        identity.trust.verify([leaf(identity)], datetime.now(UTC) + timedelta(days=4000))


def test_another_ca_is_not_believed(identities: Mapping[str, Identity], tmp_path: Path) -> None:
    authority.init(tmp_path / "other")
    other = Trust((tmp_path / "other" / "ca.pem").read_bytes())
    with pytest.raises(IdentityError, match="E-IDENTITY-UNTRUSTED"):
        other.verify([leaf(identities["north"])])


def test_a_site_cannot_play_the_ca(identities: Mapping[str, Identity]) -> None:
    with pytest.raises(IdentityError, match="E-IDENTITY-FILE"):
        check_authority(leaf(identities["north"]))


def test_fingerprints_are_of_the_key(identities: Mapping[str, Identity]) -> None:
    keys = [public_key(leaf(identity)) for identity in identities.values()]
    assert len({fingerprint(key) for key in keys}) == len(keys)
    for key in keys:
        short, full = fingerprint(key), full_fingerprint(key)
        assert re.fullmatch(r"([0-9A-F]{4}-){4}[0-9A-F]{4}", short)
        assert full.startswith("sha256:" + short.replace("-", "").lower())
