"""Reports as files: one page with everything it needs in it, or a picture of its charts."""

import copy
import functools
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core.errors import InputError, MissingDependencyError
from autotune.core.installing import install_hint
from autotune.core.printable import printable
from autotune.core.version import __version__
from autotune.core.writing import deliver
from autotune.reporting import charts, facts, running, spaces, winning
from autotune.reporting.explore import explored
from autotune.reporting.layout import Cell, Measure, Page, Spec, without_column
from autotune.reporting.spaces import funnel_of
from autotune.reporting.study import Study

if TYPE_CHECKING:
    from jinja2 import Template

SUFFIXES = (".svg", ".png")
"""Kinds of pictures."""

_WIDTH = 640
_SCALE = 2

_PICTURED: dict[str, Any] = {
    "background": "#ffffff",
    "font": "system-ui, Segoe UI, Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {"gridColor": "#e3e6ea", "domainColor": "#9aa3ad", "tickColor": "#9aa3ad"},
    "range": {"category": ["#2563c9", "#c2570c", "#0f8a6d", "#8b46c0", "#b3261e", "#6b7280"]},
    "style": {"interval": {"color": "#333333"}, "stored": {"color": "#16191d"}},
    "title": {"fontSize": 15, "subtitleFontSize": 12, "subtitleColor": "#565f6b"},
    "axisXQuantitative": {"tickCount": 8},
    "legend": {"orient": "top", "labelLimit": 420},
}
"""The page's colours and fonts, for pictures."""


def page_of(studies: Sequence[Study], extra_families: tuple[Path, ...] = ()) -> Page:
    """The report about these studies: one, or several to be compared.

    Args:
        studies: in the order in which they are shown.
        extra_families: folders with families of the user's own, for the pruning funnel.
    """
    measure = Measure.of(studies)
    importance = facts.importance_of(studies)
    funnels = {study.name: funnel_of(study, extra_families) for study in studies}
    sections = [
        winning.overview(studies),
        winning.winner(studies, measure),
        winning.progress(studies, measure),
        spaces.importance(importance),
        spaces.parallel(studies, measure),
        spaces.heat(studies, measure),
        spaces.funnel(funnels),
        running.times(studies),
        running.failures(studies),
        running.roof(studies),
        running.resources(studies, measure),
        running.environment(studies),
    ]
    if len(studies) == 1:
        sections = [without_column(section, "study") for section in sections]
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Page(
        title=studies[0].name if len(studies) == 1 else f"{len(studies)} studies compared",
        subtitle=_subtitle(studies),
        sections=sections,
        explored=explored(studies, measure, importance),
        foot=f"Made by autotune {__version__} on {made}.",
    )


def render(page: Page, script: str) -> str:
    """The page as HTML, with Vega as `bundle` has it; the rest of the page works without.

    Whatever a study says is data: Jinja escapes it in markup and in JSON, and a policy in the page
    itself forbids every request.
    """
    specs = {
        figure.id: [spec for _, spec in figure.variants]
        for section in page.sections
        for figure in section.figures
    }
    return _template().render(
        page=page,
        data={"figures": specs, "explored": page.explored},
        style=_asset("page.css"),
        own_script=_asset("page.js"),
        vega=script,
    )


def write_page(path: Path, studies: Sequence[Study], extra_families: tuple[Path, ...] = ()) -> int:
    """Write a report about studies and return its size in bytes.

    Raises:
        AutotuneError: the file cannot be written.
        MissingDependencyError: Vega is not installed.
    """
    script = bundle()
    content = render(page_of(studies, extra_families), script).encode("utf-8", "replace")
    deliver(path, content)
    return len(content)


def check_picture(path: Path) -> None:
    """Refuse a path that is no picture's.

    Raises:
        InputError: the file's name says neither SVG nor PNG.
        MissingDependencyError: what draws it is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"a picture ends in {' or '.join(SUFFIXES)}, got {path.name!r}")
    _vega()


def write_picture(path: Path, studies: Sequence[Study]) -> None:
    """Write the progress curves and the importance of the parameters as SVG or PNG.

    Raises:
        InputError: the file's name says neither.
        AutotuneError: it cannot be written.
        MissingDependencyError: what draws it is not installed.
    """
    check_picture(path)
    found = facts.importance_of(studies)
    parts = [("Progress", charts.progress(studies, Measure.of(studies), by_time=False))]
    if any(found.values()):
        parts.append(("Parameter importance", spaces.importance_chart(found)))
    names = ", ".join(study.name for study in studies)
    spec = {
        "title": {"text": names, "subtitle": _subtitle(studies), "anchor": "start", "offset": 14},
        "vconcat": [
            {**copy.deepcopy(part), "title": {"text": title, "anchor": "start"}, "width": _WIDTH}
            for title, part in parts
        ],
        "resolve": {"scale": {"color": "shared"}},
    }
    deliver(path, drawn(spec, path.suffix.lower()))


def drawn(spec: Spec, kind: str) -> bytes:
    """A chart as the content of a file: ".svg", ".pdf" or ".png".

    Raises:
        MissingDependencyError: what draws it is not installed.
    """
    spec = {"width": _WIDTH, "config": _PICTURED, **spec}
    if "vconcat" in spec:  # its parts have widths
        del spec["width"]
    vega = _vega()
    content: str | bytes
    if kind == ".png":
        content = vega.vegalite_to_png(spec, scale=_SCALE)
    else:
        content = (vega.vegalite_to_svg if kind == ".svg" else vega.vegalite_to_pdf)(spec)
    return content.encode() if isinstance(content, str) else content


@functools.cache
def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which puts `vegaEmbed` on `window`.

    Raises:
        MissingDependencyError: it is not installed.
    """
    script: str = _vega().javascript_bundle()
    # Within a page a script ends at the first end tag, wherever it stands.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _vega() -> Any:
    """The module that has Vega in it, which draws the charts.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise MissingDependencyError(
            f"a report's charts need vl-convert-python: {install_hint('report')}"
        ) from error
    return vl_convert


def _subtitle(studies: Sequence[Study]) -> str:
    """Problems, devices and number of trials, in a line."""
    problems = dict.fromkeys(study.problem.label for study in studies if study.problem)
    devices = dict.fromkeys(study.device for study in studies if study.device)
    trials = sum(len(study.trials) for study in studies)
    parts = [", ".join(problems), ", ".join(devices), f"{trials:,} trials"]
    return " · ".join(filter(None, parts))


@functools.cache
def _template() -> "Template":
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        # Text without control characters and changes of direction; markup as it is.
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["cell"] = lambda it: it if isinstance(it, Cell) else Cell(it)
    return environment.from_string(_asset("page.html.j2"))


@functools.cache
def _asset(name: str) -> str:
    return resources.files("autotune.reporting").joinpath("assets", name).read_text("utf-8")
