"""Writing bundles: equal tensors are equal bytes, whatever their memory looks like; reading
restores all of it.
"""

import hashlib
import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedelmy_node.bundle.format import read_header
from fedelmy_node.domain.errors import BundleError, StoreError, TrainingError
from fedelmy_node.training import bundle_file as module
from fedelmy_node.training.bundle_file import bundle_bytes, manifest_of, read_bundle, write_bundle
from fedelmy_node.training.weights import FlatModel


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.zebra = nn.Linear(4, 4)
        self.ant = nn.Linear(4, 4)
        self.ant.weight = self.zebra.weight


def test_what_is_written_is_read(tmp_path):
    groups = {
        "model": {
            "w": torch.randn(3, 2),
            "n": torch.tensor(5),
            "half": torch.ones(3, dtype=torch.bfloat16),
        },
        "control": {"w": torch.randn(2)},
        "nothing": {},
    }
    sha256, size = write_bundle(tmp_path / "b", groups)
    content = (tmp_path / "b").read_bytes()
    assert (sha256, size) == (hashlib.sha256(content).hexdigest(), len(content))
    back = read_bundle(tmp_path / "b")
    assert {group: set(tensors) for group, tensors in back.items()} == {
        g: set(t) for g, t in groups.items()
    }
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            assert torch.equal(back[group][name], tensor)
            assert back[group][name].dtype == tensor.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["b"], "no temporary file stays"


def test_memory_layout_does_not_show(tmp_path):
    image = torch.randn(2, 3, 4, 5)
    layouts = [
        image,
        image.to(memory_format=torch.channels_last),
        torch.stack([image, image], dim=-1)[..., 0],
        image.clone().requires_grad_(),
    ]
    written = {
        write_bundle(tmp_path / "b", {"model": {"a": torch.ones(1), "w": layout}})
        for layout in layouts
    }
    reordered = {"model": {"w": image, "a": torch.ones(1)}}
    assert written == {write_bundle(tmp_path / "b", reordered)}


def test_tied_weights_are_stored_once_and_restored_by_name(tmp_path):
    model = Tied()
    write_bundle(tmp_path / "b", {"model": model.state_dict()})
    header = read_header(tmp_path / "b")
    assert [t.name for t in header.manifest] == [
        "model/ant.bias",
        "model/ant.weight",
        "model/zebra.bias",
    ]
    back = read_bundle(tmp_path / "b")["model"]
    assert torch.equal(back["zebra.weight"], model.zebra.weight)
    fresh = Tied()
    fresh.load_state_dict(back)
    assert torch.equal(fresh.ant.weight, model.ant.weight)


def test_views_of_one_vector_are_not_aliases(tmp_path):
    plain = Tied()
    wanted = write_bundle(tmp_path / "b", {"model": plain.state_dict()})
    assert write_bundle(tmp_path / "b", {"model": FlatModel(plain).state_dict()}) == wanted


def test_empty_tensors_are_not_aliases():
    base = torch.zeros(4)
    assert len(manifest_of({"model": {"a": base[2:2], "b": base[2:2]}})) == 2


def test_the_manifest_and_size_of_a_meta_model_are_those_of_the_file(tmp_path):
    with torch.device("meta"):
        meta = nn.ModuleDict({"tied": Tied(), "norm": nn.BatchNorm1d(1000), "x": nn.Linear(300, 7)})
    real = nn.ModuleDict({"tied": Tied(), "norm": nn.BatchNorm1d(1000), "x": nn.Linear(300, 7)})
    groups = {"model": meta.state_dict(), "extra": {"b": torch.zeros(3, dtype=torch.bool)}}
    _, size = write_bundle(tmp_path / "b", {"model": real.state_dict(), "extra": groups["extra"]})
    assert manifest_of(groups) == read_header(tmp_path / "b").manifest
    assert bundle_bytes(groups) == size


