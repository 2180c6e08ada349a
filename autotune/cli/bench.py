"""``autotune bench``: tuned kernels beside the vendor library, measured interleaved."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.cli.parser import CommandResult, common
from autotune.cli.problems import (
    DEFAULT_SHAPE,
    operation_argument,
    problem_options,
    problems,
    shapes_text,
)
from autotune.cli.runs import check_threads, family_option
from autotune.cli.scope import Scope, placed_target, target_options
from autotune.cli.terminal import ratio, table
from autotune.core import arguments
from autotune.core.configuration import Candidate
from autotune.core.deadline import Deadline
from autotune.core.errors import InputError, NotTunedError, OutOfTimeError, SpaceError
from autotune.core.interrupt import Interrupt, asked_to_stop
from autotune.core.measurement import ERROR_NORM, Sustained
from autotune.families.offers import refusal
from autotune.measuring.effort import Effort, relative_speed
from autotune.measuring.failure import Failure

if TYPE_CHECKING:
    from autotune.core.device import Device, DeviceLimits
    from autotune.core.measurement import Measurement
    from autotune.families.family import KernelFamily
    from autotune.measuring.effort import Baseline
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.reports import HostCall, HostCalls
    from autotune.serving.target import Target

LADDER_SHAPES = ("1024x1024x1024", "2048x2048x2048", "4096x4096x4096")
"""Shapes of a GPU's ladder, unless others are given."""


