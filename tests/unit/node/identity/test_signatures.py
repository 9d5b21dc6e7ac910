"""Only an operator's signature counts, only on what was signed, and only for what it was signed
for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.errors import IdentityError
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.signatures import Purpose, check_fits, sign, verify, verify_accepted

PLAN = b'{"run":"r1"}'


def test_an_operator_signs(identities: Mapping[str, Identity]) -> None:
    signature = sign(identities["operator"], PLAN, purpose=Purpose.PLAN)
    assert (
        str(verify(PLAN, signature, identities["north"].trust, purpose=Purpose.PLAN))
        == "operator/operator"
    )


def test_a_plan_is_not_a_cancel(identities: Mapping[str, Identity]) -> None:
    signature = sign(identities["operator"], PLAN, purpose=Purpose.PLAN)
    for purpose in set(Purpose) - {Purpose.PLAN}:
        with pytest.raises(IdentityError, match="E-IDENTITY-SIGNATURE"):
            verify(PLAN, signature, identities["north"].trust, purpose=purpose)


def test_another_payload_is_refused(identities: Mapping[str, Identity]) -> None:
    signature = sign(identities["operator"], PLAN, purpose=Purpose.PLAN)
    for payload in (PLAN + b" ", b"", PLAN[:-1]):
        with pytest.raises(IdentityError, match="E-IDENTITY-SIGNATURE"):
            verify(payload, signature, identities["north"].trust, purpose=Purpose.PLAN)


@pytest.mark.parametrize("value", [b"", b"\x00" * 72, b"\xff" * 200])
def test_garbage_is_refused(identities: Mapping[str, Identity], value: bytes) -> None:
    signature = replace(sign(identities["operator"], PLAN, purpose=Purpose.PLAN), value=value)
    with pytest.raises(IdentityError, match="E-IDENTITY-SIGNATURE"):
        verify(PLAN, signature, identities["north"].trust, purpose=Purpose.PLAN)


def test_a_site_may_not_sign(identities: Mapping[str, Identity]) -> None:
    signature = sign(identities["south"], PLAN, purpose=Purpose.PLAN)
    with pytest.raises(IdentityError, match=r"E-IDENTITY-ROLE.*site/south"):
        verify(PLAN, signature, identities["north"].trust, purpose=Purpose.PLAN)


def test_another_certificate_does_not_fit(
    identities: Mapping[str, Identity], federation_ca: Path, tmp_path: Path
) -> None:
    keystore.init(tmp_path / "bob", "bob", "operator")
    signed = authority.sign(
        federation_ca, tmp_path / "bob" / "request.csr", tmp_path / "bob.pem", role="operator"
    )
    bob = keystore.install(tmp_path / "bob", signed.path)
    signature = replace(
        sign(identities["operator"], PLAN, purpose=Purpose.PLAN),
        certificate_pem=bob.certificate_pem,
    )
    with pytest.raises(IdentityError, match="E-IDENTITY-SIGNATURE"):
        verify(PLAN, signature, bob.trust, purpose=Purpose.PLAN)


def test_another_federations_operator_is_refused(
    identities: Mapping[str, Identity], tmp_path: Path
) -> None:
    authority.init(tmp_path / "other")
    stranger = keystore.load(tmp_path / "other" / "operator")
    signature = sign(stranger, PLAN, purpose=Purpose.PLAN)
    with pytest.raises(IdentityError, match="E-IDENTITY-UNTRUSTED"):
        verify(PLAN, signature, identities["north"].trust, purpose=Purpose.PLAN)


def test_an_expired_operator_is_refused(identities: Mapping[str, Identity]) -> None:
    operator = identities["operator"]
    signature = sign(operator, PLAN, purpose=Purpose.PLAN)
    later = operator.not_after + timedelta(days=1)
    with pytest.raises(IdentityError, match="E-IDENTITY-EXPIRED"):
        verify(PLAN, signature, operator.trust, purpose=Purpose.PLAN, now=later)


def test_a_signature_carries_its_certificates_and_not_many(
    identities: Mapping[str, Identity],
) -> None:
    operator = identities["operator"]
    signature = sign(operator, PLAN, purpose=Purpose.PLAN)
    for pem in (
        b"",
        operator.ca_pem,
        operator.certificate_pem * 9,
        operator.certificate_pem + b" " * 100_000,
    ):
        with pytest.raises(IdentityError):
            verify(
                PLAN, replace(signature, certificate_pem=pem), operator.trust, purpose=Purpose.PLAN
            )


# --- what was accepted earlier
# ---------------------------------------------------------------------------------------

MINUTE = 1 / 24 / 60


def test_what_was_accepted_outlives_its_certificate(
    identities: Mapping[str, Identity], forge: Callable[..., Identity]
) -> None:
    """The CA is older than five minutes, so there was a time when all of the chain was valid."""
    alice, trust = forge("alice.operator.fedelmy", ends_days=-MINUTE), identities["north"].trust
    signature = sign(alice, PLAN, purpose=Purpose.PLAN)
    with pytest.raises(IdentityError, match="E-IDENTITY-EXPIRED"):
        verify(PLAN, signature, trust, purpose=Purpose.PLAN)
    assert str(verify_accepted(PLAN, signature, trust, purpose=Purpose.PLAN)) == "operator/alice"
    with pytest.raises(IdentityError, match="E-IDENTITY-SIGNATURE"):
        verify_accepted(PLAN + b" ", signature, trust, purpose=Purpose.PLAN)
    with pytest.raises(IdentityError, match="E-IDENTITY-SIGNATURE"):
        verify_accepted(PLAN, signature, trust, purpose=Purpose.CANCEL)


def test_what_was_accepted_outlives_a_revocation(tmp_path: Path) -> None:
    authority.init(tmp_path / "ca", "alice")
    home = tmp_path / "south"
    keystore.init(home, "south", "site")
    keystore.install(
        home, authority.sign(tmp_path / "ca", home / "request.csr", tmp_path / "south.pem").path
    )
    signature = sign(keystore.load(tmp_path / "ca" / "operator"), PLAN, purpose=Purpose.PLAN)
    revoked = authority.revoke(
        tmp_path / "ca", "alice", role="operator", reason="key-compromise"
    ).path
    keystore.install_lists(home, revoked.read_bytes(), revoked.name)
    trust = keystore.load(home).trust
    with pytest.raises(IdentityError, match="E-IDENTITY-REVOKED"):
        verify(PLAN, signature, trust, purpose=Purpose.PLAN)
    assert str(verify_accepted(PLAN, signature, trust, purpose=Purpose.PLAN)) == "operator/alice"


def test_what_nobody_can_have_accepted(
    identities: Mapping[str, Identity], forge: Callable[..., Identity], tmp_path: Path
) -> None:
    trust = identities["north"].trust
    authority.init(tmp_path / "other")
    stranger = sign(keystore.load(tmp_path / "other" / "operator"), PLAN, purpose=Purpose.PLAN)
    ended_before_the_ca_began = forge("alice.operator.fedelmy", begins_days=-3, ends_days=-2)
    for signature in (stranger, sign(ended_before_the_ca_began, PLAN, purpose=Purpose.PLAN)):
        with pytest.raises(IdentityError, match="E-IDENTITY-UNTRUSTED"):
            verify_accepted(PLAN, signature, trust, purpose=Purpose.PLAN)
    check_fits(PLAN, stranger, purpose=Purpose.PLAN)  # of history no more is asked
    with pytest.raises(IdentityError, match="E-IDENTITY-SIGNATURE"):
        check_fits(PLAN + b" ", stranger, purpose=Purpose.PLAN)
    with pytest.raises(IdentityError, match="E-IDENTITY-ROLE"):
        verify_accepted(
            PLAN, sign(identities["south"], PLAN, purpose=Purpose.PLAN), trust, purpose=Purpose.PLAN
        )
