"""How every picture looks: sizes, colours, clean axes. Matplotlib's objects only, never its global state."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dflash.results.formats import plain_text
from dflash.results.summary import CellSummary, RunSummary
from dflash.results.titles import parts_beside_load, short_load_words

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASELINE_COLOUR = "#8c96a3"
INK = "#22303c"
FAINT = "#d9dee3"
REFERENCE = "#c0392b"
WIDTH_INCHES = 8.0
_DPI = 150
_MAX_PIXELS = 30_000  # of a side: what a PNG's readers take
_LEGEND_CHAR_INCHES = 0.085
_LEGEND_HANDLE_INCHES = 0.75
Dash: TypeAlias = Literal["-"] | tuple[float, tuple[float, ...]]  # a line's: whole, or of dots and gaps
Colour: TypeAlias = tuple[float, float, float, float] | str
_LABEL_WIDTH = 30

# Behind words that may lie on a grid line or a reference line.
WORD_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}

# Applied with matplotlib.rc_context while a picture is made and drawn.
STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa5b1",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}


def new_figure(height: float, title: str, subtitle: str = "", width: float = WIDTH_INCHES) -> Figure:
    """An empty figure with its title at the left; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    columns = int(width * 11.5)
    title = "\n".join(wrapped(line, columns) for line in title.splitlines())
    text = title + (f"\n{wrapped(subtitle, columns)}" if subtitle else "")
    figure.suptitle(text, x=0.012, ha="left", fontsize=11.5)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG file, without a time stamp: equal numbers give equal files.

    A sign that the font lacks is drawn as an empty box; the tables beside the picture have the words.
    """
    buffer = io.BytesIO()
    dpi = min(_DPI, _MAX_PIXELS / max(figure.get_size_inches()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def wrapped(text: str, width: int = _LABEL_WIDTH) -> str:
    """One line or more of at most `width` characters; long names break where they must."""
    return "\n".join(textwrap.wrap(plain_text(text), width, break_on_hyphens=True)) or "-"


def arm_colours(summary: RunSummary) -> dict[str, Colour]:
    """Arm label -> colour: grey for the baseline, one sequence for the others, the same in every picture."""
    import matplotlib

    labels = list(dict.fromkeys(cell.label for cell in drafting_cells(summary)))
    colours: dict[str, Colour] = {}
    for place, label in enumerate(labels):
        share = 0.5 if len(labels) == 1 else place / (len(labels) - 1)
        colours[label] = matplotlib.colormaps["viridis"](0.30 + 0.52 * share)
    for cell in summary.cells:
        if cell.cell.arm.is_baseline:
            colours[cell.label] = BASELINE_COLOUR
    return colours


def drafting_cells(summary: RunSummary) -> list[CellSummary]:
    """Every cell but the baselines."""
    return [cell for cell in summary.cells if not cell.cell.arm.is_baseline]


def series_label(summary: RunSummary, cell: CellSummary) -> str:
    """Short name of a cell in a legend or a title: the arm, and the workload where there are several."""
    if len(summary.groups) < 2:
        return cell.label
    workload = cell.cell.workload
    names = [cell.label, workload.dataset]
    if len({short_load_words(other.cell.workload) for other in summary.cells}) > 1:
        names.append(short_load_words(workload))
    if len({other.cell.backend for other in summary.cells}) > 1:
        names.append(cell.cell.backend)
    group = next(group for group in summary.groups if any(cell is other for other in group.cells))
    return " · ".join([*names, *(part for part in parts_beside_load(group) if part)])


def grid_on(axes: Axes, axis: str) -> None:
    """Faint lines along one axis ("x" or "y"), no tick marks on the other."""
    axes.grid(True, axis="x" if axis == "x" else "y")
    axes.tick_params(axis="y" if axis == "x" else "x", length=0)


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend for all panels, whole: as many columns as the width of the picture takes."""
    longest = max(len(line) for handle in handles for line in str(handle.get_label()).splitlines())
    columns = int(figure.get_figwidth() / (longest * _LEGEND_CHAR_INCHES + _LEGEND_HANDLE_INCHES))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(max(1, columns), len(handles)))


def hide_unused(panels: Iterable[Axes]) -> None:
    for axes in panels:
        axes.set_visible(False)
