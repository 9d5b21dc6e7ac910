"""The site's settings: one precedence, and a file that was named must exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import ConfigError, FedelmyError

TOML = """
[site]
listen = "0.0.0.0:7001"
peers = ["south=10.0.0.2:7001"]
device = "cpu"
keep_pool = true

[consent]
accept_from = ["west"]
operators = ["alice"]
models = ["cnn", "torchvision:*"]
max_epochs = 20
max_bundle_mb = 50
disclose = ["sample-counts"]
require_approval = true

[data]
source = "npz:/data/x.npz"
indices = "mine.json"
unreadable = "skip"
"""


def test_defaults(tmp_path: Path) -> None:
    config = load_site_config(Given(state=tmp_path))
    assert config.listen == "0.0.0.0:50051"
    assert (config.peers, config.data, config.consent) == ((), None, Consent())
    assert config.consent.discloses_usual and not config.consent.require_approval
    assert (config.device, config.unreadable, config.keep_pool) == ("auto", "refuse", False)


def test_the_file_in_the_state_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(TOML)
    (tmp_path / "mine.json").touch()
    config = load_site_config(Given(state=tmp_path))
    assert config.listen == "0.0.0.0:7001"
    assert [str(peer) for peer in config.peers] == ["south=10.0.0.2:7001"]
    assert (config.consent.accept_from, config.consent.operators) == (("west",), ("alice",))
    assert (config.consent.max_epochs, config.consent.max_bundle_mb, config.consent.max_pool) == (
        20,
        50.0,
        None,
    )
    assert config.consent.disclose == ("sample-counts",) and config.consent.require_approval
    assert config.indices == tmp_path / "mine.json"
    assert (config.device, config.unreadable, config.keep_pool) == ("cpu", "skip", True)


def test_the_directory_of_weights(tmp_path: Path) -> None:
    assert load_site_config(Given(state=tmp_path)).weights == tmp_path / "weights"
    (tmp_path / "site.toml").write_text('[site]\nweights = "backbones"\n')
    assert load_site_config(Given(state=tmp_path)).weights == tmp_path / "backbones"
    given = Given(state=tmp_path, weights=Path("/srv/weights"))
    assert load_site_config(given).weights == Path("/srv/weights")


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(TOML)
    (tmp_path / "mine.json").touch()
    given = Given(
        state=tmp_path,
        listen="127.0.0.1:1",
        peers=("127.0.0.1:2",),
        data="digits",
        device="cuda:1",
        keep_pool=False,
    )
    config = load_site_config(given)
    assert (config.listen, config.data, config.device, config.keep_pool) == (
        "127.0.0.1:1",
        "digits",
        "cuda:1",
        False,
    )
    assert [str(peer) for peer in config.peers] == ["127.0.0.1:2"]


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ('[site]\nlistn = "x"', "E-CONFIG-KEY", "listen"),
        ('[dat]\nsource = "digits"', "E-CONFIG-KEY", "data"),
        ('[site]\npeers = ["nowhere"]', "E-CONFIG-ADDRESS", "nowhere"),
        ('[site]\ndevice = "gpu"', "E-CONFIG-DEVICE", "cuda"),
        ("[site]\nstall_seconds = 0", "E-CONFIG-VALUE", "stall_seconds"),
        ("[site]\nstall_seconds = 1e300", "E-CONFIG-VALUE", "stall_seconds"),
        ("[site]\nprepare_hours = 99999999", "E-CONFIG-VALUE", "prepare_hours"),
        ('[consent]\noperators = [""]', "E-CONFIG-VALUE", "''"),
        ('[site]\noperators = ["alice"]', "E-CONFIG-KEY", "Move it to [consent]"),
        ("[data]\npeers = []", "E-CONFIG-KEY", "Move it to [site]"),
        ("[consent]\nmax_epoch = 5", "E-CONFIG-KEY", "max_epochs"),
        ("[consent]\nmax_epochs = 0", "E-CONFIG-VALUE", "max_epochs"),
        ("[consent]\nmax_change = -1.0", "E-CONFIG-VALUE", "max_change"),
        ('[consent]\nmodels = [""]', "E-CONFIG-VALUE", "models"),
        ('[consent]\ndisclose = ["class-counts"]', "E-CONFIG-VALUE", "sample-counts"),
        ('[consent]\ndisclose = ["everything"]', "E-CONFIG-VALUE", "metrics"),
        ('[site]\nname = ""', "E-CONFIG-VALUE", "''"),
        ('[data]\nindices = "none.json"', "E-DATA-INDICES", "none.json"),
        ("a = " + "[" * 5000, "E-CONFIG-SYNTAX", "site.toml"),
        ("[site", "E-CONFIG-SYNTAX", "site.toml"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, code: str, word: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(FedelmyError) as caught:
        load_site_config(Given(state=tmp_path))
    assert caught.value.code == code
    assert word in f"{caught.value.whole} {caught.value.hint}"


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FedelmyError, match="E-CONFIG-MISSING"):
        load_site_config(Given(state=tmp_path, config=tmp_path / "none.toml"))


@pytest.mark.parametrize(
    "bad", ["", "host", "host:", ":1", "host:99999", "a b:1", "NORTH=host:1", "=host:1", "host:x"]
)
def test_peers_that_are_no_addresses(tmp_path: Path, bad: str) -> None:
    with pytest.raises(FedelmyError):
        load_site_config(Given(state=tmp_path, peers=(bad,)))


@pytest.mark.parametrize(
    "given", [{"listen": ""}, {"site": ""}, {"device": ""}, {"indices": Path()}]
)
def test_an_empty_flag_is_refused_not_ignored(tmp_path: Path, given: dict[str, object]) -> None:
    with pytest.raises(FedelmyError):
        load_site_config(Given(state=tmp_path, **given))  # type: ignore[arg-type]


def test_where_others_reach_the_node(tmp_path: Path) -> None:
    assert load_site_config(Given(state=tmp_path)).advertise is None
    (tmp_path / "site.toml").write_text('[site]\nadvertise = "fl.north.example:443"\n')
    assert load_site_config(Given(state=tmp_path)).advertise == "fl.north.example:443"
    given = Given(state=tmp_path, advertise="[2001:db8::7]:50051")
    assert load_site_config(given).advertise == "[2001:db8::7]:50051"


@pytest.mark.parametrize(
    "bad", ["", "443", "north.example", "north.example:0", "0.0.0.0:443", "[::]:443", "0:443"]
)
def test_where_nobody_reaches_it(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ConfigError, match="E-CONFIG-ADDRESS"):
        load_site_config(Given(state=tmp_path, advertise=bad))


def test_what_a_site_says_about_certificates(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(
        """
