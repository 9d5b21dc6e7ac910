"""The check of received headers: what must pass, what must not, and that nothing but BundleError
comes out.
"""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from fedelmy_node.bundle import format as module
from fedelmy_node.bundle.format import parse_header, read_header
from fedelmy_node.domain.errors import BundleError, StoreError


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def parse(table, data_bytes=8):
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return parse_header(text, 8 + len(text) + data_bytes)


def write(path, table, data=b"\0" * 8):
    text = json.dumps(table).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_reads_what_safetensors_writes(tmp_path):
    tensors = {
        "b/x": torch.zeros(2, 3),
        "a/y": torch.zeros(4, dtype=torch.int64),
        "a/empty": torch.zeros(0, 5),
        "a/scalar": torch.tensor(1.0, dtype=torch.bfloat16),
    }
    save_file(tensors, tmp_path / "file", metadata={"key": "ä"})
    header = read_header(tmp_path / "file")
    assert [(t.name, t.dtype, t.shape) for t in header.manifest] == [
        ("a/empty", "F32", (0, 5)),
        ("a/scalar", "BF16", ()),
        ("a/y", "I64", (4,)),
        ("b/x", "F32", (2, 3)),
    ]
    assert header.metadata == {"key": "ä"}
    assert header.file_bytes == (tmp_path / "file").stat().st_size
    assert header.file_bytes - header.data_offset == 24 + 32 + 2


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"t": entry(dtype="F8_E4M3")}, "unknown type"),
        ({"t": entry(dtype=["F32"])}, "unknown type"),
        ({"t": entry(shape=[-2])}, "invalid shape"),
        ({"t": entry(shape=[True, 2])}, "invalid shape"),
        ({"t": entry(shape=[2.0])}, "invalid shape"),
        ({"t": entry(shape=[1] * 9)}, "invalid shape"),
        ({"t": entry(shape=[2**63])}, "invalid shape"),
        ({"t": entry(shape=[2**62] * 8)}, "do not agree"),
        ({"t": entry(shape=[3])}, "do not agree"),
        ({"t": entry(offsets=[8, 0])}, "invalid offsets"),
        ({"t": entry(offsets=[0, 8, 8])}, "invalid offsets"),
        ({"t": entry(offsets=[8, 16])}, "gap or overlap"),
        ({"t": entry(), "s": entry()}, "gap or overlap"),
        ({"t": entry(shape=[1], offsets=[0, 4])}, "the file has 8"),
        ({"t": entry(shape=[4], offsets=[0, 16])}, "the file has 8"),
        ({}, "the file has 8"),
        ({"t": entry() | {"more": 1}}, "an entry must have"),
        ({"t": [1]}, "an entry must have"),
        ({"": entry()}, "invalid tensor name"),
        ({"a\nb": entry()}, "invalid tensor name"),
        ({"\ud800": entry()}, "not UTF-8 text"),
        ({"n" * 2000: entry()}, "invalid tensor name"),
        ({"t": entry(), "__metadata__": {"a": 1}}, "not text"),
        ({"t": entry(), "__metadata__": {"a": "\udfff"}}, "not UTF-8 text"),
        ({"t": entry(), "__metadata__": []}, "not a table of at most"),
        (b'{"t": 1, "t": 1}', "twice"),
        (b'{"t": {"dtype": "F32", "dtype": "F32"}}', "twice"),
        (b'{"t": NaN}', "NaN is not valid JSON"),
        (b'{"t": ' + b"[" * 100_000, "not valid JSON"),
        (b'{"t": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"\xff": 1}', "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"[]", "does not begin"),
        (b"", "does not begin"),
    ],
)
def test_refuses(table, complaint):
    with pytest.raises(BundleError) as caught:
        parse(table)
    assert caught.value.code == "E-BUNDLE-FORMAT"
    assert complaint in caught.value.message
    assert len(caught.value.message) < 400


def test_padding_is_allowed():
    assert len(parse(json.dumps({"t": entry()}).encode() + b"   ").manifest) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        (10).to_bytes(8, "little") + b"{}",
        (2**63).to_bytes(8, "little") + b"{}",
        (module.MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}",
    ],
)
def test_files_that_are_too_short_for_what_they_claim(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BundleError, match="E-BUNDLE-FORMAT"):
        read_header(tmp_path / "file")


def test_limits_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_HEADER_BYTES", 10)
    with pytest.raises(BundleError, match="too long"):
        read_header(write(tmp_path / "file", {"t": entry()}))
    monkeypatch.setattr(module, "MAX_TENSORS", 1)
    with pytest.raises(BundleError, match="the limit is 1"):
        parse({"t": entry(), "s": entry()})


def test_a_missing_file_is_the_disks_fault(tmp_path):
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        read_header(tmp_path / "nothing")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
SIZES = st.integers(-1, 2**70) | st.integers(0, 20)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "I64", "U8", "?"]) | JSON,
        "shape": st.lists(SIZES, max_size=9) | JSON,
        "data_offsets": st.lists(SIZES, min_size=2, max_size=2) | JSON,
    }
)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 500))
def test_rubbish_is_never_anything_but_a_bundle_error(text, file_bytes):
    for candidate in (text, b"{" + text):
        try:
            parse_header(candidate, file_bytes)
        except BundleError as error:
            assert error.code == "E-BUNDLE-FORMAT"


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(st.text(max_size=8) | st.just("__metadata__"), ENTRIES | JSON, max_size=4),
    st.integers(0, 200),
)
def test_wild_headers_are_never_anything_but_a_bundle_error(table, data_bytes):
    try:
        header = parse(table, data_bytes)
    except BundleError as error:
        assert error.code == "E-BUNDLE-FORMAT"
    else:
        assert sum(span.end - span.begin for span in header.spans) == data_bytes


GOOD = json.dumps(
    {"__metadata__": {"fedelmy": "{}"}, "m/a": entry(), "m/b": entry("I64", (2, 1), (8, 24))}
).encode()


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_mutated_headers_are_never_anything_but_a_bundle_error(data):
    text = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(text) - 1))
        text[position : position + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        header = parse(bytes(text), 24)
    except BundleError as error:
        assert error.code == "E-BUNDLE-FORMAT"
    else:
        assert sum(span.end - span.begin for span in header.spans) == 24