def test_the_metadata_say_nothing_of_the_run(tmp_path):
    write_bundle(tmp_path / "b", {"model": Tied().state_dict()})
    (text,) = read_header(tmp_path / "b").metadata.values()
    assert json.loads(text) == {
        "format": 1,
        "groups": ["model"],
        "aliases": {"model/zebra.weight": "model/ant.weight"},
    }


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"fedelmy": "{"},
        {"fedelmy": "[]"},
        {"fedelmy": '{"format": 2, "groups": ["m"], "aliases": {}}'},
        {"fedelmy": '{"format": 1, "groups": 3, "aliases": {}}'},
        {"fedelmy": '{"format": 1, "groups": ["other"], "aliases": {}}'},
        {"fedelmy": '{"format": 1, "groups": ["m"], "aliases": {"m/b": "m/nothing"}}'},
        {"fedelmy": '{"format": 1, "groups": [["m"]], "aliases": {}}'},
    ],
)
def test_files_of_other_software_are_refused(tmp_path, metadata):
    save_file({"m/a": torch.zeros(2)}, tmp_path / "b", metadata=metadata)
    with pytest.raises(BundleError, match="E-BUNDLE-FORMAT"):
        read_bundle(tmp_path / "b")


def test_types_that_no_bundle_has_are_refused(tmp_path):
    with pytest.raises(BundleError, match="E-BUNDLE-FORMAT"):
        write_bundle(tmp_path / "b", {"model": {"w": torch.zeros(2, dtype=torch.complex64)}})


def test_a_failed_write_leaves_the_old_bundle_and_nothing_else(tmp_path, monkeypatch):
    write_bundle(tmp_path / "b", {"model": {"w": torch.ones(2)}})
    before = (tmp_path / "b").read_bytes()

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", fail)
    with pytest.raises(StoreError, match="E-STORE-DISK"):
        write_bundle(tmp_path / "b", {"model": {"w": torch.zeros(2)}})
    assert (tmp_path / "b").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unwritable_directory_is_named(tmp_path):
    with pytest.raises(StoreError, match="E-STORE-UNWRITABLE"):
        write_bundle(tmp_path / "missing" / "b", {"model": {"w": torch.zeros(2)}})


@pytest.mark.parametrize(
    ("wire", "dtype", "label"),
    [("bfloat16", torch.bfloat16, "BF16"), ("float16", torch.float16, "F16")],
)
def test_floats_travel_in_the_wire_type_and_integers_as_they_are(tmp_path, wire, dtype, label):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(300, 7), nn.BatchNorm1d(7), Tied())
    _, wide = write_bundle(tmp_path / "wide", {"model": model.state_dict()})
    _, size = write_bundle(tmp_path / "b", {"model": model.state_dict()}, wire)
    back = read_bundle(tmp_path / "b")["model"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(
            back[name], tensor.to(dtype) if tensor.is_floating_point() else tensor
        ), name
    manifest = read_header(tmp_path / "b").manifest
    assert {tensor.dtype for tensor in manifest} == {label, "I64"}
    assert 0.4 < size / wide < 0.7
    with torch.device("meta"):
        meta = nn.Sequential(nn.Linear(300, 7), nn.BatchNorm1d(7), Tied())
    for same in (model, meta):
        assert manifest_of({"model": same.state_dict()}, wire) == manifest
        assert bundle_bytes({"model": same.state_dict()}, wire) == size
    fresh = nn.Sequential(nn.Linear(300, 7), nn.BatchNorm1d(7), Tied())
    fresh.load_state_dict(back)
    assert fresh[0].weight.dtype == torch.float32
    write_bundle(tmp_path / "again", {"model": fresh.state_dict()}, wire)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "b").read_bytes()


def test_float32_on_the_wire_changes_nothing(tmp_path):
    state = {"model": Tied().state_dict()}
    assert write_bundle(tmp_path / "a", state, "float32") == write_bundle(tmp_path / "b", state)


@pytest.mark.parametrize(
    ("wire", "value"), [("float16", 7e4), ("float16", -65520.0), ("bfloat16", 3.4e38)]
)
def test_a_value_beyond_the_wire_type_is_named(tmp_path, wire, value):
    with pytest.raises(TrainingError) as caught:
        write_bundle(tmp_path / "b", {"model": {"w": torch.tensor([1.0, value])}}, wire)
    assert caught.value.code == "E-TRAINING-RANGE"
    assert "model/w" in caught.value.message
    assert wire in caught.value.message
    assert "bfloat16" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_the_largest_value_of_the_wire_type_passes(tmp_path):
    write_bundle(tmp_path / "b", {"model": {"w": torch.tensor([65504.0, -65504.0])}}, "float16")
    assert read_bundle(tmp_path / "b")["model"]["w"].tolist() == [65504.0, -65504.0]