[[identity.names]]
site = "south"
san = "fl.south.example"

[[identity.names]]
operator = "alice"
subject = "CN=Alice,O=South Hospital,C=DE"

[identity.pins]
south = "5f3a-90c1-77de-0b42-a9e6"
"operator/alice" = "5F3A-90C1-77DE-0B42-A9E7"
"""
    )
    trust = load_site_config(Given(state=tmp_path)).trust
    assert [(str(rule.subject), str(rule)) for rule in trust.names] == [
        ("site/south", "san fl.south.example"),
        ("operator/alice", "subject CN=Alice,O=South Hospital,C=DE"),
    ]
    assert {str(subject): pin for subject, pin in trust.pins.items()} == {
        "site/south": "5F3A-90C1-77DE-0B42-A9E6",
        "operator/alice": "5F3A-90C1-77DE-0B42-A9E7",
    }


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[[identity.names]]\nsan = "a.example"', "site or operator"),
        (
            '[[identity.names]]\nsite = "south"\noperator = "alice"\nsan = "a.example"',
            "site or operator",
        ),
        ('[[identity.names]]\nsite = "south"', "san or subject"),
        ('[[identity.names]]\nsite = "South"\nsan = "a"', "South"),
        ('[identity.pins]\nsouth = "5F3A"', "5F3A"),
        ('[identity.pins]\n"admin/south" = "5F3A-90C1-77DE-0B42-A9E6"', "admin"),
    ],
)
def test_mistakes_about_certificates_are_named(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(FedelmyError, match=f"E-CONFIG-VALUE.*site.toml.*{word}"):
        load_site_config(Given(state=tmp_path))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("9465", "127.0.0.1:9465"),
        ("0", "127.0.0.1:0"),
        ("10.0.0.7:9465", "10.0.0.7:9465"),
        ("[::1]:9465", "[::1]:9465"),
        ("off", None),
    ],
)
def test_where_metrics_are(tmp_path: Path, said: str, found: str | None) -> None:
    assert load_site_config(Given(state=tmp_path, metrics=said)).metrics == found
    (tmp_path / "site.toml").write_text(f'[site]\nmetrics = "{said}"\n')
    assert load_site_config(Given(state=tmp_path)).metrics == found
    assert load_site_config(Given(state=tmp_path, metrics="off")).metrics is None, (
        "a flag goes before the file"
    )


@pytest.mark.parametrize("said", ["", "99999", "nine", "host", "9465/metrics", "http://x:1"])
def test_where_metrics_cannot_be(tmp_path: Path, said: str) -> None:
    with pytest.raises(ConfigError, match="E-CONFIG-ADDRESS") as caught:
        load_site_config(Given(state=tmp_path, metrics=said))
    assert "HOST:PORT" in caught.value.hint


def test_a_site_that_pulls_needs_somebody_to_wait_at(tmp_path: Path) -> None:
    assert load_site_config(Given(state=tmp_path)).direction == "push"
    (tmp_path / "site.toml").write_text('[site]\ndirection = "pull"\n')
    with pytest.raises(ConfigError, match="needs at least one peer"):
        load_site_config(Given(state=tmp_path))
    assert load_site_config(Given(state=tmp_path, peers=("south=h:1",))).direction == "pull"
    assert load_site_config(Given(state=tmp_path, direction="push")).direction == "push"
    (tmp_path / "site.toml").write_text('[site]\ndirection = "sideways"\n')
    with pytest.raises(ConfigError, match="direction"):
        load_site_config(Given(state=tmp_path))
