"""Looking at the installation: Python, the versions of what is needed, the shipped data."""

from __future__ import annotations

import platform
from collections import defaultdict
from importlib import metadata
from typing import TYPE_CHECKING

from autotune.core.check import Check, attempt
from autotune.core.paths import data_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.requirements import Requirement

DISTRIBUTIONS = ("autotune-kernels", "autotune-kernels-slim")
"""The names that this package is installed under."""

_DATA = ("templates", "search_spaces", "cache")


def installation_checks() -> Iterator[Check]:
    """Look at each of them."""
    yield attempt("Python", _python)
    yield attempt("dependencies", _dependencies)
    yield attempt("data", _data, remedy=f"pip install --force-reinstall {_distribution()}")
    yield attempt("families", _families)


def _distribution() -> str:
    """The name that the package is installed under: the slim one needs less."""
    for name in DISTRIBUTIONS:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    return DISTRIBUTIONS[0]


def _python() -> Check:
    """Whether this Python is one that the package is for."""
    from packaging.specifiers import SpecifierSet

    here = platform.python_version()
    try:
        wanted = metadata.metadata(_distribution())["Requires-Python"]
    except metadata.PackageNotFoundError:
        return Check.ok("Python", here)
    if not SpecifierSet(wanted).contains(here, prereleases=True):
        return Check.problem("Python", f"{here}, and {wanted} is needed", "use another Python")
    return Check.ok("Python", here)


def _dependencies() -> Check:
    """Whether what is installed is in the ranges that the package names."""
    try:
        lines = metadata.requires(_distribution()) or []
    except metadata.PackageNotFoundError:
        return Check.note(
            "dependencies",
            f"{_distribution()} is used without being installed: versions are not checked",
            "pip install . in its checkout",
        )
    needed, optional = _requirements(lines)
    wrong = [text for each in needed for text in _differences([each], needed=True)]
    doubtful = [text for group in optional.values() for text in _differences(group, needed=False)]
    if wrong:
        return Check.problem("dependencies", "; ".join(wrong), f"pip install {_distribution()}")
    if doubtful:
        return Check.note("dependencies", "; ".join(doubtful), "install one in the range")
    return Check.ok("dependencies", f"{len(needed)} installed, in the ranges that are named")


def _requirements(lines: list[str]) -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """Those that are always needed, and the ranges of those that extras name, by name."""
    from packaging.requirements import Requirement

    needed: list[Requirement] = []
    optional: dict[str, list[Requirement]] = defaultdict(list)
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed.append(requirement)
        elif requirement.name not in DISTRIBUTIONS:
            optional[requirement.name].append(requirement)
    always = {each.name for each in needed}
    return needed, {name: group for name, group in optional.items() if name not in always}


def _differences(ranges: list[Requirement], *, needed: bool) -> Iterator[str]:
    """What is wrong with one distribution, which must be in one of the ranges."""
    name = ranges[0].name
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if needed:
            yield f"{name} is not installed"
        return
    if not any(each.specifier.contains(version, prereleases=True) for each in ranges):
        wanted = " or ".join(dict.fromkeys(str(each.specifier) for each in ranges))
        yield f"{name} {version} is installed, and {wanted} is named"


def _data() -> Check:
    """Whether the shipped files are there.

    Raises:
        AutotuneError: they are not.
    """
    return Check.ok("data", f"{data_dir(_DATA[0]).parent} has {', '.join(map(_name, _DATA))}")


def _name(folder: str) -> str:
    return data_dir(folder).name


def _families() -> Check:
    """Whether all families can be read, those in $AUTOTUNE_FAMILIES too.

    Raises:
        FamilyError: one cannot.
    """
    from autotune.targets.families import find_families

    return Check.ok("families", f"{len(find_families())} can be read")
