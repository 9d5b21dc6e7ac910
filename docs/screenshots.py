"""Make docs/images/*.png: report and dashboard of a real federation on this machine, in a real
browser.

Run it with `make screenshots`; it needs Chromium and takes about two minutes on two idle cores.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from PIL import Image
from playwright.sync_api import sync_playwright

from fedelmy_launcher.control.demo_sites import Daemons, DemoFederation

ROOT: Final = Path(__file__).parent
IMAGES: Final = ROOT / "images"
RUN: Final = "xray-2027-03"
EPOCHS: Final = 30
"""Of every pool member: long enough to be seen."""
WIDTH, HEIGHT = 1200, 900
LONG_MS: Final = 180_000
MOST_BYTES: Final = 290_000


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedelmy_launcher", *arguments]


@contextmanager
def dashboard(directory: Path) -> Iterator[str]:
    served = subprocess.Popen(
        command("dashboard", "--no-open", "--json"),
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert served.stdout is not None
    try:
        yield json.loads(served.stdout.readline())["url"]
    finally:
        served.send_signal(signal.SIGINT)
        served.wait(30)


@contextmanager
def browser() -> Iterator[Any]:
    path = next(
        (
            found
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (found := shutil.which(name))
        ),
        None,
    )
    if path is None:
        raise click.ClickException("there is no chromium; Debian: apt-get install chromium")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=flags)
        try:
            yield opened
        finally:
            opened.close()


def keep(raw: bytes, name: str) -> None:
    """As small as it gets without changing a colour; with a palette only if that is too large."""
    path = IMAGES / name
    with Image.open(io.BytesIO(raw)) as image:
        exact = image.convert("RGB")
    exact.save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        exact.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            path, optimize=True
        )
    click.echo(f"{name:<24} {path.stat().st_size // 1000} kB")


def live(page: Any, directory: Path) -> None:
    """The dashboard while the third site trains, and at the end."""
    running = subprocess.Popen(
        command("run", "--run", RUN, "--json"), cwd=directory, stdout=subprocess.DEVNULL
    )
    page.wait_for_selector(f"#run-name:has-text('{RUN}')", timeout=LONG_MS)
    third = '.card[data-site="south"]'
    page.wait_for_selector(f'{third} .doing:has-text("pool member 2")', timeout=LONG_MS)
    keep(page.screenshot(), "dashboard-running.png")
    page.wait_for_selector("#run-state:has-text('done')", timeout=LONG_MS)
    running.wait()
    page.wait_for_function(
        """() => document.querySelector('[data-section="evaluation"] .drawn')?.shadowRoot.querySelector("table")""",
        timeout=LONG_MS,
    )
    page.wait_for_timeout(2500)  # the last figures, and the model's last way
    keep(
        page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": 1900}, full_page=True),
        "dashboard-ended.png",
    )


def report(page: Any, directory: Path) -> None:
    """The top of the page, and its figures."""
    html = directory / "report.html"
    subprocess.run(
        command("report", "--run", RUN, "--out", str(html)),
        cwd=directory,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    page.goto(html.as_uri())
    keep(page.screenshot(), "report-top.png")
    top = page.locator("#curves").bounding_box()
    area = {"x": 0, "y": top["y"] - 10, "width": WIDTH, "height": 1700}
    keep(page.screenshot(clip=area, full_page=True), "report-figures.png")


@click.command()
def main() -> None:
    """Make the pictures of the documentation."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedelmy-screenshots-") as place:
        directory = Path(place) / "federation"
        directory.mkdir()
        federation = DemoFederation(directory, seed=0)
        federation.make()
        with Daemons(federation) as daemons:
            federation.write_file(daemons.start())
            text = federation.file.read_text("utf-8").replace("epochs = 8", f"epochs = {EPOCHS}")
            federation.file.write_text(text.replace('name = "demo"', 'name = "xray"'), "utf-8")
            with browser() as opened, dashboard(directory) as url:
                page = opened.new_page(
                    viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light"
                )
                page.goto(url)
                live(page, directory)
                report(page, directory)


if __name__ == "__main__":
    main()
