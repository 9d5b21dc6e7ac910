"""The dashboard in a real browser, with real sites: what an operator sees, and who else cannot."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, launched
from tests.support.browser import Visit, browser

NAMES = ("north", "south", "west")
LONG_MS = 600_000
WATCHER = """
window.seen = {}; window.marked = true;
new MutationObserver(() => {
  for (const card of document.querySelectorAll(".card")) {
    const words = (window.seen[card.dataset.site] ??= []), now = card.querySelector(".pill").textContent.slice(2);
    if (words.at(-1) !== now) words.push(now);
  }
}).observe(document, {subtree: true, childList: true, characterData: true});
"""


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed(*NAMES)
    made.partition()
    made.start_chain()
    return made


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with browser() as found:
        yield found


class Served:
    """A dashboard as a child process."""

    def __init__(self, bed: Bed, *arguments: str, token: str | None = None) -> None:
        env = os.environ | ({"FEDELMY_DASHBOARD_TOKEN": token} if token else {})
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fedelmy_launcher",
                "dashboard",
                "--no-open",
                "--json",
                *arguments,
            ],
            cwd=bed.root,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url: str = json.loads(self.process.stdout.readline())["url"]

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=COMMAND_SECONDS)
        assert "Traceback" not in err, err
        return self.process.returncode


@contextmanager
def dashboard(bed: Bed, *arguments: str) -> Iterator[str]:
    served = Served(bed, *arguments)
    try:
        yield served.url
    finally:
        assert served.end() == 0, "Ctrl-C is how it ends"


@pytest.fixture
def visit(opened: Any) -> Iterator[Visit]:
    made = Visit(opened)
    yield made
    made.close()
    assert made.errors == []


def write(bed: Bed, epochs: int) -> None:
    bed.write_file()
    bed.file.write_text(bed.file.read_text().replace("epochs = 2", f"epochs = {epochs}"))


def pill(site: str, word: str) -> str:
    return f'.card[data-site="{site}"] .pill:has-text("{word}")'


def test_a_run_is_shown_from_its_beginning_to_its_end_without_a_reload(
    bed: Bed, visit: Visit
) -> None:
    write(bed, epochs=40)
    page = visit.page
    page.add_init_script(WATCHER)
    with dashboard(bed) as url:
        page.goto(url)
        page.wait_for_selector("text=No runs yet.", timeout=LONG_MS)
        with launched(bed, "first") as launcher:
            page.wait_for_selector('a[data-run="first"]', timeout=LONG_MS)
            page.wait_for_selector("#run-state:has-text('done')", timeout=LONG_MS)
            out, _ = launcher.communicate(timeout=COMMAND_SECONDS)
        result = json.loads(out.splitlines()[-1])
        page.wait_for_selector(f"#result:has-text('{result['bundle_sha256']}')", timeout=LONG_MS)
        assert f"{100 * result['accuracy']:.1f}%" in page.inner_text("#result")
        for site in NAMES:
            page.wait_for_selector(pill(site, "done"), timeout=LONG_MS)
        seen = page.evaluate("window.seen")
        assert all(seen[site][-1] == "done" for site in NAMES), seen
        assert "training" in seen[NAMES[-1]], (
            f"a browser has the time of two sites to begin: {seen}"
        )
        assert page.evaluate("window.marked") is True and visit.loads == 1
        assert page.locator(".graph .edge.done:not(.deliver)").count() == len(NAMES) - 1
        assert page.locator(".graph .edge.done.deliver").count() == len(NAMES) - 1
        log = page.inner_text("#lines")
        assert all(f"received {size} from" in log for size in ("69.4 kB",)), log
        assert "run done" in log
        assert [entry for entry in visit.requests if not entry.startswith((url, "data:"))] == []


@pytest.mark.full
def test_a_site_that_goes_down_is_shown_and_comes_back(bed: Bed, visit: Visit) -> None:
    write(bed, epochs=400)
    page, west = visit.page, bed.sites["west"]
    with dashboard(bed, "--at", bed.sites["north"].address) as url, launched(bed, "second"):
        page.goto(f"{url}#second")
        page.wait_for_selector(
            '.card[data-site="north"] .doing:has-text("pool member 1")', timeout=LONG_MS
        )
        assert page.inner_text('.card[data-site="west"] .doing').startswith("waiting for south")
        west.kill()
        page.wait_for_selector(pill("west", "no answer"), timeout=LONG_MS)
        assert "E-PEER-UNREACHABLE" in page.inner_text('.card[data-site="west"]')
        west.start("--indices", "parts/west.json", listen=west.address)
        page.wait_for_selector(pill("west", "waiting"), timeout=LONG_MS)
        assert page.locator("#lines li:has-text('answers again')").count() >= 1
        bed.launch("cancel", "--run", "second").ok()
        page.wait_for_selector("#run-state:has-text('cancelled')", timeout=LONG_MS)
        assert visit.loads == 1


def test_the_page_reconnects_when_the_dashboard_is_started_again(bed: Bed, visit: Visit) -> None:
    token = "a-token-that-stays-the-same"
    first = Served(bed, token=token)
    visit.page.goto(first.url)
    visit.page.wait_for_selector("#live[data-state=on]", timeout=LONG_MS)
    visit.page.wait_for_selector("#run-name:not(:empty)", timeout=LONG_MS)
    assert first.end() == 0
    visit.page.wait_for_selector("#live[data-state=off]", timeout=LONG_MS)
    second = Served(bed, "--port", str(urlsplit(first.url).port), token=token)
    try:
        assert second.url == first.url
        visit.page.wait_for_selector("#live[data-state=on]", timeout=LONG_MS)
        assert visit.loads == 1
    finally:
        assert second.end() == 0


def test_only_who_knows_the_address_may_read_and_nobody_may_write(bed: Bed) -> None:
    with dashboard(bed) as url:
        place = urlsplit(url)

        def ask(method: str, path: str, host: str = "localhost") -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=60)
            connection.request(method, path, headers={"Host": host})
            answer = connection.getresponse()
            answer.read() if path != f"{place.path}events" else None
            connection.close()
            return answer

        page = ask("GET", place.path)
        assert page.status == 200
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert (
            page.headers["Cache-Control"] == "no-store"
            and page.headers["X-Content-Type-Options"] == "nosniff"
        )
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert ask("GET", place.path, host="127.0.0.1:8080").status == 200, (
            "a tunnel has another port"
        )
        assert ask("HEAD", place.path).status == 200
        for path in (
            "/",
            "/wrong/",
            "/wrong/events",
            place.path[:-2] + "/",
            place.path + "../etc",
            place.path + "x",
        ):
            assert ask("GET", path).status == 404, path
        for host in ("evil.example", f"localhost.evil.example:{place.port}", ""):
            assert ask("GET", place.path, host=host).status == 421, host
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            assert ask(method, place.path).status == 405, method


def test_a_secret_that_could_be_guessed_is_refused(bed: Bed) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedelmy_launcher", "dashboard", "--no-open"],
        cwd=bed.root,
        env=os.environ | {"FEDELMY_DASHBOARD_TOKEN": "short"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "E-CONFIG-VALUE" in done.stderr, done.stderr
