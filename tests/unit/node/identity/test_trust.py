"""Whom an identity believes: CAs with intermediates, foreign names, pins, and what was revoked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.errors import ConfigError, IdentityError
from fedelmy_node.domain.subject import NameRule, Subject, TrustRules, fingerprint_text
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import parse_certificates, tls_name
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.signatures import Purpose, sign, verify
from fedelmy_node.identity.trust import Trust
from tests.support.hospital import Hospital

SOUTH = Subject.of("south", "site")
ALICE = Subject.of("alice", "operator")
Join = Callable[..., Identity]


def chain(identity: Identity) -> list[x509.Certificate]:
    return list(parse_certificates(identity.certificate_pem, "test"))


def named(*rules: NameRule) -> TrustRules:
    return TrustRules(names=rules)


@pytest.fixture
def join(hospital: Hospital, tmp_path: Path) -> Join:
    """Somebody with a certificate of the hospital's CA."""

    def make(whom: Subject, **names: object) -> Identity:
        home = tmp_path / f"{whom.role}-{whom.name}-{len(list(tmp_path.iterdir()))}"
        keystore.init(home, whom.name, whom.role)
        return keystore.install(
            home, hospital.certify(home / "request.csr", **names), hospital.root_file
        )  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    "rule",
    [
        NameRule(subject=SOUTH, san="fl.South.example"),
        NameRule(subject=SOUTH, distinguished="CN=node1,O=South Hospital,C=DE"),
    ],
    ids=["san", "subject"],
)
def test_a_foreign_name_is_mapped(join: Join, rule: NameRule) -> None:
    south = join(SOUTH, sans=("other.example", "fl.south.example"))
    assert replace(south.trust, rules=named(rule)).verify(chain(south)) == SOUTH


def test_what_is_not_mapped_is_refused_and_shown(join: Join) -> None:
    south = join(SOUTH, sans=("fl.south.example",))
    with pytest.raises(
        IdentityError, match=r"E-IDENTITY-UNTRUSTED.*CN=node1,O=South Hospital.*fl.south.example"
    ) as raised:
        south.trust.verify(chain(south))
    assert "identity.names" in raised.value.hint


@pytest.mark.parametrize("san", ["", "*.south.example", "fl.south.example.evil.example", "node1"])
def test_other_names_do_not_fit(join: Join, san: str) -> None:
    rules = named(
        NameRule(subject=SOUTH, san="fl.south.example"),
        NameRule(subject=ALICE, distinguished="CN=node1,O=South Hospital"),
    )
    posing = join(SOUTH, sans=(san,))
    with pytest.raises(IdentityError, match="E-IDENTITY-UNTRUSTED"):
        replace(posing.trust, rules=rules).verify(chain(posing))


def test_a_ca_that_keeps_our_name_needs_no_mapping(join: Join) -> None:
    assert (
        Trust(join(SOUTH).ca_pem).verify(chain(join(SOUTH, sans=("south.site.fedelmy",)))) == SOUTH
    )


def test_a_name_that_is_mapped_is_known_by_nothing_else(
    join: Join, identities: Mapping[str, Identity]
) -> None:
    """Whoever gets our form of the name from one of the CAs is not the one whom the site mapped."""
    rules = named(NameRule(subject=SOUTH, san="fl.south.example"))
    with pytest.raises(IdentityError, match=r"E-IDENTITY-UNTRUSTED.*another name"):
        replace(identities["north"].trust, rules=rules).verify(chain(identities["south"]))


def test_a_certificate_cannot_be_two(join: Join) -> None:
    both = join(SOUTH, sans=("a.example", "b.example"))
    rules = named(
        NameRule(subject=SOUTH, san="a.example"), NameRule(subject=ALICE, san="b.example")
    )
    with pytest.raises(IdentityError, match="operator/alice and site/south"):
        replace(both.trust, rules=rules).verify(chain(both))


def test_rules_must_make_sense() -> None:
    for make in (
        lambda: NameRule(subject=SOUTH),
        lambda: NameRule(subject=SOUTH, san="a", distinguished="CN=a"),
        lambda: NameRule(subject=SOUTH, san=""),
        lambda: named(NameRule(subject=SOUTH, san="a"), NameRule(subject=ALICE, san="a")),
        lambda: fingerprint_text("5F3A-90C1"),
    ):
        with pytest.raises(ConfigError, match="E-CONFIG-VALUE"):
            make()
    assert fingerprint_text(" 5f3a-90c1-77de-0b42-a9e6 ") == "5F3A-90C1-77DE-0B42-A9E6"


