"""The report in a real browser, from a file: a run with a skipped site and a hand-over that had to be repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proxy import CountingProxy
from testbed import Bed, launched

from browser import Visit, browser

NAMES = ("north", "south", "west")
RUN = "troubled"
LONGEST_SECONDS = 150.0
INTO_THE_BUNDLE = 30_000
"""Bytes after the training began: more than news between sites, less than a bundle of 69 kB."""


@pytest.fixture(scope="module")
def written(make_bed: Callable[..., Bed]) -> Iterator[Path]:
    """A report of a run in which south died, and the way around it, to west, was cut once."""
    bed = make_bed(*NAMES)
    bed.partition()
    west = bed.sites["west"].start("--indices", "parts/west.json")
    with CountingProxy(west.address) as proxy:
        south = bed.sites["south"].start("--indices", "parts/south.json", "--peer", f"west={proxy.address}")
        peers = ["--peer", f"south={south.address}", "--peer", f"west={proxy.address}"]
        bed.sites["north"].start("--indices", "parts/north.json", *peers)
        bed.write_file()
        text = bed.file.read_text().replace("epochs = 2", "epochs = 30")
        bed.file.write_text(text.replace("seed = 3", 'seed = 3\non_unreachable = "skip"\npatience = "3s"'))
        with launched(bed, RUN) as launcher:
            assert launcher.stdout is not None
            next(line for line in launcher.stdout if json.loads(line).get("event", {}).get("kind") == "epoch")
            south.kill()
            proxy.cut_at(proxy.to_target + INTO_THE_BUNDLE)
            _, err = launcher.communicate(timeout=LONGEST_SECONDS)
        assert launcher.returncode == 20, err
        assert proxy.cuts == 1
        page = bed.root / "troubled.html"
        done = bed.launch("report", "--run", RUN, "--out", str(page))
        assert done.code == 20, done.err
        yield page


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with browser() as found:
        yield found


def test_the_report_shows_the_skipped_site_and_the_repeated_hand_over(written: Path, opened: Any) -> None:
    visit = Visit(opened)
    visit.page.goto(written.as_uri())
    warnings = visit.page.inner_text("#warnings")
    assert "skipped" in warnings and "train.2@south" in warnings, warnings
    assert "retry" in warnings and "west" in warnings, warnings
    assert "south" in visit.page.inner_text("#summary"), "who is not in the result is said first"
    assert visit.page.locator("#timeline svg").count() == 1
    assert visit.page.locator("#curves svg").count() >= 2, "the sites that trained have their curves"
    assert visit.requests == [written.as_uri()], "the page needs nothing else"
    assert visit.errors == []
    visit.close()


def test_the_report_fits_a_narrow_window_and_prints(written: Path, opened: Any, tmp_path: Path) -> None:
    visit = Visit(opened, viewport={"width": 600, "height": 900})
    visit.page.goto(written.as_uri())
    wide = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, "nothing has to be pushed aside to be read"
    paper = tmp_path / "report.pdf"
    visit.page.pdf(path=str(paper), format="A4")
    assert paper.read_bytes().startswith(b"%PDF") and paper.stat().st_size > 10_000
    visit.close()
