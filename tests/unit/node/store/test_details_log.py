"""What the log must not say is in details.log, and only there."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedelmy_node.cli.app import buffered_logging, configure_logging
from fedelmy_node.domain.errors import DataError
from fedelmy_node.store import details_log
from fedelmy_node.store.details_log import DetailsHandler, details_of


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    before, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:] = before
    logger.setLevel(level)


def log_of(root: logging.Logger, style: str, path: Path) -> io.StringIO:
    configure_logging(style, {"site": "north"})
    out = io.StringIO()
    handler = root.handlers[-1]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(out)
    root.handlers.insert(
        0, DetailsHandler(path)
    )  # before the log, which must not show what this one formatted
    return out


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_log_names_no_file(style: str, root: logging.Logger, tmp_path: Path) -> None:
    out = log_of(root, style, tmp_path / "details.log")
    error = DataError(
        "E-DATA-MISSING", "the data directory does not exist", private="/data/DOE-JANE"
    )
    logging.warning("refused: %s", error, extra={"run": "run-1", "private": error.private})
    place = Path("/data/DOE-JANE/x")
    try:
        place.read_bytes()
    except OSError:
        logging.exception("a fault")
    logging.info("all is well")
    text = out.getvalue()
    assert "DOE-JANE" not in text
    assert text.count("(more in details.log)") == 2 and "FileNotFoundError" in text
    entries = [json.loads(line) for line in (tmp_path / "details.log").read_text().splitlines()]
    assert entries[0]["private"] == "/data/DOE-JANE" and "DOE-JANE" in entries[1]["traceback"]
    assert len(entries) == 2 and (tmp_path / "details.log").stat().st_mode & 0o777 == 0o600
    assert [entry["private"] for entry in details_of(tmp_path / "details.log", "run-1")] == [
        "/data/DOE-JANE"
    ]


def test_it_stays_small_and_harms_nobody(
    root: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(details_log, "_LIMIT_BYTES", 2000)
    log_of(root, "text", tmp_path / "details.log")
    for number in range(100):
        logging.warning("again", extra={"run": "run-1", "private": f"/data/{number}"})
    assert (
        sum(path.stat().st_size for path in tmp_path.iterdir()) < 5000
        and len(list(tmp_path.iterdir())) == 2
    )
    assert details_of(tmp_path / "details.log", "run-1")[-1]["private"] == "/data/99"
    root.handlers[0] = DetailsHandler(tmp_path / "none" / "details.log")
    logging.warning("a disk that is gone", extra={"private": "/data"})


def test_times_are_utc_in_both_formats(
    root: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        begins = {
            "text": "1970-01-02 00:00:00.250Z INFO    north run-1: ",
            "json": '{"time": "1970-01-02T00:00:00.250Z"',
        }
        for style, begin in begins.items():
            out = log_of(root, style, tmp_path / "details.log")
            record = logging.LogRecord("x", logging.INFO, "f", 1, "hello", None, None)
            record.created, record.msecs, record.run = 86400.25, 250.0, "run-1"
            root.handle(record)
            assert out.getvalue().startswith(begin), out.getvalue()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_what_is_logged_before_the_site_is_known_has_its_name(
    root: logging.Logger, tmp_path: Path
) -> None:
    with buffered_logging():
        logging.warning("the certificate expires soon")
        out = log_of(root, "json", tmp_path / "details.log")
    assert json.loads(out.getvalue())["site"] == "north"


def test_what_is_buffered_logging_is_not_lost_if_there_is_an_error(
    root: logging.Logger, tmp_path: Path
) -> None:
    out = log_of(root, "text", tmp_path / "details.log")
    with pytest.raises(ValueError, match="wrong"), buffered_logging():
        logging.warning("this came before it")
        raise ValueError("wrong")
    assert "this came before it" in out.getvalue()
