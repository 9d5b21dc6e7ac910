"""Whether a bundle may be used: the same tensors as agreed, and all of them finite."""

import os

import pytest
import torch
from safetensors.torch import save_file

from fedelmy_node.bundle import verification
from fedelmy_node.bundle.format import KEY, metadata_text, read_header
from fedelmy_node.bundle.verification import check_bundle, check_manifest
from fedelmy_node.domain.artifact import TensorInfo
from fedelmy_node.domain.errors import BundleError


def info(name, *shape, dtype="F32"):
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def saved(path, **tensors):
    save_file(
        tensors,
        path,
        metadata={KEY: metadata_text({name.partition("/")[0] for name in tensors}, {})},
    )
    return path


def check(path, manifest=None, expected=""):
    """What is wrong with a bundle, or nothing."""
    try:
        check_bundle(path, read_header(path).manifest if manifest is None else manifest, expected)
    except BundleError as error:
        return error
    return None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("position", [0, 500, 999])
def test_finds_every_kind_of_nonfinite_value(tmp_path, monkeypatch, dtype, bad, position):
    monkeypatch.setattr(verification, "BLOCK_BYTES", 64)
    values = torch.linspace(-1, 1, 1000).to(dtype)
    values[position] = bad
    path = saved(
        tmp_path / "file",
        **{"m/a": torch.ones(7), "m/b": values, "m/c": torch.full((3,), float("nan"))},
    )
    header = read_header(path)
    tensors = zip(header.spans, header.manifest, strict=True)
    first = min((span, tensor.name) for span, tensor in tensors if tensor.name != "m/a")[1]
    found = check(path)
    assert found.code == "E-BUNDLE-NONFINITE"
    assert first in found.message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_largest_and_smallest_numbers_are_finite(tmp_path, dtype):
    limits = torch.finfo(dtype)
    values = torch.tensor(
        [limits.max, limits.min, limits.tiny, limits.smallest_normal, -0.0], dtype=dtype
    )
    assert (
        check(saved(tmp_path / "file", **{"m/a": values, "m/empty": torch.zeros(0, dtype=dtype)}))
        is None
    )


def test_integers_are_finite_whatever_their_bits(tmp_path):
    tensors = {"m/a": torch.full((9,), -1), "m/b": torch.full((9,), 255, dtype=torch.uint8)}
    assert check(saved(tmp_path / "file", **tensors)) is None


@pytest.mark.parametrize("missing", [1, 400])
def test_a_file_that_is_too_short(tmp_path, missing):
    path = saved(tmp_path / "file", **{"m/a": torch.ones(100)})
    manifest = read_header(path).manifest
    os.truncate(path, path.stat().st_size - missing)
    assert check(path, manifest).code == "E-BUNDLE-FORMAT"


def test_a_good_bundle_passes(tmp_path):
    path = saved(tmp_path / "file", **{"model/a": torch.ones(2, 3), "model/n": torch.tensor(3)})
    manifest = [info("model/n", dtype="I64"), info("model/a", 2, 3)]
    assert check(path, manifest) is check(path, manifest, metadata_text(["model"], {})) is None


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"format": "pt"},
        {KEY: "not JSON"},
        {KEY: '{"format":1,"groups":["model"]}'},
        {KEY: metadata_text(["other"], {})},
        {KEY: metadata_text(["model", "other"], {})},
        {KEY: metadata_text(["model"], {"model/z": "model/missing"})},
        {KEY: metadata_text(["model"], {"other/z": "model/a"})},
        {KEY: metadata_text(["model"], {}).replace("1", "2")},
    ],
)
def test_foreign_metadata_are_refused(tmp_path, metadata):
    """Whoever reads the file would refuse them: then it is too late."""
    save_file({"model/a": torch.ones(2)}, tmp_path / "file", metadata=metadata)
    for expected in ("", metadata_text(["model"], {})):
        assert check(tmp_path / "file", expected=expected).code == "E-BUNDLE-FORMAT"


def test_only_what_a_run_expects_is_taken_where_that_is_known(tmp_path):
    tied = metadata_text(["model"], {"model/z": "model/a"})
    save_file({"model/a": torch.ones(2)}, tmp_path / "file", metadata={KEY: tied})
    assert check(tmp_path / "file") is check(tmp_path / "file", expected=tied) is None
    assert check(tmp_path / "file", expected=metadata_text(["model"], {})).code == "E-BUNDLE-FORMAT"


def test_a_difference_is_named_with_both_shapes(tmp_path):
    path = saved(tmp_path / "file", **{"model/a": torch.ones(2, 3), "model/x": torch.ones(1)})
    found = check(path, [info("model/a", 2, 4), info("model/b", 5)])
    assert found.code == "E-BUNDLE-MANIFEST"
    assert "model/a: F32[2, 3] instead of F32[2, 4]" in found.message
    assert "model/b: nothing instead of F32[5]" in found.message
    assert "model/x: F32[1] instead of nothing" in found.message


def test_many_differences_are_counted():
    with pytest.raises(BundleError, match="and 7 more"):
        check_manifest([info(f"t{number}", 1) for number in range(10)], [])


def test_a_name_twice_is_a_difference():
    with pytest.raises(BundleError, match="twice"):
        check_manifest([info("t", 1), info("t", 1)], [info("t", 1)])


def test_a_nonfinite_bundle_is_refused_by_name(tmp_path):
    path = saved(tmp_path / "file", **{"model/a": torch.tensor([1.0, float("nan")])})
    found = check(path, [info("model/a", 2)])
    assert found.code == "E-BUNDLE-NONFINITE"
    assert "model/a" in found.message
