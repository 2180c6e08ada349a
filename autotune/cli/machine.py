"""``autotune device`` and ``autotune doctor``: what this machine is, and what is wrong with it."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.parser import CommandResult, common
from autotune.cli.runs import THREADS, check_threads
from autotune.cli.scope import choose_target, read_device, target_options
from autotune.cli.terminal import Style, folded, plain, styled
from autotune.core.arguments import is_on
from autotune.core.check import Check, Status, attempt
from autotune.core.paths import CacheLocations, data_dir, expanded
from autotune.core.suggestions import did_you_mean
from autotune.store.examining import cache_checks, layer_checks

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def add_device(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "device",
        parents=[common(), target_options()],
        help="show the device's fingerprint, limits, toolchain and state",
        description="Shows the fingerprint that records are keyed by, the limits that prune "
        "spaces, and the toolchain and state recorded beside every result; and every GPU that is "
        "here, whether it can be used or not.",
    )
    parser.set_defaults(run=run_device)


def run_device(args: argparse.Namespace) -> CommandResult:
    """Read the device, or describe one that is known by name; list the GPUs that are here."""
    from autotune.targets.registry import target_classes

    here = [found for each in target_classes() if (found := each.doctor.found()) is not None]
    device = read_device(choose_target(args), args)
    document = {
        "fingerprint": device.fingerprint.key() | {"digest": device.fingerprint.digest},
        "limits": device.limits.names(),
        "toolchain": dict(device.toolchain),
        "state": dict(device.state),
        **{found.kind.lower(): list(found.documents) for found in here},
    }
    lines = [f"{device.fingerprint.name}  ({device.fingerprint.slug})"]
    for title, fields in (
        ("fingerprint", device.fingerprint.fields),
        ("limits", device.limits.names()),
        ("toolchain", device.toolchain),
        ("state", device.state),
    ):
        if fields:
            lines.append(f"\n{styled(title, Style.BOLD)}")
            width = max(map(len, fields))
            lines.extend(f"  {name:<{width}}  {value}" for name, value in fields.items())
    for found in here:
        if found.texts:
            unused = f" (not used: {found.missing})" if found.missing else ""
            lines.append(f"\n{styled(f'{found.kind} here', Style.BOLD)}{unused}")
            lines.extend(f"  {number}  {text}" for number, text in enumerate(found.texts))
    return CommandResult(document, "\n".join(lines))


PREFIX = "AUTOTUNE_"

VARIABLES: Mapping[str, str] = {
    "AUTOTUNE_BACKGROUND": "0 compiles in the call that needs it, nothing in the background",
    "AUTOTUNE_CACHE": "folder or .sqlite file of the user's cache",
    "AUTOTUNE_FAMILIES": "folders with families of one's own",
    "AUTOTUNE_GPUS": "files that describe GPUs of one's own",
    "AUTOTUNE_LOG": "a file, or stderr, that is told which kernel computes what",
    "AUTOTUNE_MPI_TIMEOUT": "seconds that ranks wait for each other",
    "AUTOTUNE_RECORD": "a file that a program writes the shapes to that it computes",
    "AUTOTUNE_RECORDS": "read-only layers of records under the cache",
    "AUTOTUNE_TUNE": "0 forbids kernels of one's own to tune at a call",
    "AUTOTUNE_TURNS": "0 has nothing measured in the calls of a program",
}
"""The meaning of each; `docs/commands.md` says more."""

OTHERS = frozenset({"AUTOTUNE_REQUIRE_GPU", "AUTOTUNE_WORKER"})
"""Of the tests, and of worker processes."""


def environment_checks() -> Iterator[Check]:
    """Look at the variables that are set: unknown ones, and values that are none."""
    known = {*VARIABLES, *OTHERS}
    for name in sorted(name for name in os.environ if name.startswith(PREFIX)):
        if name not in known:
            meant = did_you_mean(name, VARIABLES).removeprefix("; ")
            yield Check.note(name, "is no variable of autotune's", meant or f"unset {name}")
    yield attempt("variables", _choices)
    if os.environ.get(THREADS):
        yield attempt(THREADS, _threads)
    listed = os.environ.get("AUTOTUNE_RECORD")
    if listed:
        yield attempt("AUTOTUNE_RECORD", lambda: _recorded(expanded(listed)))


def _threads() -> Check:
    check_threads()
    return Check.ok(THREADS, os.environ[THREADS])


def _choices() -> Check:
    """The values that are choices.

    Raises:
        InputError: one is none.
    """
    for name in ("AUTOTUNE_BACKGROUND", "AUTOTUNE_TUNE", "AUTOTUNE_TURNS"):
        is_on(name)
    given = [name for name in VARIABLES if os.environ.get(name)]
    return Check.ok("variables", f"{', '.join(given)} set" if given else "none set")


def _recorded(path: Path) -> Check:
    """A check that a program can write its shapes there."""
    place = path if path.exists() else path.absolute().parent
    if not place.exists() or path.is_dir() or not os.access(place, os.W_OK):
        return Check.note(
            "AUTOTUNE_RECORD",
            f"{path} cannot be written: shapes are not recorded",
            "name a file in a folder that can be written",
        )
    return Check.ok("AUTOTUNE_RECORD", f"shapes are written to {path}")


Group = tuple[str, Callable[[], Iterable[Check]]]
"""The groups of checks, by name."""


def add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        parents=[common()],
        description="Looks at the installation, the cache, and what each target needs: processor, "
        "GPU, driver, compilers, threads, MPI; and says how to mend what is wrong. Exits with 1 "
        "where something keeps a device that is here, or the cache, from working.",
    )
    parser.set_defaults(run=run_doctor)


def run_doctor(args: argparse.Namespace) -> CommandResult:
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
