"""The result of tuning one problem, as a document and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.cli.problems import shapes_text
from autotune.cli.records import (
    sustained_document,
    sustained_text,
)
from autotune.cli.terminal import Style, folded, ratio, styled, width
from autotune.core.statistics import half_width_text
from autotune.serving.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.store import TuningRecord
    from autotune.tuning.tuner import TuneResult


def document(result: TuneResult) -> dict[str, Any]:
    """The JSON document of one tuned problem."""
    return {
        "problem": result.problem.key(),
        "target": result.target,
        "study": result.study,
        **winner(result.best),
        "kept": result.kept,
        "serving": result.serving.id,
        "counts": {str(outcome): n for outcome, n in result.counts.items()},
        "chance": result.chance,
        "seconds": round(result.seconds, 3),
    }


def winner(record: TuningRecord) -> dict[str, Any]:
    """A record's part of a problem's JSON document."""
    baseline = record.baseline
    return {
        "id": record.id,
        "objective": record.objective,
        "score": record.score,  # none where it is time: the median says it
        "best": {
            "family": record.candidate.family,
            "configuration": dict(record.candidate.configuration),
            "median_s": record.median_s,
            "interval_s": list(record.interval_s),
            "gflops": record.gflops,
            "ties": record.ties,
        },
        "baseline": None
        if baseline is None
        else {
            "name": baseline.name,
            "median_s": baseline.median_s,
            "ratio": baseline.ratio,
        },
        "sustained": sustained_document(record),
        "noise": record.noise,
    }


def summary(result: TuneResult) -> str:
    """Summary of a run: what was searched, what won, how sure that is, and how to load it."""
    best = result.best
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(result.counts.items()))
    ended = " (interrupted)" if result.interrupted else ""
    others = "1 other" if best.ties == 1 else f"{best.ties} others"
    interval = f"{half_width_text(best.spread)} (95% interval of the median)"
    known = "(noisy)" if best.noisy else interval
    lines = [
        shapes_text(result.problem, blas=True),
        folded("space     ", _space_text(result)),
        folded(
            "search    ",
            f"{len(result.trials)} trials ({counts}) in {result.seconds:.1f} s{ended}",
        ),
        *([] if result.chance is None else [folded("          ", _chance_text(result.chance))]),
        folded("winner    ", styled(str(best.candidate), Style.GREEN)),
        folded(
            "          ",
            f"{best.median_s * 1e3:.4g} ms {known}, {best.gflops:.1f} GFLOP/s, ties with {others}",
        ),
    ]
    if best.baseline is not None:
        lines.append(
            folded(
                "baseline  ",
                f"{ratio(f'{best.baseline.ratio:.2f}x', best.baseline.ratio)} the speed of "
                f"{best.baseline.name}, "
                f"{best.baseline.median_s * 1e3:.4g} ms, measured interleaved",
            )
        )
    elif result.baseline is not None:
        lines.append(folded("baseline  ", f"not known ({result.baseline.name} was disturbed)"))
    if best.sustained is not None:
        lines.append(folded("sustained ", sustained_text(best.sustained, best)))
    for word, text in _outcome(result):
        label = f"{word:<10}"
        lines.append(folded(styled(label, Style.YELLOW) if word in _DOUBTS else label, text))
    lines += load_lines(
        Invocation.of(
            result.problem,
            result.placed,
            result.best.fingerprint,
            device=result.device,
            cache=result.cache,
            extra_families=result.extra_families,
        )
    )
    return "\n".join(lines)


_DOUBTS = ("noisy", "slower")
"""Things that the user should look at."""


def _outcome(result: TuneResult) -> Iterator[tuple[str, str]]:
    """The stored record, the one that serves from now on, and caveats."""
    best, serving = result.best, result.serving
    if best.noisy:
        yield "noisy", f"{best.caveats[-1]}: tune again on a quieter machine"
    stored = f"record {best.id}, study {result.study}"
    if result.kept:
        yield "kept", f"{stored}: nothing tried now was faster in turns with it"
    else:
        yield "stored", stored
    if serving != best:
        yield (
            "serving",
            f"record {serving.id} ({serving.candidate.family}) goes on serving: it was faster in "
            "turns",
        )
    if serving.slower_than_library and serving.baseline is not None:
        yield (
            "slower",
            f"than {serving.baseline.name}, which `matmul` uses here; "
            'load with fallback="library" does too',
        )


def _chance_text(chance: float) -> str:
    return f"a gain of more than 1% by further trials has a probability of {chance:.2g}"


def _space_text(result: TuneResult) -> str:
    sizes = ", ".join(f"{name} {space.size:,}" for name, space in result.spaces.items())
    valid = sum(space.size for space in result.spaces.values())
    cartesian = sum(space.cartesian for space in result.spaces.values())
    return (
        f"{valid:,} of {cartesian:,} configurations are valid here ({sizes}); "
        "`autotune space` says what pruned the rest"
    )


def load_lines(invocation: Invocation) -> list[str]:
    """The program that loads a winner, with a label before its first line."""
    label = "load it   "
    first, *rest = invocation.load_lines(width() - len(label))
    return [label + first, *(" " * len(label) + line for line in rest)]
