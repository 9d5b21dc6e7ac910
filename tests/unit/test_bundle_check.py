"""Whether a bundle may be used: the same tensors as agreed, and all of them finite."""

import os

import pytest
import torch
from safetensors.torch import save_file

from fedelmy_node.bundles import finite
from fedelmy_node.bundles.check import check_bundle, check_manifest
from fedelmy_node.bundles.finite import find_nonfinite
from fedelmy_node.bundles.header import read_header
from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.errors import BundleError


def info(name, *shape, dtype="F32"):
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def saved(path, **tensors):
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("position", [0, 500, 999])
def test_finds_every_kind_of_nonfinite_value(tmp_path, monkeypatch, dtype, bad, position):
    monkeypatch.setattr(finite, "BLOCK_BYTES", 64)
    values = torch.linspace(-1, 1, 1000).to(dtype)
    values[position] = bad
    path = saved(tmp_path / "file", a=torch.ones(7), b=values, c=torch.full((3,), float("nan")))
    header = read_header(path)
    first = min(
        (span, info.name) for span, info in zip(header.spans, header.manifest, strict=True) if info.name != "a"
    )[1]
    assert find_nonfinite(path, header) == first


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_largest_and_smallest_numbers_are_finite(tmp_path, dtype):
    limits = torch.finfo(dtype)
    values = torch.tensor([limits.max, limits.min, limits.tiny, limits.smallest_normal, -0.0], dtype=dtype)
    path = saved(tmp_path / "file", a=values, empty=torch.zeros(0, dtype=dtype))
    assert find_nonfinite(path, read_header(path)) is None


def test_integers_are_finite_whatever_their_bits(tmp_path):
    path = saved(tmp_path / "file", a=torch.full((9,), -1), b=torch.full((9,), 255, dtype=torch.uint8))
    assert find_nonfinite(path, read_header(path)) is None


def test_a_file_that_shrinks_meanwhile(tmp_path):
    path = saved(tmp_path / "file", a=torch.ones(100))
    header = read_header(path)
    os.truncate(path, header.file_bytes - 1)
    with pytest.raises(BundleError, match="E-BUNDLE-FORMAT"):
        find_nonfinite(path, header)


def test_a_good_bundle_passes(tmp_path):
    path = saved(tmp_path / "file", **{"model/a": torch.ones(2, 3), "model/n": torch.tensor(3)})
    header = check_bundle(path, [info("model/n", dtype="I64"), info("model/a", 2, 3)])
    assert header.manifest == (info("model/a", 2, 3), info("model/n", dtype="I64"))


def test_a_difference_is_named_with_both_shapes(tmp_path):
    path = saved(tmp_path / "file", **{"model/a": torch.ones(2, 3), "model/x": torch.ones(1)})
    with pytest.raises(BundleError) as caught:
        check_bundle(path, [info("model/a", 2, 4), info("model/b", 5)])
    assert caught.value.code == "E-BUNDLE-MANIFEST"
    assert "model/a: F32[2, 3] instead of F32[2, 4]" in caught.value.message
    assert "model/b: nothing instead of F32[5]" in caught.value.message
    assert "model/x: F32[1] instead of nothing" in caught.value.message


def test_many_differences_are_counted():
    with pytest.raises(BundleError, match="and 7 more"):
        check_manifest([info(f"t{number}", 1) for number in range(10)], [])


def test_a_name_twice_is_a_difference():
    with pytest.raises(BundleError, match="twice"):
        check_manifest([info("t", 1), info("t", 1)], [info("t", 1)])


def test_a_nonfinite_bundle_is_refused_by_name(tmp_path):
    path = saved(tmp_path / "file", **{"model/a": torch.tensor([1.0, float("nan")])})
    with pytest.raises(BundleError) as caught:
        check_bundle(path, [info("model/a", 2)])
    assert caught.value.code == "E-BUNDLE-NONFINITE"
    assert "model/a" in caught.value.message
