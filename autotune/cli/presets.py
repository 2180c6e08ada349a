"""Tuning the many problems of a preset or of a list of shapes: progress, tables, documents."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from autotune.cli.outputs import attempted, check_outputs
from autotune.cli.parser import CommandResult
from autotune.cli.problems import shapes_text
from autotune.cli.records import stored_text, sustained_cell
from autotune.cli.terminal import Style, folded, ratio, styled, table
from autotune.cli.tuned import document, load_lines, winner
from autotune.core.errors import InputError
from autotune.core.paths import CacheLocations
from autotune.serving.invocation import Invocation
from autotune.store import Stored, export_records
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from autotune.model import Portfolio
    from autotune.operations.problem import Problem
    from autotune.surveying.portfolios import Surveyed, SurveyVisit
    from autotune.surveying.preset_run import PresetResult
    from autotune.surveying.presets import TuningPreset
    from autotune.tuning.progress import Watcher


def run_named(args: argparse.Namespace) -> CommandResult:
    """Tune the preset that ``--preset`` names, or the list that ``--shapes`` does."""
    from autotune.surveying.preset_run import PresetStatus, run_preset

    check_outputs({"the export": args.export}, args, filter(None, [args.shapes]))
    preset = _preset(args)
    display = _Display(preset, quiet=args.quiet)
    results = []
    for result in run_preset(
        preset,
        target=args.target,
        device=args.device,
        families=args.family,
        extra_families=args.families,
        seconds=args.timeout,
        trials=args.trials,
        sampler=args.sampler,
        seed=args.seed,
        rank=args.rank or "sustained",
        cache=args.cache,
        storage=args.storage,
        workers=args.workers,
        watch=display.watch,
        visits=display.visit,
        surveyed=display.surveyed,
        reached=display.reached,
    ):
        display.show(result)
        results.append(result)
    order: list[Problem] = [each.problem for each in preset.problems]
    results.sort(key=lambda result: order.index(result.problem))
    records = [result.record for result in results if result.record is not None]
    lines = [_preset_text(results)]
    lines += _use_lines(args, preset, results, display.portfolios)
    made: list[Stored] = [*records, *display.portfolios]
    failure = attempted(args.export, lambda path: export_records(made, path))
    if args.export is not None and failure is None:
        written = stored_text(len(records), len(display.portfolios))
        lines.append(f"{written} written to {args.export}")
    failed = any(result.status is PresetStatus.FAILED for result in results)
    return CommandResult(
        [_preset_document(result) for result in results],
        "\n".join(lines),
        exit_code=1 if failed or not records else 0,
        failure=failure,
    )


def _preset(args: argparse.Namespace) -> TuningPreset:
    """The problem to tune, which no other option may say."""
    from autotune.surveying.presets import DEFAULT_SECONDS, find_preset, preset_of_shapes

    said = f"--shapes {args.shapes}" if args.preset is None else f"--preset {args.preset}"
    for option in (
        "preset" if args.preset is None else "shapes",
        "shape",
        "blas",
        "dtype",
        "out_dtype",
        "layout",
        "accuracy",
        "threads",
        "ranks",
        "operands",
        "study",
        "objective",
    ):
        if (value := getattr(args, option)) is not None:
            given = f"--{option.replace('_', '-')} {value!s}"
            raise InputError(
                f"{said} says itself what is tuned, got {given}: leave one of them out"
            )
    if args.preset is not None:
        preset = find_preset(args.preset)
        return preset if args.dtypes is None else preset.of_dtypes(args.dtypes.split(","))
    if args.dtypes is not None:
        raise InputError(f"{said} says itself what is tuned, got --dtypes {args.dtypes}")
    return preset_of_shapes(
        args.shapes,
        target=args.target,
        operation=args.operation or "gemm",
        extra_families=args.families,
        seconds=DEFAULT_SECONDS if args.timeout is None else args.timeout,
    )


_TOLD = 16
"""Of so many visits of a survey one is told of."""


class _Display:
    """Progress on stderr: a live line while a problem is searched, and what came of each.

    Attributes:
        portfolios: those that were made.
    """

    def __init__(self, preset: TuningPreset, *, quiet: bool) -> None:
        self._quiet = quiet
        self._count = len(preset.problems)
        self._seen: set[Problem] = set()
        self._done = 0
        self._end: Callable[[], None] = lambda: None
        self._capped = preset.survey is not None and any(
            lot.problems[0].threads is not None for lot in preset.survey.lots()
        )
        self.portfolios: list[Portfolio] = []

    def watch(self, problem: Problem, seconds: float) -> Watcher | None:
        """Begin the live line of a visit to a problem."""
        if self._quiet:
            return None
        from autotune.tuning.progress import ProgressLine

        self._end()
        again = problem in self._seen
        number = self._done if again else len(self._seen)
        line = ProgressLine(
            f"{number + 1}/{self._count} tuning {shapes_text(problem)}{' further' * again}: "
            f"{seconds:.0f} s"
        )
        self._end = line.end
        return line

    def visit(self, visit: SurveyVisit) -> None:
        """Say now and then how far a survey has come."""
        if not self._quiet and (visit.visit == 1 or visit.visit % _TOLD == 0):
            problem = visit.problem
            lot = self._lot(problem.dtype, problem.threads)
            shape = "x".join(map(str, problem.shape))
            layout = "" if problem.layout == "nn" else f" {problem.layout}"
            print(
                f"survey {visit.lot}/{visit.lots} ({lot}): measuring {shape}{layout}, "
                f"{visit.left_s:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def surveyed(self, result: Surveyed) -> None:
        """Keep what a survey has brought, and say it."""
        made = result.portfolio
        self.portfolios.append(made)
        if not self._quiet:
            count, programs = len(made.entries), result.programs
            print(
                f"survey: {self._lot(made.dtype, made.threads)}: kept {count} of {programs} "
                f"kernels ({result.measurements} measurements on {made.shapes} shapes; on average "
                f"{made.loss:.1%} slower than the best of all {programs}); {result.seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    def _lot(self, dtype: str, threads: int | None) -> str:
        """The problems that a portfolio is for."""
        if threads is not None:
            return f"{dtype}, {threads} thread{'' if threads == 1 else 's'}"
        return f"{dtype}, all threads" if self._capped else dtype

    def reached(self, result: PresetResult) -> None:
        """Say what a first visit to a problem has brought."""
        self._seen.add(result.problem)
        self._tell(f"{len(self._seen)}/{self._count} {result.problem.label}: so far", result)

    def show(self, result: PresetResult) -> None:
        """Say what became of a problem; of those that were not reached the end has a line."""
        self._seen.add(result.problem)
        self._done += 1
        if result.status == "not reached":
            self._tell("", None)
        else:
            text = f"{self._done}/{self._count} {result.problem.label}: {result.status}"
            self._tell(text, result)

    def _tell(self, text: str, result: PresetResult | None) -> None:
        """End the live line, and say how a problem stands."""
        self._end()
        self._end = lambda: None
        if self._quiet or result is None:
            return
        if result.record is not None:
            text += f", {result.record.candidate.family}, {result.record.gflops:.0f} GFLOP/s"
            if result.record.baseline is not None:
                text += f", {result.record.baseline.ratio:.3f}x {result.record.baseline.name}"
                if (held := sustained_cell(result.record)) != "-":
                    text += f" ({held} sustained)"
            if result.record.noisy:
                text += ", noisy"
        if result.reason:
            text += f" ({result.reason})"
        print(text, file=sys.stderr, flush=True)


def _preset_document(result: PresetResult) -> dict[str, Any]:
    """As for a single problem, with what became of it; nothing where it was not tuned."""
    if result.result is not None:
        body = document(result.result)
    else:
        best = {"id": None, "best": None, "baseline": None}
        body = {
            "problem": result.problem.key(),
            "target": None if result.record is None else result.record.target,
            "study": result.study,
            **(best if result.record is None else winner(result.record)),
            "counts": {},
            "seconds": 0.0,
        }
    return body | {"status": str(result.status), "reason": result.reason}


def _preset_text(results: Sequence[PresetResult]) -> str:
    """A table of what was reached, a line for the rest, and means."""
    header = ("shape", "dtype", "winner", "ms", "GFLOP/s", "x vendor", "sustained", "")
    rows, unreached = [], [result for result in results if result.status == "not reached"]
    for result in results:
        problem, record = result.problem, result.record
        shape = "x".join(map(str, problem.shape))
        shape += "" if problem.layout == "nn" else f" {problem.layout}"
        note = "" if result.status == "tuned" else f"{result.status} {result.reason}".strip()
        if record is None:
            if result not in unreached:
                rows.append((shape, problem.dtype, *"-----", note))
            continue
        if record.noisy:
            note = f"{note} {styled('noisy', Style.YELLOW)}".strip()
        faster = None if record.baseline is None else record.baseline.ratio
        rows.append(
            (
                shape,
                problem.dtype,
                record.candidate.family,
                f"{record.median_s * 1e3:.4g}",
                f"{record.gflops:.0f}",
                "-" if faster is None else ratio(f"{faster:.3f}", faster),
                sustained_cell(record),
                note,
            )
        )
    lines = [table(header, rows, right=header[3:7])] if rows else []
    if unreached:
        lines.append(f"{len(unreached)} of {len(results)} not reached: {unreached[0].reason}")
    for dtype in dict.fromkeys(result.problem.dtype for result in results):
        own = [result for result in results if result.problem.dtype == dtype]
        if mean := _mean(own):
            lines.append(f"{dtype}: {mean}")
    return "\n".join(lines)


def _mean(results: Sequence[PresetResult]) -> str:
    """The mean speed relative to the vendor library, and over how many; empty without any.

    That is without a pause where it was measured, which is what a call of the record has.
    """
    records = [each.record for each in results if each.record is not None]
    compared = [(each, each.ratio) for each in records if each.ratio is not None]
    ratios = [faster for each, faster in compared if not each.noisy]
    noisy = len(compared) - len(ratios)
    if not ratios:
        return f"no mean: {noisy} of {len(results)} measured, all noisy" if noisy else ""
    mean = geometric_mean(ratios)
    left_out = f"; {noisy} noisy left out" if noisy else ""
    least = min(ratios)
    return (
        f"geometric mean {ratio(f'{mean:.3f}x', mean)} the vendor library, least "
        f"{ratio(f'{least:.3f}x', least)}, over {len(ratios)} of {len(results)}{left_out}"
    )


def _use_lines(
    args: argparse.Namespace,
    preset: TuningPreset,
    results: Sequence[PresetResult],
    portfolios: Sequence[Portfolio],
) -> list[str]:
    """Where what was made is stored, and the program that loads the first of it."""
    records = {each.problem: each.record for each in results if each.record is not None}
    if not records and not portfolios:
        return []
    path = CacheLocations.at(args.cache).database
    made = stored_text(len(records), len(portfolios))
    lines = [folded("stored    ", f"{made} in {path}")]
    if portfolios:
        lines.append(folded("serves    ", "`autotune.matmul` every shape; `load` those above"))
    for problem, record in islice(records.items(), 1):
        lines += load_lines(
            Invocation.of(
                problem,
                make_target(args.target or preset.target),
                record.fingerprint,
                device=args.device,
                cache=args.cache,
                extra_families=args.families,
            )
        )
    return lines
