"""The page of a report: it needs nothing from anywhere, says what happened, and believes no text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from fedelmy_launcher.cli.report import report
from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_launcher.view.report import charts, pool_charts
from fedelmy_launcher.view.report.byte_charts import bytes_against_paper
from fedelmy_launcher.view.report.page import page, read_history, write_page, write_report
from fedelmy_launcher.view.report.run_picture import run_picture
from fedelmy_launcher.view.report.sections import SECTIONS, section
from fedelmy_launcher.view.report.timeline import timeline
from fedelmy_node.config.decode import encode
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Training
from tests.support.federations import make_plan
from tests.support.story import CLASSES, HOSTILE, told_history, waiting_history

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def history() -> dict[str, Any]:
    encoded: dict[str, Any] = json.loads(json.dumps(told_history().encoded()))
    return encoded


@pytest.fixture(scope="module")
def html(history: dict[str, Any]) -> str:
    return page(history)


def test_it_needs_nothing_from_anywhere(html: str) -> None:
    reader = read(html)
    assert not {"script", "link", "iframe", "object", "embed", "img", "form", "base"} & {
        tag for tag, _ in reader.tags
    }
    policy = next(attrs["content"] for tag, attrs in reader.tags if attrs.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    for _, attrs in reader.tags:
        for name, value in attrs.items():
            assert not name.startswith("on"), "nothing is run"
            if name in ("href", "src", "xlink:href"):
                assert (value or "").startswith("#")
            elif not name.startswith("xmlns"):
                assert "//" not in (value or ""), (name, value)
    assert "url(http" not in html and "@import" not in html


def test_every_section_is_there_once(html: str) -> None:
    reader = read(html)
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert [name for name in ids if name in SECTIONS] == list(SECTIONS)
    assert len(ids) == len(set(ids)), "figures of one page must not share names"
    used = {(attrs.get("xlink:href") or "#")[1:] for tag, attrs in reader.tags if tag == "use"} - {
        ""
    }
    assert used <= set(ids)


def test_it_says_what_happened(html: str) -> None:
    text = " ".join(read(html).text.split())
    for words in (
        "Done in 44.0 s: the result was trained by 3 of 4 sites (skipped: south)",
        "it is correct on 81.1% of 111 test samples",
        "south was skipped (train.3@south)",
        "1 failed attempt",
        "E-TRANSFER-STALLED",
        "south did not answer",
        "(N-1)·M = 208.3 kB",
        "not disclosed",
        "What to do",
        "resumed from a checkpoint: pool member 2/3",
        "learning_rate",
        "cd" * 32,
        "failed attempt",
    ):
        assert words in text, words


def test_the_settings_of_the_training_are_listed(history: dict[str, Any]) -> None:
    training = Training(
        epochs=3, optimizer="sgd", momentum=0.9, schedule="cosine", class_weights={"ill": 2.0}
    )
    told = history | {"recipe": {"training": encode(training)}}
    text = " ".join(read(page(told)).text.split())
    for words in ("optimizersgd", "momentum0.9", "schedulecosine", "class_weightsill = 2.0"):
        assert words in text, words
    assert "nesterov" not in text, "what is not used is not listed"


def test_a_simulation_does_not_claim_that_the_launcher_saw_nothing(html: str) -> None:
    simulated = RunHistory(make_plan("north"), simulated=True).encoded()
    apart, together = "saw neither data nor weights", "from a simulation. It ran all sites in one"
    for told, wanted in ((html, (True, False)), (page(simulated), (False, True))):
        assert (apart in told, together in told) == wanted


def test_no_text_becomes_markup(html: str) -> None:
    reader = read(html)
    assert "script" not in {tag for tag, _ in reader.tags} and "b" not in {
        tag for tag, _ in reader.tags
    }
    assert HOSTILE in reader.text
    assert all(name in reader.text for name in CLASSES), (
        "also in figures, also what looks like mathematics"
    )


def test_figures_are_whole_svgs_that_are_always_the_same(
    history: dict[str, Any], html: str
) -> None:
    for draw in (
        timeline,
        pool_charts.pool_accuracies,
        pool_charts.pool_distances,
        charts.class_histograms,
        charts.feature_maps,
        bytes_against_paper,
        run_picture,
    ):
        svg = draw(history)
        assert svg is not None
        tree = ElementTree.fromstring(svg)
        assert tree.get("role") == "img" and tree.get("aria-label")
        assert svg in html
    curves = charts.site_curves(history["sites"][0])
    assert curves is not None and ElementTree.fromstring(curves).get("aria-label")
    assert charts.site_curves(history["sites"][2]) is None, "south told nothing"


def test_one_section_is_what_the_page_has(history: dict[str, Any], html: str) -> None:
    assert section(history, "warnings").html in html


@pytest.mark.parametrize(
    "made", [waiting_history(), RunHistory(make_plan("north"))], ids=["waiting", "unheard"]
)
def test_a_run_of_which_little_is_known(made: RunHistory) -> None:
    text = read(page(made.encoded())).text
    assert "The run has not started" in text


def test_a_wrong_clock_is_said() -> None:
    text = read(section(told_history(ahead=-90.0).encoded(), "summary").html).text
    assert "The clock of west is 90.0 s behind; its times are corrected here." in text


def test_a_clock_that_is_right_has_no_sign_of_being_behind() -> None:
    text = read(section(told_history(ahead=-0.01).encoded(), "settings").html).text
    assert "+0.0 s" in text and "-0.0 s" not in text


def test_the_page_can_be_drawn_again_from_its_data(
    tmp_path: Path, history: dict[str, Any], html: str
) -> None:
    write_report(history, tmp_path / "run.html", tmp_path / "run.json")
    assert (tmp_path / "run.html").read_text() == html
    assert read_history(tmp_path / "run.json") == history
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.html", "run.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "other"}',
        "\xff",
        "[" * 200_000,
        '{"format": "fedelmy-report/1", "seconds": NaN}',
        '{"format": "fedelmy-report/1", "bytes_sent": ' + "9" * 400 + "}",
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, "latin-1")
    with pytest.raises(ConfigError):
        read_history(tmp_path / "run.json")


def test_a_file_of_somebody_else_cannot_write_on_the_terminal(
    tmp_path: Path, history: dict[str, Any]
) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps(history | {"federation": "\x1b[2J\x1b]0;mine\x07"})
    )
    assert read_history(tmp_path / "run.json")["federation"].isprintable()


@pytest.mark.parametrize(
    "wrong", [{"bytes_sent": 10**400}, {"sites": [{}]}, {"warnings": [{"code": []}]}]
)
def test_a_history_that_was_edited_is_refused_in_plain_words(
    tmp_path: Path, history: dict[str, Any], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="incomplete"):
        write_page(history | wrong, tmp_path / "run.html")
    assert list(tmp_path.iterdir()) == []


def test_the_page_does_not_take_the_place_of_its_data(
    tmp_path: Path, history: dict[str, Any]
) -> None:
    data = tmp_path / "run.json"
    data.write_text(json.dumps(history))
    answer = CliRunner().invoke(report, ["--from", str(data), "--out", str(data)])
    assert isinstance(answer.exception, ConfigError)
    assert json.loads(data.read_text()) == history


@pytest.mark.parametrize(
    ("kinds", "advised"), [(["warning"], False), (["warning", "failed"], True), (["failed"], True)]
)
def test_skipping_unreadable_files_is_not_advised_where_it_is_in_effect(
    history: dict[str, Any], kinds: list[str], advised: bool
) -> None:
    """A site that skips them warns; one that refuses them fails."""
    lines = [history["warnings"][0] | {"kind": kind, "code": "E-DATA-UNREADABLE"} for kind in kinds]
    html = section({**history, "warnings": lines}, "warnings").html
    assert "E-DATA-UNREADABLE" in html and ("unreadable = " in html) == advised
    assert ("skips these files" in html) != advised
    # A trainer log that nobody knows names skipped files, details.log does not.
    assert ("fedelmy-node doctor" in html) != advised
