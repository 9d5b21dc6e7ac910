"""What can be chosen by name: ours, those of packages, and code; and whose word each of them needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.registry import BUILT_IN, Registry, is_code, is_importable, load_code
from fedelmy_node.domain.errors import ConfigError, ConsentError, DataError, TrainingError
from fedelmy_node.domain.federation import ModelSpec
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.sources import RawData, load_source
from fedelmy_node.training.evaluation.inference import load_model
from fedelmy_node.training.models import build, check_model, model_origin
from tests.support.small_recipes import recipe, task

MODULE = """
import numpy as np
from torch import nn

LAYER = 3

def net(task):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, len(task.classes)))

def broken(task):
    return {}["/secret/place"]

def number(task):
    return 7

def arrays(path=None):
    n = 30 if path is None else len(path.read_text())
    return {"images": np.zeros((n, 8, 8), np.uint8), "labels": ["cat", "ape"] * (n // 2)}

def without_path():
    return {"images": np.zeros((2, 8, 8)), "labels": [0, 1], "test_images": np.zeros((1, 8, 8)), "test_labels": [1]}

def few():
    return {"images": np.zeros((2, 8, 8))}

def nothing():
    return None
"""


class Row(NamedTuple):
    description: str
    target: str


def register() -> Registry[Row]:
    return Registry("fedelmy.things", "thing", {"ours": Row("one of ours", "json")}, Row)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a package with entry points onto the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(
        name: str, *points: str, group: str = "fedelmy.things", summary: str = "Things of others"
    ) -> Path:
        about = tmp_path / f"{name}-1.2.dist-info"
        about.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\nSummary: {summary}\n"
        (about / "METADATA").write_text(text)
        (about / "entry_points.txt").write_text("\n".join((f"[{group}]", *points)))
        return tmp_path

    return put


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the site's own; its name differs from test to test, as Python remembers modules."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


# --- packages


def test_a_package_adds_names_and_its_code_is_imported_when_it_is_used(
    package: Callable[..., Path],
) -> None:
    root = package("extra", "theirs = extra_things:make")
    (root / "extra_things.py").write_text("def make(): return 5")
    things = register()
    assert things.names == ["ours", "theirs"]
    assert things.find("theirs") == Row("Things of others", "extra_things:make")
    assert "extra_things" not in sys.modules
    assert (things.origin("theirs"), things.origin("ours"), things.origin("nobodys")) == (
        "extra 1.2",
        BUILT_IN,
        "",
    )
    assert things.load("theirs", "extra_things:make")() == 5
    assert things.find("nobodys") is None


def test_a_built_in_name_cannot_be_taken(package: Callable[..., Path]) -> None:
    package("thief", "ours = thief:make")
    things = register()
    assert things.find("ours") == Row("one of ours", "json") and things.origin("ours") == BUILT_IN
    assert [(row.origin, row.problem) for row in things.listing()] == [
        (BUILT_IN, ""),
        ("thief 1.2", "the name is built in"),
    ]


def test_a_name_of_two_packages_is_nobodys(package: Callable[..., Path]) -> None:
    package("first", "same = first:make")
    package("second", "same = second:make", "other = second:make")
    things = register()
    with pytest.raises(ConfigError, match=r"provide this name: first 1\.2, second 1\.2") as caught:
        things.find("same")
    assert caught.value.code == "E-CONFIG-EXTENSION"
    assert things.names == ["ours", "other"]


@pytest.mark.parametrize(
    "code", ["1 / 0", "import nowhere_at_all", "raise SystemExit(3)", "def mak(): pass"]
)
def test_a_package_that_cannot_be_imported_is_named(
    package: Callable[..., Path], code: str, tmp_path: Path
) -> None:
    module = f"shaky{abs(hash(code))}"
    package("shaky", f"thing = {module}:make", f"good = {module}x")
    (tmp_path / f"{module}.py").write_text(code)
    (tmp_path / f"{module}x.py").touch()
    things = register()
    with pytest.raises(
        ConfigError, match=r"thing 'thing' of package shaky 1.2 cannot be used: it raised"
    ) as caught:
        things.load("thing", f"{module}:make")
    assert caught.value.code == "E-CONFIG-EXTENSION" and str(tmp_path) not in caught.value.message
    things.load("good", f"{module}x")


def test_what_a_package_says_of_itself_cannot_write_on_a_terminal(
    package: Callable[..., Path],
) -> None:
    package("loud", "Bad Name = loud:make", "odd = loud make", summary="\x1b[31mred" + "x" * 500)
    rows = {row.name: row for row in register().listing()}
    assert "\x1b" not in rows["odd"].description and len(rows["odd"].description) <= 200
    assert (
        "must have 1 to 64" in rows["Bad Name"].problem
        and "neither `module`" in rows["odd"].problem
    )


def test_names_of_ours_need_no_look_at_packages() -> None:
    code = (
        "import sys\nfrom fedelmy_node.training.models import check_model\n"
        "from fedelmy_node.training.strategies import settings_for\n"
        "from fedelmy_node.domain.federation import StrategySpec\n"
        "from fedelmy_node.training.data import parse_source\n"
        "check_model('mlp'); check_model('torchvision:resnet18'); parse_source('digits')\n"
        "settings_for(StrategySpec(name='fedelmy'))\n"
        "assert 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- module:function


def test_what_is_code() -> None:
    assert is_code("a:b") and is_code("a.b_c.D:e1")
    assert not any(
        map(
            is_code,
            (
                "mlp",
                "torchvision:resnet18",
                "a:b:c",
                "a.:b",
                ":b",
                "a:",
                "1a:b",
                "ä:b",
                "a:b\n",
                "a b:c",
            ),
        )
    )


def test_pythons_own_modules_are_not_taken(own: str) -> None:
    assert (
        is_importable(own)
        and not is_importable("shutil:rmtree")
        and not is_importable("not_there_at_all:f")
    )
    for installed in (
        "fedelmy_node.store.durable_files:remove_tree",
        "sklearn.datasets:clear_data_home",
        "torch.hub:load",
    ):
        assert not is_importable(installed), "somebody else's file may name it"
    with pytest.raises(ConfigError, match="module 'shutil' not found") as caught:
        load_code("shutil:rmtree", "data")
    assert caught.value.code == "E-CONFIG-EXTENSION"
    with pytest.raises(ConfigError, match="LAYER is not a function"):
        load_code(f"{own}:LAYER", "model")


def test_a_model_that_is_code_is_built_only_where_it_is_allowed(own: str) -> None:
    spec = ModelSpec(name=f"{own}:net")
    check_model(spec.name)
    with pytest.raises(ConsentError) as caught:
        build(spec, task(), 1)
    assert caught.value.code == "E-CONSENT-CODE" and own not in sys.modules, "not even imported"
    with pytest.raises(ConsentError):
        build(spec, task(), 1, code=["*", f"{own}:*"])
    first, second = (build(spec, task(), 1, code=[spec.name]).state_dict() for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize(
    ("function", "says"), [("broken", "its code raised KeyError"), ("number", "returned a int")]
)
def test_a_function_that_makes_no_model_is_refused_and_keeps_its_secrets(
    own: str, function: str, says: str
) -> None:
    with pytest.raises(TrainingError, match=says) as caught:
        build(ModelSpec(name=f"{own}:{function}"), task(), None, code=[f"{own}:{function}"])
    assert caught.value.code == "E-TRAINING-MODEL" and "secret" not in caught.value.message


def test_a_file_of_somebody_cannot_have_code_run(own: str, tmp_path: Path) -> None:
    import safetensors.torch
    import torch

    from fedelmy_node.config.decode import canonical_json

    name = f"{own}:net"
    about = canonical_json({"model": name, "task": task()}).decode()
    state = {"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10)}
    safetensors.torch.save_file(state, tmp_path / "m.safetensors", metadata={"fedelmy": about})
    with pytest.raises(ConsentError, match="this site does not allow"):
        load_model(tmp_path / "m.safetensors")
    assert load_model(tmp_path / "m.safetensors", code=[name]).task == task()


def test_a_site_allows_code_by_its_whole_name_only() -> None:
    assert Consent().code == () and Consent(models=("*", "a:*", "torchvision:*")).code == ()
    assert Consent(models=("*", "ward.models:tiny")).code == ("ward.models:tiny",)


def test_whose_code_a_model_is_is_said_in_words() -> None:
    assert model_origin("mlp") == model_origin("torchvision:resnet18") == ""
    assert model_origin("ward.models:tiny") == "the function tiny of the module ward.models"
    assert recipe().model.name == "mlp"


# --- data


def test_arrays_of_a_function_are_a_source(own: str, tmp_path: Path) -> None:
    source = parse_source(f"{own}:arrays")
    assert (source.kind, source.path, source.public_name) == (f"{own}:arrays", None, "own code")
    raw = load_source(source)
    assert raw.classes == ("ape", "cat") and raw.pool.labels.tolist() == [1, 0] * 15
    assert raw.pool.images.read(np.arange(2)).shape == (2, 8, 8)
    (tmp_path / "four").write_text("four")
    assert len(load_source(parse_source(f"{own}:arrays:{tmp_path}/four")).pool.labels) == 4
    test = load_source(parse_source(f"{own}:without_path")).test
    assert test is not None and test.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("without_path:/x", "E-DATA-SOURCE", "takes no path"),
        ("arrays:/not/there", "E-DATA-SOURCE", "it raised FileNotFoundError"),
        ("absent", "E-DATA-SOURCE", "it raised AttributeError"),
        ("few", "E-DATA-FORMAT", "must have one array labels or y"),
        ("nothing", "E-DATA-FORMAT", "returned a NoneType, not a dict"),
    ],
)
def test_a_function_that_gives_no_data_is_refused(
    own: str, text: str, code: str, says: str
) -> None:
    with pytest.raises(DataError, match=says) as caught:
        load_source(parse_source(f"{own}:{text}"))
    assert caught.value.code == code and "/" not in caught.value.message


def test_a_misspelt_kind_is_not_taken_for_code() -> None:
    with pytest.raises(DataError) as caught:
        parse_source("imagefoldr:data")
    assert "imagefolder:DIRECTORY" in caught.value.hint


def test_a_package_brings_a_kind_of_data(
    own: str, package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedelmy_node.training import data

    package("scans", f"scans = {own}:arrays", group="fedelmy.data")
    monkeypatch.delitem(data.INSTALLED.__dict__, "_offers", raising=False)
    try:
        assert isinstance(load_source(parse_source("scans")), RawData)
        with pytest.raises(DataError) as caught:
            parse_source("scan:/data")
        assert "Did you mean scans" in caught.value.hint
    finally:
        data.INSTALLED.__dict__.pop("_offers", None)
