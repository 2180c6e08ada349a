"""``autotune sweep`` and ``autotune replay``: spaces measured, and samplers compared on them."""

from __future__ import annotations

import argparse
import csv
import io
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.outputs import attempted, check_outputs
from autotune.cli.parser import CommandResult, common
from autotune.cli.problems import operation_argument, problem_options, shapes_text
from autotune.cli.records import counted
from autotune.cli.runs import check_run, family_option, problems_of, run_each, run_options
from autotune.cli.scope import target_options
from autotune.cli.terminal import table
from autotune.core.errors import InputError
from autotune.core.writing import deliver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.research import RecordedSpace, Summary
    from autotune.research.sweeps import SweepResult


def add_sweep(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "sweep",
        parents=[common(), problem_options(), target_options()],
        description="Measures every valid configuration of the families for each problem, in "
        "random order. An interrupted sweep goes on where it was when it is started again. What "
        "it wrote can be replayed: autotune replay FILE.",
    )
    operation_argument(parser, "sweep")
    family_option(parser, "sweep")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="measure a random N of them (default: all)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="draws the order (default 0)"
    )
    parser.add_argument(
        "--racing",
        action="store_true",
        help="abandon what is far behind the best (default: time everything to the end)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the measurements to a file: CSV if it ends in .csv, otherwise JSON",
    )
    parser.add_argument("--study", metavar="NAME", help="name of the study behind the sweep")
    run_options(parser)
    parser.set_defaults(run=run_sweep)


def run_sweep(args: argparse.Namespace) -> CommandResult:
    """Sweep every problem asked for."""
    check_run(args)
    scope, todo = problems_of(args)
    for option in ("study", "output"):
        if getattr(args, option) is not None and len(todo) > 1:
            raise InputError(f"--{option} is for one shape, got {len(todo)}")
    from autotune.research.converting import named_format
    from autotune.research.sweeps import sweep

    if args.output is not None and named_format(args.output) not in (None, "sweep", "csv"):
        raise InputError(
            f"--output is JSON or CSV, got {args.output.name!r}: name it .json, and "
            "`autotune convert` makes others of that"
        )
    results: list[SweepResult] = run_each(
        args,
        scope.target,
        todo,
        sweep,
        doing="sweeping",
        outputs={"the measurements": args.output},
        shared=lambda result: {"study": result.study},
        limit=args.limit,
        racing=args.racing,
    )
    return CommandResult(
        document=[sweep_document(result) for result in results],
        text="\n\n".join(summary(result) for result in results),
        exit_code=0 if all(result.measured for result in results) else 1,
        failure=attempted(args.output, lambda path: _write(path, results[0])),
    )


def sweep_document(result: SweepResult) -> dict[str, Any]:
    """The JSON document of one swept problem."""
    from autotune.research.swept import entry_of, measured

    return {
        "operation": result.problem.operation,
        "problem": result.problem.key(),
        "target": result.target,
        "device": result.device,
        "study": result.study,
        "seed": result.seed,
        "size": result.size,
        "wanted": result.wanted,
        "complete": result.complete,
        "counts": {str(outcome): n for outcome, n in result.counts.items()},
        "seconds": round(result.seconds, 3),
        "objective": result.provenance.get("objective", "time"),
        "provenance": dict(result.provenance),
        "measurements": [
            measured(entry_of(each.candidate, each.measurement)) for each in result.measured
        ],
    }


def summary(result: SweepResult) -> str:
    """Count of what was measured, and the fastest."""
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(result.counts.items()))
    lines = [
        f"{shapes_text(result.problem, blas=True)} on {result.device}",
        f"sweep     {len(result.measured):,} of {result.wanted:,} configurations measured "
        f"({counts or 'none'}), {result.size:,} are valid; {result.seconds:.1f} s in this run",
    ]
    timed = [
        (each.measurement.median_s, str(each.candidate))
        for each in result.measured
        if each.measurement.ok and each.measurement.median_s
    ]
    if timed:
        median_s, best = min(timed)
        lines.append(
            f"fastest   {best}\n          {median_s * 1e3:.4g} ms, "
            f"{result.problem.flops / median_s / 1e9:.1f} GFLOP/s"
        )
    if not result.complete:
        lines.append("go on     with the same command")
    lines.append(f"replay    {shlex.join(['autotune', 'replay', '--study', result.study])}")
    return "\n".join(lines)


def _write(path: Path, result: SweepResult) -> None:
    from autotune.research.space import as_json
    from autotune.research.swept import entry_of
    from autotune.research.tables import write_csv

    if path.suffix.lower() == ".csv":
        text = write_csv(entry_of(each.candidate, each.measurement) for each in result.measured)
    else:
        text = as_json(sweep_document(result), "measurements")
    deliver(path, text.encode())


