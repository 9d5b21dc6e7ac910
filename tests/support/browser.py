"""A real browser for tests: headless Chromium as the system has it, driven by playwright. Nothing
is downloaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """Where the browser is. Without one the test is skipped, unless FEDELMY_BROWSER=required."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        why = f"there is no browser: none of {', '.join(NAMES)} (Debian: apt-get install chromium)"
        if os.environ.get("FEDELMY_BROWSER") == "required":
            pytest.fail(why)
        pytest.skip(why)
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A browser without a window."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    # The sandbox needs an unprivileged user; pages here are our own.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=path, args=[*flags, "--disable-dev-shm-usage"]
        )
        try:
            yield opened
        finally:
            opened.close()


class Visit:
    """One page, and what it did: every request, and every error in its scripts."""

    def __init__(self, opened: Any, **options: Any) -> None:
        self.page = opened.new_page(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.loads = 0
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console",
            lambda line: self.errors.append(line.text) if "Content Security" in line.text else None,
        )
        self.page.on("load", lambda _: setattr(self, "loads", self.loads + 1))

    def close(self) -> None:
        self.page.close()
