"""matplotlib figures as SVG for a page and as PNG files: one style, the same bytes every time.

matplotlib is the extra `report`; it is imported when a chart is drawn and not before. Its settings are changed inside
`drawing()` only, pyplot is never touched, and a user's matplotlibrc has no say.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from mimetic.catalog import missing_extra
from mimetic.errors import MissingExtra
from mimetic.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 180
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # words stay words: they can be searched, and take the page's font
    "text.parse_math": False,  # a joint may be named `$x$`
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that pictures are the same everywhere
    "font.size": 8,
    "text.color": LIGHT["ink"],
    "axes.titlesize": 9,
    "axes.titley": 1.0,  # nothing stands above the axes that a title would have to avoid
    "axes.titlecolor": LIGHT["ink"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.color": LIGHT["rule"],
    "grid.linewidth": 0.7,
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.solid_joinstyle": "round",
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
}
# Letters that the font lacks are boxes in a PNG and right in the page: nothing to act on.
_FONT_WARNINGS = "Glyph .* missing from|Matplotlib currently does not support"

_TAG = re.compile(r"<[^>]*>")
_COLOUR = re.compile("|".join(LIGHT.values()))
_VARIABLE = {colour: f"var(--{name})" for name, colour in LIGHT.items()}


@contextmanager
def drawing() -> Iterator[None]:
    """Settings under which figures are made and saved; afterwards matplotlib is as it was.

    Raises:
        MissingExtra: matplotlib is not installed, or cannot be imported.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise missing_extra("matplotlib", "report") from error
    except ImportError as error:
        raise MissingExtra(
            f"`matplotlib` cannot be imported ({error})", missing_extra("matplotlib", "report").hint
        ) from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", _FONT_WARNINGS)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def to_svg(figure: Figure, label: str) -> str:
    """A figure as an SVG element that takes its colours from the page's variables; call it inside `drawing()`.

    Args:
        figure: drawn in colours of the light theme.
        label: what the picture shows, for people who cannot see it; unlike that of any other picture of the page.
    """
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = label  # inner ids: the same every time, and no other picture's
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Names of groups and matplotlib's own style sheet would be the page's as well.
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = _TAG.sub(_for_page, re.sub(r'<g id="[^"]*"', "<g", text))
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    return f'<svg {box[0]} role="img" aria-label="{escape(label)}"{text[text.index(">") :]}'.strip()


def _for_page(tag: re.Match[str]) -> str:
    """A tag of an SVG element inside HTML: colours by name, and links without the namespace that XML files need."""
    return _COLOUR.sub(lambda colour: _VARIABLE[colour[0]], tag[0]).replace(" xlink:href=", " href=")


def to_png(figure: Figure) -> bytes:
    """A figure as a PNG file on white; call it inside `drawing()`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