@pytest.mark.parametrize(
    ("usages", "missing"),
    [
        ((ExtendedKeyUsageOID.SERVER_AUTH,), "clientAuth"),
        ((ExtendedKeyUsageOID.CLIENT_AUTH,), "serverAuth"),
        ((), "serverAuth.*clientAuth"),
    ],
)
def test_the_missing_key_usage_is_named(
    join: Join, usages: tuple[x509.ObjectIdentifier, ...], missing: str
) -> None:
    with pytest.raises(IdentityError, match=rf"E-IDENTITY-FILE.*does not allow.*{missing}"):
        join(SOUTH, sans=("fl.south.example",), usages=usages)


def test_an_intermediate_is_needed(join: Join) -> None:
    south = join(SOUTH, sans=("south.site.fedelmy",))
    with pytest.raises(IdentityError, match="E-IDENTITY-UNTRUSTED"):
        south.trust.verify(chain(south)[:1])


def _child_of(identity: Identity) -> x509.Certificate:
    """A certificate that a site signed with its own key, as if it were a CA."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_pem_private_key(identity.key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    parent, now = chain(identity)[0], datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(
            issuer_name=parent.subject,
            subject_name=parent.subject,
            public_key=key.public_key(),
            serial_number=7,
        )
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.DNSName("evil.operator.fedelmy")]), critical=False
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256())


def test_a_site_cannot_sign_for_others(
    identities: Mapping[str, Identity], forge: Callable[..., Identity]
) -> None:
    """Neither with a certificate that says it is no CA, nor with one that says nothing of it."""
    for site in (identities["north"], forge()):
        with pytest.raises(IdentityError, match="E-IDENTITY-UNTRUSTED"):
            identities["south"].trust.verify([_child_of(site), *chain(site)])


def test_a_hospitals_operator_signs_offline(join: Join) -> None:
    alice = join(ALICE, sans=("alice.example",))
    trust = replace(alice.trust, rules=named(NameRule(subject=ALICE, san="alice.example")))
    signature = sign(alice, b"plan", purpose=Purpose.PLAN)
    assert verify(b"plan", signature, trust, purpose=Purpose.PLAN) == ALICE
    with pytest.raises(IdentityError, match="E-IDENTITY-UNTRUSTED"):
        verify(b"plan", signature, alice.trust, purpose=Purpose.PLAN)


def test_pins_hold_for_whoever_has_the_name(
    identities: Mapping[str, Identity], forge: Callable[..., Identity]
) -> None:
    south = identities["south"]
    full = "sha256:" + south.fingerprint.replace("-", "").lower()
    for pin in (south.fingerprint, None):
        pins = {SOUTH: pin} if pin else {}
        assert replace(south.trust, rules=TrustRules(pins=pins)).verify(chain(south)) == SOUTH
    pinned = replace(south.trust, rules=TrustRules(pins={SOUTH: south.fingerprint}))
    with pytest.raises(IdentityError, match=rf"E-IDENTITY-PIN.*site/south.*{south.fingerprint}"):
        pinned.verify(chain(forge("south.site.fedelmy")))
    assert pinned.verify(chain(identities["north"])) == identities["north"].subject
    with pytest.raises(IdentityError, match="E-IDENTITY-PIN"):
        replace(pinned, rules=TrustRules(pins={SOUTH: full})).verify(chain(south))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"sans": ("fl.south.example", "b.example")}, "fl.south.example"),
        ({"sans": ("*.south.example",)}, "any.south.example"),
        ({"subject": "CN=node1,C=DE"}, "node1"),
    ],
)
def test_a_channel_finds_a_name_in_the_certificate(
    join: Join, names: dict[str, object], expected: str
) -> None:
    assert tls_name(chain(join(SOUTH, **names))[0]) == expected


def test_without_any_name_a_channel_cannot_be_made(join: Join) -> None:
    with pytest.raises(IdentityError, match="no name that TLS can verify"):
        tls_name(chain(join(SOUTH, subject="O=South Hospital"))[0])


def test_our_own_name_is_the_one_we_asked_for(join: Join) -> None:
    assert join(SOUTH, sans=("fl.south.example",)).subject == SOUTH


def test_dates_are_looked_at_every_time(identities: Mapping[str, Identity]) -> None:
    """What is remembered of a chain does not outlive it."""
    north = identities["north"]
    trust = Trust(north.ca_pem)
    assert trust.verify(chain(north)) == trust.verify(chain(north)) == north.subject
    with pytest.raises(IdentityError, match=r"E-IDENTITY-EXPIRED.*site/north"):
        trust.verify(chain(north), north.not_after + timedelta(seconds=1))


# --- revocation
# -------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_ca(tmp_path: Path) -> Path:
    authority.init(tmp_path / "ca", "alice")
    return tmp_path / "ca"


@pytest.fixture
def home(own_ca: Path, tmp_path: Path) -> Path:
    """The identity of site south, in a federation of its own."""
    directory = tmp_path / "south"
    keystore.init(directory, "south", "site")
    keystore.install(
        directory, authority.sign(own_ca, directory / "request.csr", tmp_path / "south.pem").path
    )
    return directory


def take(home: Path, file: Path) -> tuple[int, ...]:
    return tuple(one.number for one in keystore.install_lists(home, file.read_bytes(), file.name))


def test_what_was_revoked_is_not_believed(own_ca: Path, home: Path) -> None:
    alice = keystore.load(own_ca / "operator")
    south = keystore.load(home)
    signature = sign(alice, b"plan", purpose=Purpose.PLAN)
    assert verify(b"plan", signature, south.trust, purpose=Purpose.PLAN) == alice.subject
    revoked = authority.revoke(own_ca, "alice", role="operator", reason="key-compromise")
    assert take(home, revoked.path) == (1,)
    now_trusted = keystore.load(home).trust
    with pytest.raises(IdentityError, match=r"E-IDENTITY-REVOKED.*operator/alice"):
        verify(b"plan", signature, now_trusted, purpose=Purpose.PLAN)
    assert now_trusted.verify(chain(south)) == SOUTH
    with pytest.raises(IdentityError, match="E-IDENTITY-REVOKED"):
        keystore.load(own_ca / "operator")


def test_lists_of_others_and_older_ones_are_refused(
    own_ca: Path, home: Path, tmp_path: Path
) -> None:
    authority.init(tmp_path / "other")
    foreign = authority.revoke(tmp_path / "other", "operator", role="operator").path
    with pytest.raises(IdentityError, match=r"E-IDENTITY-LIST.*not signed"):
        take(home, foreign)
    first = authority.revoke(own_ca, "alice", role="operator").path.read_bytes()
    (tmp_path / "first.pem").write_bytes(first)
    second = authority.revoke(own_ca, "south").path
    assert take(home, second) == (2,)
    before = (home / "revoked.pem").read_bytes()
    with pytest.raises(IdentityError, match=r"E-IDENTITY-LIST.*list 1.*list 2"):
        take(home, tmp_path / "first.pem")
    assert (home / "revoked.pem").read_bytes() == before
    assert take(home, second) == (2,), "the same list again is harmless"


def test_a_forged_or_damaged_list_is_refused(own_ca: Path, home: Path, tmp_path: Path) -> None:
    good = authority.revoke(own_ca, "alice", role="operator").path.read_text()
    lines = good.splitlines()
    lines[3] = lines[3][::-1]
    for number, text in enumerate((good[: len(good) // 2], "\n".join(lines) + "\n")):
        file = tmp_path / f"bad-{number}.pem"
        file.write_text(text)
        with pytest.raises(IdentityError, match=r"E-IDENTITY-(FILE|LIST)"):
            take(home, file)
    assert not (home / "revoked.pem").exists()


def test_a_list_on_disk_that_was_changed_is_not_used(
    own_ca: Path, home: Path, tmp_path: Path
) -> None:
    authority.init(tmp_path / "other")
    (home / "revoked.pem").write_bytes(
        authority.revoke(tmp_path / "other", "operator", role="operator").path.read_bytes()
    )
    with pytest.raises(IdentityError, match="E-IDENTITY-LIST"):
        keystore.load(home)


def test_lists_of_a_hospital_come_from_its_intermediate(
    join: Join, hospital: Hospital, tmp_path: Path
) -> None:
    south, alice = (
        join(SOUTH, sans=("south.site.fedelmy",)),
        join(ALICE, sans=("alice.operator.fedelmy",)),
    )
    home = next(path for path in tmp_path.iterdir() if path.name.startswith("site-south"))
    assert take(home, hospital.revoke(chain(alice)[0], number=2**70)) == (2**70,)
    trust = keystore.load(home).trust
    with pytest.raises(IdentityError, match=r"E-IDENTITY-REVOKED.*operator/alice"):
        trust.verify(chain(alice))
    assert trust.verify(chain(south)) == SOUTH


def test_a_stale_list_still_counts_and_is_spoken_of(
    join: Join, hospital: Hospital, tmp_path: Path
) -> None:
    alice = join(ALICE, sans=("alice.operator.fedelmy",))
    join(SOUTH, sans=("south.site.fedelmy",))
    home = next(path for path in tmp_path.iterdir() if path.name.startswith("site-south"))
    take(home, hospital.revoke(chain(alice)[0], number=5, days=-1))
    south = keystore.load(home)
    assert any("is outdated" in warning for warning in south.warnings())
    with pytest.raises(IdentityError, match="E-IDENTITY-REVOKED"):
        south.trust.verify(chain(alice))


def test_expiry_is_warned_of_in_the_last_month(identities: Mapping[str, Identity]) -> None:
    north = identities["north"]
    assert north.warnings(north.not_after - timedelta(days=31)) == ()
    (soon,) = north.warnings(north.not_after - timedelta(days=12))
    assert "site/north expires in 12 days" in soon
    (late,) = north.warnings(north.not_after + timedelta(days=1))
    assert "expired" in late
