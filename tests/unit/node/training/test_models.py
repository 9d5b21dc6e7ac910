"""Every model by name: its size, its seed, and what it says to inputs that do not fit."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from fedelmy_node.domain.errors import ConfigError, TrainingError
from fedelmy_node.domain.federation import ModelSpec
from fedelmy_node.training.models import MODELS, build, check_model
from tests.support.small_recipes import task


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "size", "classes", "parameters"),
    [
        ("cnn", 32, 10, 319_242),
        ("cnn-pacs", 32, 7, 61_751),
        ("cnn-tiny", 64, 200, 2_142_472),
        ("resnet18-cifar", 32, 10, 11_173_962),
    ],
)
def test_the_papers_models_have_the_papers_sizes(name, size, classes, parameters):
    model = build(ModelSpec(name=name), task(classes=classes, size=size, channels=3), None)
    assert count(model) == parameters
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_every_model_computes_and_learns_on_its_channels(name):
    model = build(ModelSpec(name=name), task(classes=5, size=32, channels=1), 3)
    scores = model(torch.rand(2, 1, 32, 32))
    assert scores.shape == (2, 5)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["mlp", "cnn-small"])
@pytest.mark.parametrize("size", [1, 3, 8, 33])
def test_the_small_models_take_any_size(name, size):
    build(ModelSpec(name=name), task(size=size, channels=3), None)


def test_values_depend_on_the_seed_and_on_nothing_else():
    spec, eights = ModelSpec(name="cnn-small"), task()
    torch.manual_seed(1)
    first = build(spec, eights, 5).state_dict()
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn), "building must not move the global generator"
    second = build(spec, eights, 5).state_dict()
    other = build(spec, eights, 6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_a_torchvision_model_by_name():
    spec = ModelSpec(name="torchvision:mobilenet_v3_small")
    model = build(spec, task(classes=4, size=32, channels=3), None)
    assert model.classifier[-1].out_features == 4


def test_grey_images_get_a_first_convolution_of_their_own():
    model = build(ModelSpec(name="torchvision:resnet18"), task(size=32, channels=1), 1)
    assert model.conv1.weight.shape == (64, 1, 7, 7)
    assert model.conv1.bias is None
    again = build(ModelSpec(name="torchvision:resnet18"), task(size=32, channels=1), 1)
    assert torch.equal(model.conv1.weight, again.conv1.weight)


def test_models_with_auxiliary_heads_give_plain_scores():
    build(ModelSpec(name="torchvision:googlenet"), task(size=64, channels=3), None)


def test_a_misspelt_name_gets_a_suggestion():
    with pytest.raises(ConfigError) as caught:
        check_model("cnn-smal")
    assert (caught.value.code, caught.value.hint) == ("E-CONFIG-MODEL", "Did you mean 'cnn-small'?")
    with pytest.raises(ConfigError, match="E-CONFIG-MODEL"):
        check_model("torchvision:../etc")


def test_torchvision_checks_its_own_names():
    check_model("torchvision:resnet81")
    with pytest.raises(ConfigError) as caught:
        build(ModelSpec(name="torchvision:resnet81"), task(), None)
    assert caught.value.code == "E-CONFIG-MODEL"
    assert "torchvision:resnet18" in caught.value.hint
    with pytest.raises(
        ConfigError, match="E-CONFIG-MODEL"
    ):  # known to torchvision, but not a classifier
        build(ModelSpec(name="torchvision:fcn_resnet50"), task(), None)


@pytest.mark.parametrize(
    ("name", "size"),
    [("cnn", 8), ("cnn-pacs", 8), ("torchvision:vit_b_16", 32), ("torchvision:alexnet", 8)],
)
def test_an_input_that_does_not_fit_is_named(name, size):
    with pytest.raises(TrainingError) as caught:
        build(ModelSpec(name=name), task(size=size, channels=3), None)
    assert caught.value.code == "E-TRAINING-MODEL"
    assert f"3x{size}x{size}" in caught.value.message


def test_names_are_checked_without_torch():
    check = (
        "import sys; from fedelmy_node.training.models import check_model; check_model('mlp');"
        "from fedelmy_node.training.strategies import settings_for;"
        "from fedelmy_node.domain.federation import StrategySpec; settings_for(StrategySpec(name='fedelmy'));"
        "import fedelmy_node.bundle.verification;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'grpc')))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_model_that_loads_a_state_dict_shows_only_its_own_warnings(tmp_path, monkeypatch):
    """torch warns about every tensor that is loaded on the meta device, where the shapes are
    checked.
    """
    (tmp_path / "ward_weights.py").write_text(
        "import torch, warnings\n"
        "def net(task):\n"
        "    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
        "    shapes = {name: value.shape for name, value in model.state_dict().items()}\n"
        "    model.load_state_dict({n: torch.ones(s, device='cpu') for n, s in shapes.items()})\n"
        "    warnings.warn('a warning of the model')\n"
        "    return model\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "ward_weights:net"
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        build(ModelSpec(name=name), task(), None, code=[name])
        model = build(ModelSpec(name=name), task(), 1, code=[name])
    assert {str(warning.message) for warning in shown} == {"a warning of the model"}
    assert all((value == 1).all() for value in model.state_dict().values())
