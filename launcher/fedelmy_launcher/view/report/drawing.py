"""Draw figures in one style, as SVG that can be embedded in a page with others.

The colours are Okabe and Ito's colour-blind safe palette; line styles, markers and hatching repeat
the information for black-and-white print. Labels come from other sites and are never read as
mathematics or markup.
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

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
SKY, PURPLE, GREY = "#56b4e9", "#cc79a7", "#8c8c8c"
INK: Final = "#1f2933"
_COLOURS: Final = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, "#000000", "#7f6a00")
_DASHES: Final = ("-", "--", "-.", ":")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
Style = dict[str, Any]
"""Keyword arguments for matplotlib."""
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
"""Matplotlib's settings are global; the dashboard draws on several threads."""
_LABEL_CHARACTERS: Final = 24


class Canvas:
    """A figure; `svg` is set when its `drawing` ends."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(self.figure)
        self.svg = ""

    def axes(self, **options: Any) -> Axes:
        made: Axes = self.figure.add_subplot(**options)
        return made


@contextmanager
def drawing(name: str, title: str, *, width: float = 9.0, height: float = 3.0) -> Iterator[Canvas]:
    """A figure, sized in inches; `name` is unique in its page, `title` is for screen readers."""
    with _LOCK, mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing glyphs: the browser draws the text
        canvas = Canvas(width, height)
        yield canvas
        out = io.StringIO()
        canvas.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    canvas.svg = _inline(out.getvalue(), title)


def _inline(svg: str, title: str) -> str:
    """The SVG element without ids, style sheets and sizes, which would clash in a page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    box = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', svg)
    width = float(box[1]) if box else 648.0
    share = min(100.0, width / 6.48)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' class="figure" role="img" aria-label="{escape(title)}" {box[0] if box else ""}'
        f' style="width:{share:.0f}%;height:auto"><title>{escape(title)}</title>'
    )
    return opening + re.sub(r"\s*\n\s*", "\n", svg[svg.index(">") + 1 :]).strip()


def grid_of(canvas: Canvas, panels: int, columns: int, **options: Any) -> list[Axes]:
    """The axes of a grid, row by row."""
    rows = -(-panels // columns)
    axes = canvas.figure.subplots(rows, columns, squeeze=False, **options)
    flat = [one for row in axes for one in row]
    for unused in flat[panels:]:
        unused.set_visible(False)
    return flat[:panels]


def mark_undisclosed(axes: Axes) -> None:
    place: Style = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, "not disclosed", style="italic", **place)
    axes.set_xticks([])


def style_of(number: int, many: int) -> Style:
    """Colour, dash and marker of the number-th of `many` lines."""
    colour: Any = _COLOURS[number % len(_COLOURS)]
    if many > len(_COLOURS):
        colour = mpl.colormaps["cividis"](0.92 * number / max(1, many - 1))
    dash, marker = _DASHES[number % len(_DASHES)], _MARKERS[number % len(_MARKERS)]
    return {"color": colour, "linestyle": dash, "marker": marker}


def label(text: str, limit: int = _LABEL_CHARACTERS) -> str:
    """A short name for axes and legends; legends ignore names that begin with `_`."""
    short = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return f" {short}" if short.startswith("_") else short