def add_bench(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the command; its parser."""
    parser = commands.add_parser(
        "bench",
        parents=[common(), problem_options(), target_options()],
        description="Measures the tuned kernel of each problem beside the vendor library, "
        "interleaved in one run; with --ladder every family's presets and default as well, and "
        "on a GPU also the whole call from host arrays to host result; with --accuracy all the "
        "best kernel of every accuracy class instead, speed beside error.",
    )
    operation_argument(parser, "measure")
    parser.add_argument(
        "--ladder",
        action="store_true",
        help="measure every family's presets and default configuration too (on a GPU at "
        f"{', '.join(LADDER_SHAPES)} unless --shape says otherwise)",
    )
    family_option(parser, "measure")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seeds the operands")
    parser.set_defaults(run=run)
    return parser


@dataclass(frozen=True, slots=True)
class _Job:
    """The measurements asked of one problem."""

    problem: Problem
    target: Target
    device: Device
    families: Mapping[str, KernelFamily]
    contestants: Sequence[Contestant]


def run(args: argparse.Namespace) -> CommandResult:
    """Check that every problem can be measured, then measure them."""
    from autotune.targets.registry import language_of

    arguments.seed(args.seed)
    check_threads()
    note = note_of(args)
    scope = Scope.of(args, args.family)
    is_gpu_ladder = args.ladder and language_of(scope.target).launched
    shapes = LADDER_SHAPES if is_gpu_ladder else (DEFAULT_SHAPE,)
    jobs = [_job(args, problem, scope) for problem in problems(args, scope, shapes)]
    rows: list[Row] = []
    texts = []
    for job in jobs:
        measured = _bench(args, job, note)
        rows.extend(measured)
        texts.append(f"{shapes_text(job.problem, blas=True)}\n{_text(measured)}")
        if asked_to_stop():
            break
    return CommandResult([row.document() for row in rows], "\n\n".join(texts))


def _job(args: argparse.Namespace, problem: Problem, scope: Scope) -> _Job:
    """The measurements to make; nothing is compiled or run to find out.

    Raises:
        InputError: no family serves the problem, or the device is not here.
        NotTunedError: there is nothing to measure.
    """
    if (reason := refusal(scope.chosen, problem)) is not None:
        raise InputError(reason)
    target = placed_target(scope.target, args)
    device = target.device(problem, args.device)
    device.check_here()
    families = {
        name: family
        for name, family in scope.chosen.items()
        if family.unsupported(problem) is None
    }
    contestants = _tuned(args, problem, target, families)
    if args.ladder:
        contestants += rungs(families, problem, device.limits)
    return _Job(problem, target, device, families, contestants)


def _bench(args: argparse.Namespace, job: _Job, note: Note) -> list[Row]:
    from autotune.core.paths import CacheLocations
    from autotune.families.program_cache import ProgramCache
    from autotune.serving.target import Work

    programs = ProgramCache.of(CacheLocations.at(args.cache))
    effort = EFFORT if args.ladder else None
    with job.target.evaluator(
        Work(job.problem, job.families, job.device, programs, effort, seed=args.seed)
    ) as evaluator:
        rows = measure(evaluator, job.problem, job.contestants, note)
    if args.ladder and not asked_to_stop():
        calls = job.target.estimates.host_calls(job.problem, job.device, programs)
        if calls is not None:
            rows = measure_host_calls(rows, job.contestants, job.families, calls, note)
    return rows


def _tuned(
    args: argparse.Namespace,
    problem: Problem,
    target: Target,
    families: Mapping[str, KernelFamily],
) -> list[Contestant]:
    """The tuned kernel, where there is one of these families."""
    from autotune.serving.lookup import look_up

    try:
        candidate = look_up(
            problem,
            target,
            match="stale",
            device=args.device,
            cache=args.cache,
            extra_families=args.families,
        ).candidate
    except NotTunedError as error:
        if not args.ladder:
            raise NotTunedError(f"{error}; or pass --ladder for the families' presets") from None
        return []
    if candidate.family not in families and not args.ladder:
        raise NotTunedError(
            f"the tuned kernel for {problem.label} is of family {candidate.family}, not of "
            f"{', '.join(families)}: leave --family out"
        )
    name = f"tuned ({candidate.family})"
    return [(name, candidate)] if candidate.family in families else []


def _text(rows: Sequence[Row]) -> str:
    cells = [
        (
            row.kernel,
            "-" if row.median_s is None else f"{row.median_s * 1e3:.4g}",
            "-" if row.gflops is None else f"{row.gflops:.1f}",
            "-"
            if row.ratio_to_vendor is None
            else ratio(f"{100 * row.ratio_to_vendor:.1f}", row.ratio_to_vendor),
            "-" if row.error is None else f"{row.error:.3f}",
            row.reason,
        )
        for row in rows
    ]
    vendor = rows[0].kernel.split()[0] if rows and rows[0].error is None else "vendor"
    header = ("kernel", "median ms", "GFLOP/s", f"% of {vendor}", "error/limit", "")
    text = "\n\n".join([table(header, cells, right=header[1:5]), *_sustained_table(rows, vendor)])
    host = [
        (row.kernel, f"{row.host.cold_s * 1e3:.4g}", f"{row.host.warm_s * 1e3:.4g}")
        for row in rows
        if row.host is not None
    ]
    if not host:
        return text
    contexts = sorted(row.host.context_s for row in rows if row.host is not None)
    host_header = ("from host arrays to host result", "first call ms", "later calls ms")
    return (
        f"{text}\n\n{table(host_header, host, right=host_header[1:])}\n"
        f"A first call is that of a fresh process, with the module still to be loaded; making "
        f"the process's context took {contexts[len(contexts) // 2] * 1e3:.0f} ms before it."
    )


def _sustained_table(rows: Sequence[Row], vendor: str) -> Iterator[str]:
    """The kernels that were held without a pause, where there are any."""
    held = [(row, row.sustained) for row in rows if row.sustained is not None]
    if not held:
        return
    header = ("without a pause", "median ms", "GFLOP/s", f"% of {vendor}", "J a call", "W", "MHz")
    cells = [
        (
            row.kernel,
            f"{own.median_s * 1e3:.4g}",
            f"{row.problem.flops / own.median_s / 1e9:.1f}",
            "-"
            if row.ratio_sustained is None
            else ratio(f"{100 * row.ratio_sustained:.1f}", row.ratio_sustained),
            "-" if own.joules is None else f"{own.joules:.3g}",
            "-" if own.watts is None else f"{own.watts:.0f}",
            "-" if own.sm_clock_mhz is None else f"{own.sm_clock_mhz:.0f}",
        )
        for row, own in held
    ]
    yield table(header, cells, right=header[1:])


NEAR = 4.0
"""Kernels up to this many times slower than the fastest take turns with the vendor library. Of the
others one measurement says enough, and turns would take minutes."""

EFFORT = Effort(budget_s=0.15, timeout_s=60.0, finals_s=6.0)
"""There are many kernels, and the slowest take seconds a call."""

Note = Callable[[str], None]
"""Shows one line of progress."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on one problem.

    Attributes:
        problem: what is multiplied.
        kernel: its name, for people.
        median_s: median time of one call, in seconds; None where it failed.
        ratio_to_vendor: speed relative to the vendor library; None where there is none.
        error: largest error relative to what is allowed; None for the vendor library.
        sustained: calls without a pause at steady clocks; None where there were none.
        ratio_sustained: speed relative to the vendor library then.
        reason: why there is no median.
        host: the whole call from host arrays to host result; None where that was not measured.
        error_norm: norm of the errors relative to that of the result; None where not known.
    """

    problem: Problem
    kernel: str
    median_s: float | None
    ratio_to_vendor: float | None
    error: float | None
    reason: str = ""
    sustained: Sustained | None = None
    ratio_sustained: float | None = None
    host: HostCall | None = None
    error_norm: float | None = None

    @property
    def gflops(self) -> float | None:
        """Textbook operations in 10^9 per second."""
        return None if self.median_s is None else self.problem.flops / self.median_s / 1e9

    def document(self) -> dict[str, Any]:
        """The row as JSON-able values."""
        return {
            "problem": self.problem.key(),
            "kernel": self.kernel,
            "median_s": self.median_s,
            "gflops": self.gflops,
            "ratio_to_vendor": self.ratio_to_vendor,
            "error": self.error,
            "error_norm": self.error_norm,
            "reason": self.reason,
            "sustained": None if self.sustained is None else asdict(self.sustained),
            "ratio_sustained": self.ratio_sustained,
            "host_cold_s": None if self.host is None else self.host.cold_s,
            "host_warm_s": None if self.host is None else self.host.warm_s,
            "host_context_s": None if self.host is None else self.host.context_s,
        }


Contestant = tuple[str, Candidate]
"""A name for people, and the kernel."""


def rungs(
    families: Mapping[str, KernelFamily], problem: Problem, limits: DeviceLimits
) -> Iterator[Contestant]:
    """Every family's presets and its default, each configuration once."""
    for name, family in families.items():
        seen = set()
        space = family.space(problem, limits)
        for preset in family.presets.values():
            configuration = preset.placed(space)
            seen.add(configuration)
            yield f"{name} ({preset.name})", Candidate(name, configuration)
        try:
            default = family.default(problem, limits)
        except SpaceError:
            continue  # its presets, if any, say what stands in the way
        if default not in seen:
            yield f"{name} (default)", Candidate(name, default)


def measure(
    evaluator: Evaluator, problem: Problem, contestants: Sequence[Contestant], note: Note
) -> list[Row]:
    """Verify and time every kernel; the vendor library, if there is one, is the first row.

    After a request to stop there are rows of what has been measured until then.
    """
    measurements: list[Measurement] = []
    baseline, finals = None, None
    evaluator.deadline = Deadline()
    with (
        Interrupt(evaluator.deadline, "measuring those tried so far once more") as interrupt,
        contextlib.suppress(OutOfTimeError),
    ):
        with contextlib.suppress(OutOfTimeError):
            evaluator.prepare([candidate for _, candidate in contestants])
            for number, (name, candidate) in enumerate(contestants, start=1):
                if interrupt.requested:
                    break
                measurements.append(evaluator.evaluate(candidate, None))
                note(f"{number}/{len(contestants)} {name}: {_brief(measurements[-1])}")
        evaluator.deadline.reserve_s = 0.0
        baseline = evaluator.baseline()
        near = _near(measurements, baseline)
        finals = evaluator.finals([contestants[each][1] for each in near]) if near else None
    contestants = contestants[: len(measurements)]
    if finals is not None:
        baseline = finals.baseline or baseline
    ratios = [relative_speed(each, baseline) for each in measurements]
    if finals is not None:
        for position, measurement, ratio in zip(
            near, finals.measurements, finals.ratios, strict=True
        ):
            measurements[position], ratios[position] = measurement, ratio
    rows = [
        Row(
            problem,
            name,
            measurement.median_s if measurement.ok else None,
            ratio,
            measurement.error,
            measurement.reason,
            error_norm=_number(measurement.details.get(ERROR_NORM)),
        )
        for (name, _), measurement, ratio in zip(contestants, measurements, ratios, strict=True)
    ]
    theirs = None
    if finals is not None and finals.sustained:
        theirs = Sustained.of(finals.sustained_baseline)
        for position, turns in zip(near, finals.sustained, strict=True):
            own = Sustained.of(turns)
            faster = theirs.median_s / own.median_s if theirs and own else None
            rows[position] = replace(rows[position], sustained=own, ratio_sustained=faster)
    if baseline is not None:
        same = 1.0 if theirs else None
        norm = baseline.error_norm
        row = Row(problem, baseline.name, baseline.median_s, 1.0, None, error_norm=norm)
        rows.insert(0, replace(row, sustained=theirs, ratio_sustained=same))
    return rows


def measure_host_calls(
    rows: Sequence[Row],
    contestants: Sequence[Contestant],
    families: Mapping[str, KernelFamily],
    timer: HostCalls,
    note: Note,
) -> list[Row]:
    """The rows with the whole call from host arrays to host result, for kernels that ran."""
    by_name = dict(contestants)
    measured = []
    with timer as calls:
        for number, row in enumerate(rows, start=1):
            if row.median_s is None:
                measured.append(row)
                continue
            candidate = by_name.get(row.kernel)
            if candidate is None:
                timed = calls.vendor(row.kernel)
            else:
                timed = calls.kernel(families[candidate.family], candidate.configuration)
            if isinstance(timed, Failure):
                note(f"{number}/{len(rows)} {row.kernel} from host to host: {timed.reason}")
                measured.append(row)
            else:
                measured.append(replace(row, host=timed))
    return measured


def note_of(args: argparse.Namespace) -> Note:
    """The way that progress is shown."""
    return (lambda line: None) if args.quiet else to_stderr


def to_stderr(line: str) -> None:
    """A `Note` for people who wait."""
    print(line, file=sys.stderr, flush=True)


def _near(measurements: Sequence[Measurement], baseline: Baseline | None) -> list[int]:
    """Positions of the kernels that take turns with the vendor library, or with the best."""
    medians = {
        position: measurement.median_s
        for position, measurement in enumerate(measurements)
        if measurement.ok and measurement.median_s is not None
    }
    yardstick = min([*medians.values(), *([baseline.median_s] if baseline else [])], default=0.0)
    return [position for position, median in medians.items() if median <= NEAR * yardstick]


def _number(value: float | str | None) -> float | None:
    return value if isinstance(value, float) else None


def _brief(measurement: Measurement) -> str:
    if measurement.median_s is None:
        return f"{measurement.outcome}: {measurement.reason}"
    return f"{measurement.median_s * 1e3:.4g} ms"
