"""``autotune bench``: tuned kernels beside the vendor library, measured interleaved."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.cli.options import common
from autotune.cli.problems import problem_options, problems, shapes_text, target_options
from autotune.cli.result import CommandResult
from autotune.cli.table import table
from autotune.configuration import Candidate
from autotune.errors import NotTunedError

if TYPE_CHECKING:
    from autotune.problem import Gemm


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        parents=[common(), problem_options(), target_options()],
        help="measure tuned kernels beside the vendor library",
        description="Measures the tuned kernel of each problem beside the vendor library, "
        "interleaved in one run; with --ladder every family at its defaults as well.",
    )
    parser.add_argument(
        "--ladder", action="store_true", help="measure every family's default configuration too"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seeds the operands")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Row:
    """One kernel on one problem."""

    problem: Gemm
    kernel: str
    median_s: float | None
    ratio_to_vendor: float | None
    error: float | None
    reason: str = ""

    @property
    def gflops(self) -> float | None:
        return None if self.median_s is None else self.problem.flops / self.median_s / 1e9

    def document(self) -> dict[str, Any]:
        return {
            "problem": self.problem.key(),
            "kernel": self.kernel,
            "median_s": self.median_s,
            "gflops": self.gflops,
            "ratio_to_vendor": self.ratio_to_vendor,
            "error": self.error,
            "reason": self.reason,
        }


def run(args: argparse.Namespace) -> CommandResult:
    """Measure every problem."""
    rows: list[_Row] = []
    texts = []
    for problem in problems(args):
        measured = _bench(args, problem)
        rows.extend(measured)
        texts.append(f"{shapes_text(problem)}\n{_text(measured)}")
    return CommandResult([row.document() for row in rows], "\n\n".join(texts))


def _bench(args: argparse.Namespace, problem: Gemm) -> list[_Row]:
    from autotune.catalog import load_families
    from autotune.evaluators.base import Effort
    from autotune.paths import CacheLocations
    from autotune.program_cache import ProgramCache
    from autotune.runtime import load
    from autotune.targets import make_target

    target = make_target(args.target)
    device = target.device(problem)
    place = CacheLocations.at(args.cache)
    families = load_families(target=target.name, operation="gemm", extra=args.families)
    families = {
        name: family for name, family in families.items() if family.unsupported(problem) is None
    }
    kernels: list[tuple[str, Candidate]] = []
    try:
        tuned = load(
            problem,
            target.name,
            match="stale",
            cache=args.cache,
            extra_families=args.families,
        )
        kernels.append((f"tuned ({tuned.candidate.family})", tuned.candidate))
    except NotTunedError as error:
        if not args.ladder:
            raise NotTunedError(f"{error}; or pass --ladder for the families' defaults") from None
    if args.ladder:
        kernels += [
            (f"{name} (default)", Candidate(name, family.default(problem, device.limits)))
            for name, family in families.items()
        ]
    with target.evaluator(
        problem,
        families,
        device,
        ProgramCache(place.programs),
        effort=Effort(),
        workers=None,
        seed=args.seed,
    ) as evaluator:
        finals = evaluator.finals([candidate for _, candidate in kernels])
    rows = []
    if finals.baseline is not None:
        rows.append(_Row(problem, finals.baseline.name, finals.baseline.median_s, 1.0, None))
    for (name, _), measurement, ratio in zip(
        kernels, finals.measurements, finals.ratios, strict=True
    ):
        rows.append(
            _Row(problem, name, measurement.median_s, ratio, measurement.error, measurement.reason)
        )
    return rows


def _text(rows: list[_Row]) -> str:
    cells = [
        (
            row.kernel,
            "-" if row.median_s is None else f"{row.median_s * 1e3:.4g}",
            "-" if row.gflops is None else f"{row.gflops:.1f}",
            "-" if row.ratio_to_vendor is None else f"{row.ratio_to_vendor:.3f}",
            "-" if row.error is None else f"{row.error:.3f}",
            row.reason,
        )
        for row in rows
    ]
    header = ("kernel", "median ms", "GFLOP/s", "x vendor", "error/limit", "")
    return table(header, cells, right=header[1:5])
