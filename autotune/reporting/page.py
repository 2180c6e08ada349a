"""One page about studies: everything it needs is in it, and it asks no network for anything."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING

from autotune.core.printable import printable
from autotune.core.version import __version__
from autotune.core.writing import deliver
from autotune.reporting import facts, running, runtime, spaces, surroundings, winning
from autotune.reporting.amounts import Measure
from autotune.reporting.explore import explored
from autotune.reporting.funnel import funnel_of
from autotune.reporting.layout import Cell, Page, without_column

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jinja2 import Template

    from autotune.reporting.study import Study

_PACKAGE = "autotune.reporting"


def page_of(studies: Sequence[Study], extra_families: tuple[Path, ...] = ()) -> Page:
    """What a report about these studies has to say.

    Args:
        studies: one, or several to be compared.
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
        surroundings.environment(studies),
    ]
    if len(studies) == 1:
        sections = [without_column(section, "study") for section in sections]
    names = ", ".join(study.name for study in studies)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Page(
        title=names if len(studies) == 1 else f"{len(studies)} studies compared",
        subtitle=subtitle(studies),
        sections=sections,
        explored=explored(studies, measure, importance),
        foot=f"Made by autotune {__version__} on {made}.",
    )


def render(page: Page, script: str) -> str:
    """The page as HTML.

    Whatever a study says is data: Jinja escapes it in markup and in JSON, and a policy in the page
    itself forbids every request.

    Args:
        page: what it says.
        script: Vega, as `runtime.bundle` has it; the rest of the page works without.
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
    script = runtime.bundle()
    content = render(page_of(studies, extra_families), script).encode("utf-8", "replace")
    deliver(path, content)
    return len(content)


def subtitle(studies: Sequence[Study]) -> str:
    """Problems, devices and number of trials, in a line."""
    problems = dict.fromkeys(study.problem.label for study in studies if study.problem)
    devices = dict.fromkeys(study.device for study in studies if study.device)
    trials = sum(len(study.trials) for study in studies)
    parts = [", ".join(problems), ", ".join(devices), f"{trials:,} trials"]
    return " · ".join(filter(None, parts))


def _as_cell(value: Cell | str) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _shown(value: object) -> object:
    """Text without control characters and changes of direction; markup as it is."""
    return printable(value) if type(value) is str else value


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["cell"] = _as_cell
    return environment.from_string(_asset("page.html.j2"))


@functools.cache
def _asset(name: str) -> str:
    return resources.files(_PACKAGE).joinpath("assets", name).read_text(encoding="utf-8")
