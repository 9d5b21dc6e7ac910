"""What many tests need: a real CA with real sites. Keys are made once per session; nothing here is
mocked.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hypothesis
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.subject import Subject
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import fingerprint, to_pem
from fedelmy_node.identity.keys import encode_key, read_key
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.trust import Trust
from tests.support.hospital import Hospital

# How long an example takes says nothing on a machine that others use, too.
hypothesis.settings.register_profile("fedelmy", deadline=None)
hypothesis.settings.load_profile("fedelmy")

# A shell starts jobs in the background with Ctrl-C ignored, and so would be what tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FOLDERS = ("e2e", "integration", "chaos")
"""In this order, then the others: modules that take long first, so that short ones fill the end."""

Forge = Callable[..., Identity]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """All modules are imported: no garbage collection needs to look at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def federation_ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a federation's CA, as `fedelmy-launch ca init` makes it."""
    directory = tmp_path_factory.mktemp("federation") / "ca"
    authority.init(directory)
    return directory


@pytest.fixture(scope="session")
def identities(
    federation_ca: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Identity]:
    """The sites `north` and `south`, and the `operator`, of one federation."""
    found = {"operator": keystore.load(federation_ca / "operator")}
    for name in ("north", "south"):
        home = tmp_path_factory.mktemp(name) / "identity"
        keystore.init(home, name, "site")
        signed = authority.sign(federation_ca, home / "request.csr", home.parent / f"{name}.pem")
        found[name] = keystore.install(home, signed.path)
    return found


@pytest.fixture(scope="session")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """The CA of a hospital, which knows nothing of federations."""
    return Hospital(tmp_path_factory.mktemp("hospital"))


@pytest.fixture(scope="session")
def forge(federation_ca: Path) -> Forge:
    """Certificates that `ca sign` would never make, signed with the real CA's key."""
    ca_key = read_key(federation_ca / "ca.key")
    ca = x509.load_pem_x509_certificate((federation_ca / "ca.pem").read_bytes())

    def make(
        dns: str = "south.site.fedelmy",
        *,
        begins_days: float = -1,
        ends_days: float = 1,
        usages: tuple[x509.ObjectIdentifier, ...] = (
            ExtendedKeyUsageOID.SERVER_AUTH,
            ExtendedKeyUsageOID.CLIENT_AUTH,
        ),
        more_names: tuple[x509.GeneralName, ...] = (),
        curve: ec.EllipticCurve | None = None,
    ) -> Identity:
        key, now = ec.generate_private_key(curve or ec.SECP256R1()), datetime.now(UTC)
        names = x509.SubjectAlternativeName([x509.DNSName(dns), *more_names])
        builder = x509.CertificateBuilder(
            subject_name=x509.Name([]), issuer_name=ca.subject, public_key=key.public_key()
        )
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now + timedelta(days=begins_days))
        builder = builder.not_valid_after(now + timedelta(days=ends_days))
        builder = builder.add_extension(names, critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        leaf = builder.sign(ca_key, hashes.SHA256())
        return Identity(
            subject=Subject.of("south", "site"),
            key_pem=encode_key(key),
            certificate_pem=to_pem(leaf),
            trust=Trust(to_pem(ca)),
            not_after=leaf.not_valid_after_utc,
            fingerprint=fingerprint(key.public_key()),
        )

    return make
