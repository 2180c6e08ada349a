"""``autotune doctor``: look at this machine, and say how to mend what is wrong."""

from __future__ import annotations

import argparse
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from autotune.cli.environment import environment_checks
from autotune.cli.options import CommandResult, common
from autotune.cli.terminal import Style, folded, plain, styled
from autotune.core.check import Check, Status, attempt
from autotune.core.paths import CacheLocations, data_dir
from autotune.store.examining import cache_checks, layer_checks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.requirements import Requirement

Group = tuple[str, Callable[[], Iterable[Check]]]
"""The groups of checks, by name."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        parents=[common()],
        description="Looks at the installation, the cache, and what each target needs: processor, "
        "GPU, driver, compilers, threads, MPI; and says how to mend what is wrong. Exits with 1 "
        "where something keeps a device that is here, or the cache, from working.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Look at everything, one group after the other."""
    found: list[tuple[str, list[Check]]] = []
    live = sys.stderr.isatty() and not args.quiet
    for name, look in _groups(args.cache):
        if live:
            print(f"\r\x1b[Klooking at {name} ...", end="", file=sys.stderr, flush=True)
        found.append((name, list(_endured(name, look))))
    if live:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    counts = Counter(check.status for _, checks in found for check in checks)
    return CommandResult(
        [
            {
                "group": group,
                "name": check.name,
                "status": str(check.status),
                "found": check.found,
                "remedy": check.remedy,
            }
            for group, checks in found
            for check in checks
        ],
        "\n".join([*(_text(*group) for group in found if group[1]), _summary(counts)]),
        exit_code=1 if counts[Status.PROBLEM] else 0,
    )


def _groups(cache: str | None) -> Iterator[Group]:
    from autotune.targets.registry import target_classes

    yield "installation", installation_checks
    yield "environment", environment_checks
    yield "cache", lambda: _apart(cache_checks, CacheLocations.at(cache))
    yield "layers", lambda: _apart(layer_checks)
    for target in target_classes():
        yield target.name, target.doctor.examine


def _apart(function: Callable[..., list[Check]], *arguments: object) -> list[Check]:
    """The checks of a place that may be on a file system that does not answer."""
    from autotune.serving.examining import Apart

    with Apart() as apart:
        return apart(function, *arguments)


def _endured(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """The checks of a group; one that fails altogether is a finding, too."""
    try:
        yield from look()
    except Exception as error:  # whatever is broken is what is looked for
        yield Check.refused(name, error)


_COLOURS = {Status.OK: Style.GREEN, Status.NOTE: Style.YELLOW, Status.PROBLEM: Style.RED}


def _text(group: str, checks: list[Check]) -> str:
    names = max(len(check.name) for check in checks)
    lines = [styled(group, Style.BOLD)]
    for check in checks:
        status = styled(f"{check.status:<7}", _COLOURS[check.status])
        label = f"  {status}  {check.name:<{names}}  "
        lines.append(folded(label, check.found))
        if check.remedy is not None:
            lines.append(folded(" " * len(plain(label)), f"→ {check.remedy}"))
    return "\n".join(lines)


def _summary(counts: Counter[Status]) -> str:
    told = [
        f"{counts[status]} {status}{'' if counts[status] == 1 else 's'}"
        for status in (Status.PROBLEM, Status.NOTE)
        if counts[status]
    ]
    return f"\n{' and '.join(told)}" if told else "\nnothing to mend"


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
    """Check that the package is for this Python."""
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
    """Check that dependencies are in the ranges that the package names."""
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
    """Faults of one distribution, which must be in one of the ranges."""
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
    """Check that the shipped files are there.

    Raises:
        AutotuneError: they are not.
    """
    return Check.ok("data", f"{data_dir(_DATA[0]).parent} has {', '.join(map(_name, _DATA))}")


def _name(folder: str) -> str:
    return data_dir(folder).name


def _families() -> Check:
    """Check that all families can be read, those in $AUTOTUNE_FAMILIES too.

    Raises:
        FamilyError: one cannot.
    """
    from autotune.targets.families import find_families

    return Check.ok("families", f"{len(find_families())} can be read")