MILESTONES = (25, 50, 100, 200, 400, 800)
"""Evaluations after which the table says how far the median run is."""

_LEARNING = "auto"
"""The sampler that learns from what was measured elsewhere."""

CSV_COLUMNS = ("file", "name", "sampler", "evaluation", "median", "p10", "p90", "random")
"""Fractions of the optimum, one row per evaluation; "random" is analytic."""


def add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "replay",
        parents=[common()],
        description="Searches recorded spaces with each sampler, once per seed, and prints how "
        "near the optimum it gets. Files, also as .gz: sweeps of ours (JSON or CSV), replay "
        "files, Kernel Tuner caches, T4 results. Every configuration asked for is charged once, "
        "failing ones included. Score: 0 is expected of uniform random search, 1 is the optimum "
        "at once.",
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="a recorded space")
    parser.add_argument(
        "--study",
        action="append",
        default=[],
        metavar="NAME",
        help="replay what this study or sweep measured, from the cache; may be given again",
    )
    parser.add_argument(
        "--prior",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="another recorded space that `auto` may learn from beforehand; parameters are "
        "matched by name; may be given again",
    )
    parser.add_argument(
        "--sampler",
        action="append",
        metavar="NAME",
        help="auto, tpe, gp, cmaes, nsga2, random, exhaustive or the dotted path of an Optuna "
        "sampler; may be given again (default: auto and random)",
    )
    parser.add_argument(
        "--trials", type=int, default=200, metavar="N", help="evaluations per run (default 200)"
    )
    parser.add_argument(
        "--seeds", type=int, default=20, metavar="N", help="runs per sampler (default 20)"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: one per core)"
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="also write the curves, a row per evaluation"
    )
    parser.set_defaults(run=run_replay)


def run_replay(args: argparse.Namespace) -> CommandResult:
    """Replay every file with every sampler."""
    from autotune.core.paths import CacheLocations
    from autotune.research import read_recorded, recorded_from_cache, replay

    if not (args.files or args.study):
        raise InputError("a replay needs a recorded space: give files, or --study NAME")
    samplers = list(dict.fromkeys(args.sampler or [_LEARNING, "random"]))
    if args.prior and _LEARNING not in samplers:
        raise InputError(
            f"--prior is for sampler {_LEARNING}, got --sampler {samplers[0]}: leave it out, or "
            f"add --sampler {_LEARNING}"
        )
    check_outputs({"the curves": args.csv}, args, [*args.files, *args.prior])
    recordings = [(str(path), read_recorded(path)) for path in args.files]
    database = CacheLocations.at(args.cache).database
    recordings += [(name, recorded_from_cache(database, study=name)) for name in args.study]
    priors = [read_recorded(path) for path in args.prior]
    replays = [
        replay(
            recorded,
            samplers,
            trials=args.trials,
            seeds=args.seeds,
            workers=args.workers,
            prior=priors,
        )
        for _, recorded in recordings
    ]
    note = None if args.quiet else sys.stderr
    documents, rows = [], []
    for (file, recorded), summaries in zip(recordings, replays, strict=True):
        for sampler, summary in summaries:
            if note is not None:
                score = f"{summary.score:.3f}" if summary.telling else "-"
                print(f"{recorded.name}: {sampler} scores {score}", file=note, flush=True)
            prior = [str(path) for path in args.prior] if sampler == _LEARNING else []
            documents.append(_replay_document(file, recorded, sampler, summary) | {"prior": prior})
            rows.append((recorded, sampler, summary))
    return CommandResult(
        documents,
        _text(rows, args.seeds),
        failure=attempted(
            args.csv, lambda path: deliver(path, _csv_text(documents).encode("utf-8"))
        ),
    )


def _replay_document(
    file: str, recorded: RecordedSpace, sampler: str, summary: Summary
) -> dict[str, Any]:
    """The JSON document of one file and sampler."""
    from autotune.research import expected_random_best

    random = recorded.optimum / expected_random_best(recorded.values, summary.budget)
    told = ("name", "format", "note", "device", "size", "failures", "unit")
    return {
        "file": file,
        **{name: getattr(recorded, name) for name in told},
        "optimum": recorded.told(recorded.optimum),
        "objective": "time" if recorded.goal is None else recorded.goal.name,
        "sampler": sampler,
        "trials": summary.budget,
        "seeds": len(summary.scores),
        "score": summary.score if summary.telling else None,
        "score_error": summary.score_error if summary.telling else None,
        "scores": list(summary.scores) if summary.telling else [],
        "paper": _paper_document(summary, recorded),
        **{
            name: getattr(summary, name) for name in ("n95", "n99", "reach95", "reach99", "cpu_ms")
        },
        "curves": {
            "median": summary.median.tolist(),
            "p10": summary.low.tolist(),
            "p90": summary.high.tolist(),
            "random": random.tolist(),
        },
    }


