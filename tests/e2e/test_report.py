"""The report of a real run, as files and in a real browser: who was skipped and which hand-over was
cut are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.proxy import CountingProxy
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Done, launched
from tests.e2e.support.witness import Witness
from tests.support.browser import Visit, browser

NAMES = ("north", "south", "west")
PATIENCE_SECONDS = 3.0


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed(*NAMES)
    made.partition()
    return made


@pytest.fixture(scope="module")
def reported(bed: Bed) -> Iterator[Done]:
    """south dies while north trains; north's hand-over to west goes through a link that is cut
    once.
    """
    west = bed.sites["west"].start("--indices", "parts/west.json")
    south = bed.sites["south"].start(
        "--indices", "parts/south.json", "--peer", f"west={west.address}"
    )
    with CountingProxy(west.address) as link:
        peers = ("--peer", f"south={south.address}", "--peer", f"west={link.address}")
        bed.sites["north"].start("--indices", "parts/north.json", *peers)
        bed.write_file()
        text = bed.file.read_text().replace("epochs = 2", "epochs = 12")
        policy = f'seed = 3\non_unreachable = "skip"\npatience = "{PATIENCE_SECONDS:g}s"'
        bed.file.write_text(text.replace("seed = 3", policy))
        with launched(bed, "reported") as launcher:
            with Witness(bed.sites["north"], "reported").held("train.1@north"):
                south.kill()
                link.cut_at(link.to_target + 20_000)
            _, err = launcher.communicate(timeout=COMMAND_SECONDS)
        assert launcher.returncode == 20, err
        assert link.cuts >= 1
        yield bed.launch("report", "--run", "reported")


@pytest.fixture(scope="module")
def page(bed: Bed, reported: Done) -> Path:
    assert reported.code == 20, reported.err
    return bed.root / "reported.html"


def test_it_shows_who_was_skipped_and_what_was_retried(reported: Done, page: Path) -> None:
    assert (
        "skipped: south" in reported.out
        and "south did not answer: E-PEER-UNREACHABLE" in reported.out
    )
    assert "reported.html" in reported.out and "reported.json" in reported.out
    shown, history = page.read_text(), json.loads(page.with_suffix(".json").read_text())
    assert history["state"] == "done" and history["contributors"] == ["north", "west"]
    sites = {site["name"]: site for site in history["sites"]}
    assert sites["south"]["skipped"] and [span["what"] for span in sites["south"]["spans"]] == [
        "skipped"
    ]
    ways = {
        (way["sender"], way["receiver"]): way
        for way in history["transfers"]
        if way["carries"] == "train"
    }
    around, dead = ways["north", "west"], ways["north", "south"]
    assert around["state"] == "settled" and around["retries"], (
        "the link was cut in the middle of it"
    )
    assert dead["state"] == "closed" and dead["seconds"] is None
    for text in (
        "south was skipped",
        around["retries"][0]["code"],
        "not in the result",
        "failed attempt",
    ):
        assert text in shown, text
    for name in ("north", "west"):
        assert {"loading", "training", "evaluating"} <= {
            span["what"] for span in sites[name]["spans"]
        }
        members = next(step for step in sites[name]["steps"] if step["kind"] == "train")["members"]
        assert [len(member["epochs"]) for member in members if member["member"]] == [12, 12]


def test_from_its_data_the_same_page_is_drawn_without_any_site(bed: Bed, page: Path) -> None:
    done = bed.launch("report", "--from", "reported.json", "--out", "two.html", "--json")
    assert done.code == 20, done.err
    assert done.json["html"] == "two.html" and done.json["left_out"][0]["site"] == "south"
    assert (bed.root / "two.html").read_text() == page.read_text()


def test_a_run_that_nobody_knows_has_no_report(bed: Bed, reported: Done) -> None:
    done = bed.launch("report", "--run", "never-was")
    done.failed("E-RUN-UNKNOWN", done.code)
    assert not (bed.root / "never-was.html").exists()
    done = bed.launch("report", "--out", "nowhere/run.html")
    done.failed("E-CONFIG-VALUE", done.code)
    assert "--state" not in done.err and "nowhere is not a directory" in done.err


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with browser() as found:
        yield found


def test_the_report_shows_the_skipped_site_and_the_repeated_hand_over(
    page: Path, opened: Any
) -> None:
    visit = Visit(opened)
    visit.page.goto(page.as_uri())
    warnings = visit.page.inner_text("#warnings")
    assert "skipped" in warnings and "train.2@south" in warnings, warnings
    assert "retry" in warnings and "west" in warnings, warnings
    assert "south" in visit.page.inner_text("#summary"), "who is not in the result is said first"
    assert visit.page.locator("#timeline svg").count() == 1
    assert visit.page.locator("#curves svg").count() >= 2, (
        "the sites that trained have their curves"
    )
    assert visit.requests == [page.as_uri()], "the page needs nothing else"
    assert visit.errors == []
    visit.close()


def test_the_report_fits_a_narrow_window_and_prints(
    page: Path, opened: Any, tmp_path: Path
) -> None:
    visit = Visit(opened, viewport={"width": 600, "height": 900})
    visit.page.goto(page.as_uri())
    wide = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, "nothing has to be pushed aside to be read"
    paper = tmp_path / "report.pdf"
    visit.page.pdf(path=str(paper), format="A4")
    assert paper.read_bytes().startswith(b"%PDF") and paper.stat().st_size > 10_000
    visit.close()
