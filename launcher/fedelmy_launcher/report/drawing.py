"""How figures are drawn: one style, one way to SVG text that can stand in a page beside others.

Colours are Okabe and Ito's, which differ for every kind of colour vision; line styles, markers and hatching say the
same again for black-and-white print. Texts come from other sites, so none is read as mathematics or as markup.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = [
    "Canvas",
    "drawing",
    "grid_of",
    "style_of",
    "label",
    "BLUE",
    "ORANGE",
    "GREEN",
    "RED",
    "SKY",
    "PURPLE",
    "GREY",
]

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
SKY, PURPLE, GREY = "#56b4e9", "#cc79a7", "#8c8c8c"
INK: Final = "#1f2933"
_COLOURS: Final = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, "#000000", "#7f6a00")
_DASHES: Final = ("-", "--", "-.", ":")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#52606d",
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "text.color": INK,
    "xtick.color": "#52606d",
    "ytick.color": "#52606d",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": "#d9dee3",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
_LOCK: Final = threading.Lock()
"""Matplotlib's settings are global, and the dashboard draws on several threads."""
_LABEL_CHARACTERS: Final = 24


class Canvas:
    """A figure under way; once its `drawing` is left, `svg` is its text."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(self.figure)
        self.svg = ""

    def axes(self, **options: Any) -> Axes:
        """The only axes of a figure that has one."""
        made: Axes = self.figure.add_subplot(**options)
        return made


@contextmanager
def drawing(name: str, title: str, *, width: float = 9.0, height: float = 3.0) -> Iterator[Canvas]:
    """A figure in inches; `name` is unique in its page, `title` is read out to those who cannot see it."""
    with _LOCK, mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter without a glyph is drawn by the browser
        canvas = Canvas(width, height)
        yield canvas
        out = io.StringIO()
        canvas.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    canvas.svg = _inline(out.getvalue(), title)


def _inline(svg: str, title: str) -> str:
    """The SVG element alone, without what would meet its likes in the page: ids of groups, style sheets, sizes."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    box = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', svg)
    width = float(box[1]) if box else 648.0
    share = min(100.0, width / 6.48)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="figure" role="img"'
        f' aria-label="{escape(title)}" {box[0] if box else ""} style="width:{share:.0f}%;height:auto">'
        f"<title>{escape(title)}</title>"
    )
    return opening + re.sub(r"\s*\n\s*", "\n", svg[svg.index(">") + 1 :]).strip()


def grid_of(canvas: Canvas, panels: int, columns: int, **options: Any) -> list[Axes]:
    """So many axes, row by row."""
    rows = -(-panels // columns)
    axes = canvas.figure.subplots(rows, columns, squeeze=False, **options)
    flat = [one for row in axes for one in row]
    for unused in flat[panels:]:
        unused.set_visible(False)
    return flat[:panels]


def style_of(number: int, many: int) -> dict[str, Any]:
    """Colour, dash and marker of the number-th line of many."""
    if many <= len(_COLOURS):
        colour: Any = _COLOURS[number % len(_COLOURS)]
    else:
        colour = mpl.colormaps["cividis"](0.92 * number / max(1, many - 1))
    return {
        "color": colour,
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }


def label(text: str, limit: int = _LABEL_CHARACTERS) -> str:
    """A name as axes and legends take it: short, and never one that a legend leaves out."""
    short = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return f" {short}" if short.startswith("_") else short