def _paper_document(summary: Summary, recorded: RecordedSpace) -> dict[str, Any]:
    """The measures for papers, and what is to be known of the recording."""
    from autotune.research import isolated

    paper = summary.paper
    return {
        "cut_off": paper.cut_off,
        "noise": paper.noise,
        "score": paper.score if paper.telling else None,
        "scores": list(paper.scores) if paper.telling else [],
        "aggregate": paper.aggregate,
        "aggregate_s": paper.aggregate_s,
        "isolated": [
            {"point": str(one.point), "value": recorded.told(one.value), "ahead": one.ahead}
            for one in isolated(recorded)
        ],
    }


def _csv_text(documents: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for document in documents:
        head = [document[column] for column in CSV_COLUMNS[:3]]
        curves = zip(*(document["curves"][column] for column in CSV_COLUMNS[4:]), strict=True)
        for evaluation, point in enumerate(curves, start=1):
            writer.writerow([*head, evaluation, *point])
    return out.getvalue()


def _text(rows: Sequence[tuple[RecordedSpace, str, Summary]], seeds: int) -> str:
    spaces = {recorded.name: recorded for recorded, _, _ in rows}
    lines = [_described(recorded) for recorded in spaces.values()]
    lines += map(_isolated, spaces.values())
    lines = [line for line in lines if line] + ["", _table(rows), ""]
    if len(spaces) > 1:
        for sampler in dict.fromkeys(sampler for _, sampler, _ in rows):
            scores = [one.score for _, name, one in rows if name == sampler and one.telling]
            if scores:
                mean = sum(scores) / len(scores)
                over = counted(len(scores), "space")
                lines.append(f"{sampler}: mean score {mean:.3f} over {over}")
        lines.append("")
    if not all(summary.telling for _, _, summary in rows):
        lines.append(
            "No score (-) where nothing is to be told apart: within the evaluations that count, "
            "random search is sure to have the optimum."
        )
    lines.append(
        f"Medians over {seeds} seeds of the fraction of the optimum's speed; score: mean ± "
        "standard error, 0 is expected of uniform random search, 1 is the optimum at once. The "
        "cut-off score ends where random search is almost done, and knows noise."
    )
    return "\n".join(lines)


def _described(recorded: RecordedSpace) -> str:
    unit = f" {recorded.unit}" if recorded.unit else ""
    device = f", {recorded.device}" if recorded.device else ""
    note = f"; {recorded.note}" if recorded.note else ""
    return (
        f"{recorded.name}: {recorded.size:,} configurations, {recorded.failures:,} of them "
        f"failing, optimum {recorded.told(recorded.optimum):.4g}{unit}{device}{note}"
    )


def _isolated(recorded: RecordedSpace) -> str:
    """A line about isolated configurations; empty where there are none."""
    from autotune.research import isolated

    found = isolated(recorded)
    if not found:
        return ""
    others = f", and {counted(len(found) - 1, 'other')}" if found[1:] else ""
    return (
        f"{recorded.name}: {found[0].ahead:.0%} ahead of every neighbour, a true optimum or a "
        f"glitch: {found[0].point} ({recorded.told(found[0].value):.4g}){others}"
    )


def _table(rows: Sequence[tuple[RecordedSpace, str, Summary]]) -> str:
    budget = max(summary.budget for _, _, summary in rows)
    steps = [step for step in MILESTONES if step < budget] + [budget]
    numeric = ("score", "cut-off score", *(f"after {step}" for step in steps), "n95", "n99")
    numeric += ("reach 95%", "reach 99%", "CPU ms")
    cells = [
        (
            recorded.name,
            sampler,
            f"{summary.score:.3f} ±{summary.score_error:.3f}" if summary.telling else "-",
            f"{summary.paper.score:.3f}" if summary.paper.telling else "-",
            *(f"{summary.fraction(step):.3f}" for step in steps),
            *(
                f">{summary.budget}" if count is None else f"{count:g}"
                for count in (summary.n95, summary.n99)
            ),
            *(f"{x:.2f}" for x in (summary.reach95, summary.reach99, summary.cpu_ms)),
        )
        for recorded, sampler, summary in rows
    ]
    return table(("space", "sampler", *numeric), cells, right=numeric)
