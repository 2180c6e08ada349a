"""``autotune doctor``: look at this machine, and say how to mend what is wrong."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from autotune.cli.environment import environment_checks
from autotune.cli.installation import installation_checks
from autotune.cli.options import common
from autotune.cli.result import CommandResult
from autotune.cli.style import Style, plain, styled
from autotune.cli.table import folded
from autotune.core.check import Check, Status
from autotune.core.paths import CacheLocations
from autotune.store.examining import cache_checks, layer_checks

if TYPE_CHECKING:
    pass

Group = tuple[str, Callable[[], Iterable[Check]]]
"""What is looked at together, by its name."""


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
