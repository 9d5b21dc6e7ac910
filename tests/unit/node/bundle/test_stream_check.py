"""The check of a bundle that arrives says exactly what the check of the file says, wherever the
blocks end.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedelmy_node.bundle.format import ITEM_BYTES, KEY, longest_header, metadata_text, parse_header
from fedelmy_node.bundle.verification import (
    MERGED_SAMPLES,
    TRAINED_SAMPLES,
    StreamCheck,
    check_bundle,
)
from fedelmy_node.domain.artifact import TensorInfo
from fedelmy_node.domain.errors import BundleError

NONFINITE = {
    "F16": [0x7C00, 0xFC00, 0x7E00],
    "BF16": [0x7F80, 0xFF80, 0x7FC1],
    "F32": [0x7F800000, 0xFFC00000],
    "F64": [0x7FF0 << 48, 0xFFF8 << 48],
}
EXPONENT_BITS = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000, "F64": 0x7FF0 << 48}

tensors = st.lists(
    st.tuples(st.sampled_from(sorted(ITEM_BYTES)), st.lists(st.integers(0, 9), max_size=3)),
    min_size=0,
    max_size=6,
)


def make(
    draw: st.DataObject, shapes: list[tuple[str, list[int]]]
) -> tuple[bytes, tuple[TensorInfo, ...]]:
    """A bundle of random values, some of them perhaps not finite, with a header of any length."""
    random = np.random.default_rng(draw.draw(st.integers(0, 2**32)))
    table, data = {}, bytearray()
    for number, (dtype, shape) in enumerate(shapes):
        count, item = math.prod(shape), ITEM_BYTES[dtype]
        values = [int.from_bytes(random.bytes(item), "little") for _ in range(count)]
        if dtype in EXPONENT_BITS:
            values = [
                value & ~(EXPONENT_BITS[dtype] & -EXPONENT_BITS[dtype]) for value in values
            ]  # finite
            if count and draw.draw(st.booleans()):
                values[draw.draw(st.integers(0, count - 1))] = draw.draw(
                    st.sampled_from(NONFINITE[dtype])
                )
        begin = len(data)
        data += b"".join(value.to_bytes(item, "little") for value in values)
        table[f"t{draw.draw(st.integers(0, 9))}{number}"] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [begin, len(data)],
        }
    metadata = {KEY: metadata_text(table, {})}
    text = json.dumps({"__metadata__": metadata, **table}).encode() + b" " * draw.draw(
        st.integers(0, 9)
    )
    bundle = len(text).to_bytes(8, "little") + text + bytes(data)
    return bundle, parse_header(text, len(bundle)).manifest


def by_stream(bundle: bytes, sizes: list[int], manifest: tuple[TensorInfo, ...]) -> str | None:
    check, position, number = StreamCheck(len(bundle), manifest, ""), 0, 0
    try:
        while position < len(bundle):
            size = sizes[number % len(sizes)]
            check.feed(bundle[position : position + size])
            position, number = position + size, number + 1
        check.finish()
    except BundleError as error:
        return str(error)
    return None


def by_file(bundle: bytes, manifest: tuple[TensorInfo, ...]) -> str | None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bundle"
        path.write_bytes(bundle)
        try:
            check_bundle(path, manifest, "")
        except BundleError as error:
            return str(error)
    return None


@given(draw=st.data(), shapes=tensors, sizes=st.lists(st.integers(1, 200), min_size=1, max_size=5))
def test_both_checks_agree(
    draw: st.DataObject, shapes: list[tuple[str, list[int]]], sizes: list[int]
) -> None:
    bundle, manifest = make(draw, shapes)
    assert by_stream(bundle, sizes, manifest) == by_file(bundle, manifest)


@given(draw=st.data(), shapes=tensors, sizes=st.lists(st.integers(1, 200), min_size=1, max_size=5))
def test_both_checks_agree_about_what_is_damaged(
    draw: st.DataObject, shapes: list[tuple[str, list[int]]], sizes: list[int]
) -> None:
    bundle, manifest = make(draw, shapes)
    spoiled = bytearray(bundle[: draw.draw(st.integers(0, len(bundle)))])
    for _ in range(draw.draw(st.integers(0, 2))):
        if spoiled:
            spoiled[draw.draw(st.integers(0, len(spoiled) - 1))] = draw.draw(st.integers(0, 255))
    expected = tuple(reversed(manifest)) if draw.draw(st.booleans()) else manifest[1:]
    assert by_stream(bytes(spoiled), sizes, expected) == by_file(bytes(spoiled), expected)


def test_another_model_is_refused_with_the_header() -> None:
    text = json.dumps({"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    head = len(text).to_bytes(8, "little") + text
    check = StreamCheck(len(head) + 4000, (TensorInfo(name="b", dtype="F32", shape=(1000,)),), "")
    check.feed(head[:-1])
    with pytest.raises(BundleError, match="E-BUNDLE-MANIFEST"):
        check.feed(head[-1:])


def test_a_header_longer_than_these_tensors_need_is_refused_with_its_length() -> None:
    """Otherwise every arriving bundle could make the daemon hold 32 MiB."""
    manifest = (TensorInfo(name="b", dtype="F32", shape=(1000,)),)
    assert longest_header(manifest) < 70_000
    check = StreamCheck(64 << 20, manifest, "")
    with pytest.raises(BundleError, match="too long"):
        check.feed((100_000).to_bytes(8, "little"))


def count(samples: int) -> tuple[bytes, tuple[TensorInfo, ...]]:
    table = {"seen/samples": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}
    text = json.dumps({"__metadata__": {KEY: metadata_text(["seen"], {})}, **table}).encode()
    bundle = len(text).to_bytes(8, "little") + text + samples.to_bytes(8, "little", signed=True)
    return bundle, (TensorInfo(name="seen/samples", dtype="I64", shape=(1,)),)


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_a_count_of_samples_must_be_one(block: int) -> None:
    for samples in (0, 1, 2**53):
        assert by_stream(count(samples)[0], [block], count(samples)[1]) is None
    for samples in (-1, 2**53 + 1, -(2**63)):
        assert "invalid count of training samples" in str(
            by_stream(count(samples)[0], [block], count(samples)[1])
        )


def test_only_a_model_that_was_trained_since_the_last_merge_has_seen_samples() -> None:
    for samples, allowed in ((0, MERGED_SAMPLES), (1, TRAINED_SAMPLES)):
        bundle, manifest = count(samples)
        StreamCheck(len(bundle), manifest, "", allowed).feed(bundle)
        wrong, _ = count(1 - samples)
        with pytest.raises(BundleError, match="invalid count of training samples"):
            StreamCheck(len(wrong), manifest, "", allowed).feed(wrong)
