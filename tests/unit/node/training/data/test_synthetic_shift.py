"""The synthetic shift: four domains of any source, always the same; and sources that stay open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedelmy_node.domain.errors import DataError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.site_data import open_data
from fedelmy_node.training.data.source_cache import cached_sources
from fedelmy_node.training.data.sources import RawData, load_source
from fedelmy_node.training.data.synthetic_shift import DOMAINS, mixed
from fedelmy_node.training.job import DataSpec
from tests.support.small_recipes import task


def domain(name: str) -> RawData:
    return load_source(parse_source(f"shifted:{name}:digits"))


def everything(raw: RawData) -> np.ndarray:
    return raw.pool.images.read(np.arange(len(raw.pool.labels)))


def test_the_domains_share_no_image_and_leave_none_out() -> None:
    whole = load_source(parse_source("digits"))
    labels = np.zeros(len(whole.pool.labels), np.int64)
    for number, name in enumerate(DOMAINS):
        labels[number::4] = domain(name).pool.labels
    assert np.array_equal(labels, whole.pool.labels)


def test_what_is_done_to_an_image(tmp_path: Path) -> None:
    whole = everything(load_source(parse_source("digits")))
    assert np.array_equal(everything(domain("plain")), whole[0::4])
    assert np.array_equal(everything(domain("inverted")), 255 - whole[2::4])
    halves = np.zeros((8, 6, 6, 3), np.uint8)
    halves[:, :, 3:] = 200
    np.savez(tmp_path / "halves.npz", images=halves, labels=np.zeros(8, np.int64))
    edges = everything(load_source(parse_source(f"shifted:edges:npz:{tmp_path}/halves.npz")))
    assert edges.shape == (2, 6, 6, 3)  # a dark line on white
    assert (edges[..., 2:4, :] == 0).all() and (edges[..., [0, 1, 4, 5], :] == 255).all()
    blurred = everything(
        load_source(parse_source(f"shifted:blurred:npz:{tmp_path}/halves.npz"))
    ).astype(float)
    assert (
        blurred[..., 0, :].mean()
        < blurred[..., 2, :].mean()
        < blurred[..., 3, :].mean()
        < blurred[..., 5, :].mean()
    )


def test_an_image_is_the_same_however_it_is_read() -> None:
    for name in DOMAINS:
        raw, whole = domain(name), everything(domain(name))
        alone = [raw.pool.images.read(np.array([position]))[0] for position in (0, 5, 100)]
        assert np.array_equal(np.stack(alone), whole[[0, 5, 100]])


def test_the_mixed_source_has_the_images_of_all_domains() -> None:
    whole = domain("mixed")
    images = everything(whole)
    assert images.dtype == np.uint8
    for name in DOMAINS:
        own = domain(name)
        source, places = mixed(f"shifted:{name}:digits", np.arange(len(own.pool.labels)))
        assert source == "shifted:mixed:digits"
        assert np.array_equal(images[places], everything(own))
        assert np.array_equal(whole.pool.labels[places], own.pool.labels)


def test_mistakes_are_told() -> None:
    with pytest.raises(DataError, match="no domain of that name") as caught:
        domain("cubist")
    assert "plain, blurred, inverted, edges" in caught.value.hint
    with pytest.raises(DataError, match="unknown kind of data"):
        load_source(parse_source("shifted:plain:digit"))


def test_kept_sources_give_the_same_samples_and_read_every_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        folder = tmp_path / str(number % 2)
        folder.mkdir(exist_ok=True)
        Image.new("L", (8, 8), 20 * number).save(folder / f"{number}.png")
    spec, site = DataSpec(source=f"imagefolder:{tmp_path}"), SiteName("north")
    before = open_data(spec, task(), seed=1, site=site)
    with cached_sources():
        opened = open_data(spec, task(), seed=1, site=site)
        for path in tmp_path.rglob("*.png"):
            path.write_bytes(b"")
        again = open_data(spec, task(), seed=1, site=site)
        with cached_sources():  # an inner one keeps what the outer one has
            inner = open_data(spec, task(), seed=1, site=site)
    for data in (opened, again, inner):
        for part in ("train", "validation", "test"):
            assert np.array_equal(getattr(data, part).images, getattr(before, part).images)
    with pytest.raises(DataError):
        open_data(spec, task(), seed=1, site=site)
