"""federation.toml: the good one is understood, every mistake is named with its place and its way
out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedelmy_launcher.plans.compiler import load_federation
from fedelmy_node.config.federation_file import trust_rules
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.federation import Member
from fedelmy_node.domain.names import address, site_name
from tests.support.federations import TOML, write_toml


def test_a_good_file(tmp_path: Path) -> None:
    federation = load_federation(write_toml(tmp_path))
    assert [member.name for member in federation.members] == ["north", "south", "west"]
    assert (federation.topology, federation.deliver, federation.order) == ("chain", "all", "listed")
    assert federation.recipe.seed == 5
    assert federation.recipe.strategy.settings == {"pool_size": 2, "warmup_epochs": 1}


def test_alpha_keeps_its_fraction(tmp_path: Path) -> None:
    federation = load_federation(write_toml(tmp_path, TOML + "alpha = 0.06\nbeta = 1\n"))
    assert federation.recipe.strategy.settings["alpha"] == 0.06


def test_indices_are_beside_the_file(tmp_path: Path) -> None:
    text = TOML.replace(
        'address = "127.0.0.1:50051"', 'address = "127.0.0.1:50051"\nindices = "parts/north.json"'
    )
    assert load_federation(write_toml(tmp_path, text)).members[0].indices == str(
        tmp_path / "parts" / "north.json"
    )


def test_sites_that_were_found_stand_in_place_of_the_listed_ones(tmp_path: Path) -> None:
    found = [
        Member(name=site_name(name), address=address(f"10.0.0.{i}:1"))
        for i, name in enumerate(("west", "east"))
    ]
    text = TOML.replace(
        'address = "127.0.0.1:50053"', 'address = "127.0.0.1:50053"\npatience = "5m"'
    )
    members = load_federation(write_toml(tmp_path, text), found).members
    assert [(member.name, member.address) for member in members] == [
        ("west", "10.0.0.0:1"),
        ("east", "10.0.0.1:1"),
    ]
    assert [member.patience for member in members] == ["5m", None], "a listed site keeps its policy"
    without = TOML[: TOML.index("[[sites]]")] + TOML[TOML.index("[task]") :]
    assert len(load_federation(write_toml(tmp_path, without), found).members) == 2
    with pytest.raises(FedelmyError, match="no sites are listed"):
        load_federation(write_toml(tmp_path, without))


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("epochs = 2", "epocs = 2", "E-CONFIG-KEY", ["training.epocs", "epochs"]),
        (
            "epochs = 2",
            'epochs = 2\noptimizer = "adamm"',
            "E-CONFIG-VALUE",
            ["training.optimizer", "'sgd'", "Did you mean 'adam'?"],
        ),
        ("epochs = 2", "epochs = 2\nmomentum = 0.9", "E-CONFIG-VALUE", ["momentum is for sgd"]),
        (
            "epochs = 2",
            "epochs = 2\nclass_weights = { eleven = 2.0 }",
            "E-CONFIG-VALUE",
            ["class_weights", "'eleven'"],
        ),
        ("seed = 5", "sede = 5", "E-CONFIG-KEY", ["federation.sede", "seed"]),
        ("[model]", "[modle]", "E-CONFIG-KEY", ["modle", "model"]),
        ("pool_size = 2", "pool_sise = 2", "E-CONFIG-KEY", ["strategy.pool_sise", "pool_size"]),
        ("pool_size = 2", "pool_size = 0", "E-CONFIG-VALUE", ["pool_size"]),
        ("pool_size = 2", 'distance = "l3"', "E-CONFIG-VALUE", ["strategy.distance", "squared_l2"]),
        ('name = "mlp"', 'name = "mpl"', "E-CONFIG-MODEL", ["mpl", "mlp"]),
        ('name = "fedelmy"', 'name = "fedelmi"', "E-CONFIG-STRATEGY", ["fedelmi", "fedelmy"]),
        ("seed = 5", 'seed = 5\ntopology = "chian"', "E-CONFIG-TOPOLOGY", ["chian", "chain"]),
        ("epochs = 2", "epochs = 0", "E-CONFIG-VALUE", ["training", "epochs"]),
        ("epochs = 2", "epochs = 2.5", "E-CONFIG-VALUE", ["training.epochs", "integer"]),
        ('name = "south"', 'name = "north"', "E-CONFIG-VALUE", ["same name"]),
        ('name = "south"', 'name = "South"', "E-CONFIG-VALUE", ["South"]),
        ("127.0.0.1:50052", "127.0.0.1", "E-CONFIG-ADDRESS", ["127.0.0.1"]),
        ('"0", "1"', '"0", "0"', "E-CONFIG-VALUE", ["classes"]),
        ("channels = 1", "channels = 2", "E-CONFIG-VALUE", ["channels"]),
        ("channels = 1", "channels = 1, mean = [0.5]", "E-CONFIG-VALUE", ["mean"]),
        ("[model]", "[model", "E-CONFIG-SYNTAX", ["line"]),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, code: str, words: list[str]) -> None:
    assert old in TOML
    with pytest.raises(FedelmyError) as caught:
        load_federation(write_toml(tmp_path, TOML.replace(old, new, 1)))
    error = caught.value
    assert error.code == code
    assert "federation.toml" in error.message
    assert all(word in f"{error.message} {error.hint}" for word in words), (
        error.message,
        error.hint,
    )


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FedelmyError, match=r"E-CONFIG-MISSING.*federation\.toml"):
        load_federation(tmp_path / "federation.toml")


def test_what_the_operator_says_about_certificates(tmp_path: Path) -> None:
    more = 'certificate = "san:fl.north.example"\nfingerprint = "5f3a-90c1-77de-0b42-a9e6"'
    text = TOML.replace('address = "127.0.0.1:50051"', f'address = "127.0.0.1:50051"\n{more}')
    rules = trust_rules(load_federation(write_toml(tmp_path, text)).members)
    assert [(str(rule.subject), rule.san) for rule in rules.names] == [
        ("site/north", "fl.north.example")
    ]
    assert [(str(subject), pin) for subject, pin in rules.pins.items()] == [
        ("site/north", "5F3A-90C1-77DE-0B42-A9E6")
    ]


@pytest.mark.parametrize(
    "line",
    ['certificate = "fl.north.example"', 'certificate = "san:"', 'fingerprint = "5F3A"'],
    ids=str,
)
def test_mistakes_about_certificates_are_named(tmp_path: Path, line: str) -> None:
    text = TOML.replace('address = "127.0.0.1:50051"', f'address = "127.0.0.1:50051"\n{line}')
    with pytest.raises(FedelmyError, match="E-CONFIG-VALUE"):
        load_federation(write_toml(tmp_path, text))
