"""A dense survey of a GPU's programs: many of them timed on every shape, in a moment each.

The survey of a preset verifies and times as trials do, a second each. Where timing takes
milliseconds a portfolio can rest on thousands of times instead. In steps, since a machine with a
GPU need not do all of them::

    python benchmarks/dense_survey.py plan --dtype bfloat16 --device h100 -o plan.jsonl
    python benchmarks/dense_survey.py time plan.jsonl -o times.jsonl        # on the GPU
    python benchmarks/dense_survey.py ship times.jsonl --dtype bfloat16 --like float16
    python benchmarks/dense_survey.py choose --seed 5 -o after.jsonl        # before, too
    python benchmarks/dense_survey.py time before.jsonl after.jsonl -o both.jsonl
    python benchmarks/dense_survey.py compare both.jsonl

A plan has, for each shape, the calls that the shipped portfolio's prices expect to be fastest: of
its programs; and, as many, of the same for other layouts and their neighbours in one parameter. A
second plan, from the times of a first one, has the programs that did best there: what is timed on
few shapes is hardly known. Times are of CUDA graphs, operands rotating beyond the level-2 cache;
every result is compared with one in float64. What is shipped are the programs that do best as
their prices have them chosen, on the shapes timed now and, by what prices tell, on shapes of all
other kinds.

``--accuracy`` is for the portfolio of a looser class; ``--first h100`` begins with another GPU's
programs, ``--first presets`` with those of the class's families; ``--anew`` learns the prices of
all that is timed: of a device that has estimates, or after an edit of families.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import lzma
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from shape_draws import GPU, Bounds, Shape, draw

from autotune import Gemm
from autotune.core.checks import utc_now
from autotune.core.configuration import Candidate, Configuration
from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import AutotuneError
from autotune.core.paths import data_dir
from autotune.families.family import KernelFamily
from autotune.families.gpu.planning import planner_of
from autotune.families.program_cache import ProgramCache
from autotune.gpu.launch.code import make_program
from autotune.model import LARGEST, Portfolio, is_modelled, program_of, with_calls
from autotune.model.book import PriceBook, Timed, select
from autotune.model.choosing import CAUTION, strangeness
from autotune.model.portfolio import Key
from autotune.model.terms import Sizes
from autotune.serving.lookup import look_up
from autotune.store import export_lines
from autotune.store.files import COMPRESSED, read_portfolios
from autotune.store.portfolio import portfolio_document
from autotune.store.strict_json import line
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

LARGE_WORK = 3e10
"""Products of a shape above which power decides."""

FEWEST_OF_LOOSER = 384
"""Least size of a shape that is drawn for a looser class, which is not for small products."""

SQUARES = (128, 256, 512, 1024, 2048, 4096, 8192)
SECOND = 1.08
"""How much slower than a program's best call its second one may be expected, to be timed too."""

FEWEST = 8
"""Times that a new program must have."""

FEWEST_ALIKE = 4
"""Times on large or small products, or on few rows, that it must have if it is expected to win
there."""

FEW_ROWS, COLUMNS = (1, 16, 64), (4096, 10240)
SMALL_SIDES, SMALL_WORK = (64, 128, 192), 2**25
"""Sizes of such products."""

SURPRISE = 1.8
"""How many times as long as expected a new program may take where it is expected to win."""

PRESETS = "presets"
"""A first portfolio that is none of a device."""

LARGE = 6
"""Times that a product of more than `LARGE_WORK` counts beside one of less, when programs are
selected: by its time it is worth more than that."""

LAYERS = 2
"""A timed layer counts so many times more than another shape: models compute layers."""

SIDES = (2048, 4096, 8192, 16384)
ELSEWHERE = 400
"""Shapes that earlier prices tell of."""

POOL = 300
"""New programs that are thought of: those that were the fastest on what was timed."""

FARTHEST, ENOUGH = 3.0, 1e-4
"""The most that a shape counts, and the least that a change of programs must bring, both as
logarithms of times."""

ROTATED_BYTES = 192e6


class Device(NamedTuple):
    """Whose programs: limits, families and what is shipped."""

    file: Path
    first: Path
    limits: Any
    families: Mapping[str, KernelFamily]
    portfolio: Portfolio

    @classmethod
    def named(cls, args: argparse.Namespace, dtype: str) -> Device:
        """The device that is asked for, with a portfolio of a type: its own, or the first one."""
        limits = make_target("cuda").device(None, args.device).limits
        families = load_families(target="cuda", operation="gemm")
        others = args.first if args.first != PRESETS else None
        file, first = (
            next(data_dir("cache").glob(f"cuda-*{name}*/gemm.portfolio.jsonl"))
            for name in (args.device, others or args.device)
        )
        own = Gemm(1, 1, 1, dtype, accuracy=args.accuracy)
        there = list(read_portfolios(file))
        if args.first == PRESETS:
            portfolio = _of_presets(families, limits, own, there[0])
        else:
            (portfolio,) = (each for each in read_portfolios(first) if _is_for(each, own))
        portfolio = dataclasses.replace(portfolio, fingerprint=there[0].fingerprint)
        if args.own:
            (known,) = (each for each in there if _is_for(each, own))
            kept = {each.key: each for each in known.entries if each.family in args.own}
            more = [each for each in portfolio.entries if each.key not in kept]
            common = {name: known.families[name] for name in args.own}
            portfolio = dataclasses.replace(
                portfolio,
                entries=(*kept.values(), *more),
                families={**portfolio.families, **common},
            )
        return cls(file, first, limits, families, portfolio)

    def problem(self, sizes: Sequence[int], layout: str) -> Gemm:
        """A product of the portfolio's types and class."""
        own = self.portfolio
        return Gemm(*sizes, own.dtype, layout=layout, accuracy=own.accuracy)

    def book(self) -> PriceBook:
        """The prices that are shipped."""
        book = PriceBook(self.families, self.portfolio.dtype, self.limits)
        book.begin_with(self.portfolio.families)
        if self.portfolio.shapes:  # those of presets have no prices
            for entry in self.portfolio.entries:
                book.take(entry)
        return book


def _of_presets(
    families: Mapping[str, KernelFamily], limits: Any, own: Gemm, like: Portfolio
) -> Portfolio:
    """The presets of a class's families, in all their layouts, at what anything costs."""
    book, entries = PriceBook(families, own.dtype, limits), {}
    for name, family in families.items():
        if family.accuracy != own.accuracy or own.dtype not in family.dtypes:
            continue
        declared = {each.name: each.default for each in family.parameters}
        for layout, preset in itertools.product(family.layouts, family.presets.values()):
            configuration = family.conform({**declared, **preset.configuration})
            program = book.program(Candidate(name, configuration), layout)
            if program is not None:
                entries[program.key] = program.entry(family)
    return dataclasses.replace(
        like,
        dtype=own.dtype,
        out_dtype=own.result_dtype,
        accuracy=own.accuracy,
        entries=tuple(entries.values()),
        families={},
        shapes=0,
    )


def _is_for(portfolio: Portfolio, problem: Gemm) -> bool:
    of = portfolio.dtype, portfolio.out_dtype, portfolio.accuracy
    return of == (problem.dtype, problem.result_dtype, problem.accuracy)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=[*STEPS])
    parser.add_argument("files", type=Path, nargs="*", help="plans; or times, all that there are")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--like", nargs="*", default=[], help="types that get the same programs")
    parser.add_argument("--accuracy", default="", help="a class; the usual one of the type")
    parser.add_argument("--device", default="h100")
    parser.add_argument("--first", metavar="DEVICE", help="whose portfolio is first, or presets")
    parser.add_argument("--own", nargs="*", default=[], help="families whose own programs stay")
    parser.add_argument("--anew", action="store_true", help="learn prices that are known, too")
    parser.add_argument(
        "--told",
        type=int,
        default=80,
        help="shapes whose times, as shipped prices tell them, count as measured ones",
    )
    parser.add_argument("--same", action="store_true", help="ship no programs that are new")
    parser.add_argument("--layouts", nargs="+", default=["nn", "tn", "nt", "tt"])
    parser.add_argument("--count", type=int, default=24, help="shapes of a layout; twice for nn")
    parser.add_argument(
        "--work",
        type=float,
        nargs=2,
        default=(1e5, 8e10),
        metavar=("LEAST", "MOST"),
        help="products of a shape",
    )
    parser.add_argument(
        "--multiples", type=int, nargs="+", default=[8], help="of sizes, as many shapes of each"
    )
    parser.add_argument("--calls", type=int, default=44, help="of programs, on each shape")
    parser.add_argument("--programs", type=int, default=160, help="of a second plan")
    parser.add_argument(
        "--keep",
        nargs="*",
        default=[],
        help="whose programs and prices stay: layouts, families, or both, as in nt/wgmma",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300.0, help="of timing")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    STEPS[args.step](args)


# --- What to time ---


def plan(args: argparse.Namespace) -> None:
    """Write a line for each shape, with its calls."""
    device = Device.named(args, args.dtype)
    book = device.book()
    if args.files:
        best = _learn(device, book, args)
        kept = {entry.key for entry in device.portfolio.entries}
        kept.update(_fastest(best, args.programs))
        pools = {
            layout: [
                Candidate(key.family, key.configuration) for key in kept if key.layout == layout
            ]
            for layout in args.layouts
        }
    else:
        pools = {layout: _pool(device, book, layout) for layout in args.layouts}
    lines, count = [], 0
    for layout, _, each in _shapes(args):
        problem = device.problem(each, layout)
        sizes = Sizes.of(problem)
        expected = []
        for candidate in pools[layout]:
            program = book.program(candidate, layout)
            if program is None or not is_modelled(device.families[candidate.family], problem):
                continue
            expected.append((program.expected(sizes)[1], program))
        ranked = [program for _, program in sorted(expected, key=lambda each: each[0])]
        shipped = [each for each in ranked if each.known is not None]
        others = [each for each in ranked if each.known is None]
        calls: list[list[Any]] = []
        in_turns = itertools.chain.from_iterable(itertools.zip_longest(shipped, others))
        for program in filter(None, in_turns):
            found = _calls(device, program, problem)
            calls += [[program.key.family, dict(each)] for each in found]
            if len(calls) >= args.calls:
                break
        count += len(calls)
        lines.append({"sizes": problem.shape, "layout": layout, "calls": calls})
    _write_plan(args, lines)
    print(f"{len(lines)} shapes, {count} calls")


def choose(args: argparse.Namespace) -> None:
    """Write a plan whose calls are those that are served, one for each shape."""
    lines = []
    for layout, kind, each in _shapes(args):
        problem = Gemm(*each, args.dtype, layout=layout, accuracy=args.accuracy)
        found = look_up(problem, make_target("cuda"), match="nearest", device=args.device)
        call = [found.family.name, dict(found.candidate.configuration)]
        lines.append({"sizes": problem.shape, "layout": layout, "kind": kind, "calls": [call]})
    _write_plan(args, lines)


def _write_plan(args: argparse.Namespace, lines: Sequence[Mapping[str, Any]]) -> None:
    # Layouts and sizes in turns: what a run has no time for is of all kinds.
    order = np.random.default_rng(args.seed).permutation(len(lines))
    head = {"dtype": args.dtype, "accuracy": args.accuracy}
    text = [json.dumps(each) for each in (head, *(lines[row] for row in order))]
    args.output.write_text("".join(f"{each}\n" for each in text))


def _fastest(best: Mapping[Sizes, Mapping[Key, float]], most: int) -> list[Key]:
    """Programs that were the fastest of all on what was timed, in the order of what they bring."""
    timed = [times for times in best.values() if times]
    if not timed:
        return []
    keys = list(dict.fromkeys(itertools.chain.from_iterable(timed)))
    seconds = np.array([[times.get(key, np.inf) for times in timed] for key in keys])
    return [keys[row] for row in select(seconds, most=most, loss=0.0)[0]]


def _shapes(args: argparse.Namespace) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Shapes with their layouts and kinds."""
    bounds = dataclasses.replace(GPU, work=tuple(args.work))
    if args.accuracy:
        sides = FEWEST_OF_LOOSER, bounds.sides[1]
        bounds = dataclasses.replace(bounds, sides=sides, reduction=sides)
    for number, layout in enumerate(args.layouts):
        count = args.count * (2 if layout == "nn" else 1)
        for multiple in args.multiples:
            shapes = itertools.islice(draw(args.seed + number, bounds, multiple), count)
            kind = f"multiples of {multiple}" if multiple > 1 else "any"
            yield from ((layout, kind, shape.sizes) for shape in shapes)
        squares = (Shape(side, side, side) for side in SQUARES)
        yield from ((layout, "squares", shape.sizes) for shape in squares if shape in bounds)
        for shape in itertools.islice(_layers(layout, args.seed, bounds), count):
            if min(shape.sizes) >= bounds.sides[0]:
                yield layout, "layers", shape.sizes


def _layers(layout: str, seed: int, bounds: Bounds) -> Iterator[Shape]:
    """Linear layers of 1 to 4096 rows, whose inputs and outputs are multiples of 128.

    In layout nt they are layers, in nn gradients of their inputs, in tn of their weights.
    """
    rng = np.random.default_rng(seed)
    while True:
        n, k = (int(size) * 128 for size in np.exp(rng.uniform(np.log(6), np.log(200), 2)))
        tokens = int(rng.choice([1, 4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096]))
        if bounds.work[0] <= tokens * n * k <= bounds.work[1]:
            yield Shape(n, tokens, k) if layout == "tn" else Shape(tokens, n, k)


def _is_layer(sizes: Sizes) -> bool:
    """Return whether both sides of the weights are multiples of 128, and at least 512."""
    sides = (sizes.m if sizes.layout == "tn" else sizes.n, sizes.k)
    return all(side % 128 == 0 and side >= 512 for side in sides)


def _pool(device: Device, book: PriceBook, layout: str) -> list[Candidate]:
    """Programs of the portfolio, of any layout, and their neighbours in one parameter."""
    found: dict[Candidate, None] = {}
    for entry in device.portfolio.entries:
        family = device.families[entry.family]
        if layout not in family.layouts:
            continue
        own = dict(entry.configuration)
        changed = [own]
        for parameter in family.parameters:
            if parameter.name in family.free_parameters or len(parameter.values) < 2:
                continue
            at = parameter.values.index(own[parameter.name])
            near = (*parameter.values[max(0, at - 1) : at], *parameter.values[at + 1 : at + 2])
            changed += [{**own, parameter.name: value} for value in near]
        for configuration in changed:
            try:
                program = program_of(family, family.conform(configuration))
                book.program(Candidate(entry.family, program), layout)
            except AutotuneError:  # parameters that do not go together
                continue
            found[Candidate(entry.family, program)] = None
    return list(found)


def _calls(device: Device, program: Any, problem: Gemm) -> list[Configuration]:
    """The best valid call of a program for a problem, and the second where it is near."""
    calls = list(itertools.islice(_valid(device, program, problem), 2))
    return [each for each, seconds in calls if seconds <= SECOND * calls[0][1]]


def _valid(device: Device, program: Any, problem: Gemm) -> Iterator[tuple[Configuration, float]]:
    """A program's valid calls for a problem and the seconds that they are expected to take.

    The fastest come first.
    """
    family = device.families[program.key.family]
    seconds = program.seconds(Sizes.of(problem))
    for row in np.argsort(seconds, kind="stable").tolist():
        configuration = program.configurations[row]
        if planner_of(family, configuration, problem.dtype, device.limits).valid(problem):
            yield configuration, float(seconds[row])


# --- Timing ---


def time_all(args: argparse.Namespace) -> None:
    """Compile all programs of plans, then time their calls, shape by shape.

    Those of a shape take turns: one after the other, the first ones would have a cool device.
    """
    import torch
    from gpu_environment import describe_gpu, read_gpu
    from layers import called, captured, in_turns

    gpu = read_gpu()
    print(describe_gpu(gpu))
    head, *lines = _merged(args.files)
    families, dtype = load_families(target="cuda", operation="gemm"), head["dtype"]
    with tempfile.TemporaryDirectory() as folder, args.output.open("w") as out:
        jobs: dict[str, tuple[Any, ...]] = {}
        problems = [
            Gemm(*each["sizes"], dtype, layout=each["layout"], accuracy=head["accuracy"])
            for each in lines
        ]
        for each, problem in zip(lines, problems, strict=True):
            for name, configuration in each["calls"]:
                program = program_of(families[name], families[name].conform(configuration))
                key = f"{name} {each['layout']} {program}"
                jobs.setdefault(key, (name, configuration, problem, gpu.limits, folder))
        with ProcessPoolExecutor() as pool:
            failed = [error for error in pool.map(_compiled, jobs.values(), chunksize=4) if error]
        print(f"- {len(jobs)} programs, of which not compiled: {failed}", flush=True)
        programs, kind = ProgramCache(Path(folder)), getattr(torch, dtype)
        end = time.monotonic() + args.seconds
        for each, problem in zip(lines, problems, strict=True):
            if time.monotonic() > end:
                break
            operands = _operands(torch, problem, kind)
            count = max(8, len(operands))

            def library(of: Any, layout: str = problem.layout) -> None:
                torch.mm(*map(_as_stored, of[:2], layout), out=of[2])

            theirs = captured(library, operands, count)
            # PyTorch's own result is rounded between parts of a reduction.
            exact = (x.double() for x in operands[0][:2])
            expected = torch.mm(*map(_as_stored, exact, problem.layout))
            found, replays = [], []
            for name, configuration in each["calls"]:
                candidate = Candidate(name, families[name].conform(configuration))
                try:
                    kernel = make_target("cuda").kernel(
                        families[name], candidate, problem, gpu, programs
                    )
                    operands[0][2].fill_(float("nan"))
                    ours = captured(called(kernel), operands, count)
                except AutotuneError as error:
                    print(f"{problem.label} {candidate}: {error}", file=sys.stderr)
                    continue
                ours()
                off = (operands[0][2].double() - expected).norm() / expected.norm()
                if not float(off) < 0.01:
                    print(f"wrong: {problem.label} {candidate}: {float(off)}", flush=True)
                    continue
                found.append([name, configuration])
                replays.append(ours)
            *ratios, us = in_turns(theirs, *replays)
            calls = [[*call, ratio * us] for call, ratio in zip(found, ratios, strict=True)]
            failures = len(each["calls"]) - len(calls)
            row = {**each, "calls": calls, "failures": failures, "library_us": us}
            print(json.dumps(row), file=out, flush=True)
        torch.cuda.empty_cache()


def _as_stored(x: Any, letter: str) -> Any:
    return x.t() if letter == "t" else x


def _merged(plans: Sequence[Path]) -> list[Any]:
    """The head and the shapes of plans, each shape with the calls of all."""
    first, *others = (list(map(json.loads, each.read_text().splitlines())) for each in plans)
    for other in others:
        for row, more in zip(first[1:], other[1:], strict=True):
            row["calls"] += [call for call in more["calls"] if call not in row["calls"]]
    return first


def _operands(torch: Any, problem: Gemm, kind: Any) -> list[tuple[Any, ...]]:
    *stored, output = (each.shape for each in problem.operands)
    elements = sum(rows * columns for rows, columns in (*stored, output))
    copies = max(1, min(32, round(ROTATED_BYTES / (elements * ELEMENTS[problem.dtype].itemsize))))
    made = [torch.randn(shape, device="cuda", dtype=kind) for shape in stored]
    return [
        (*(x.clone() for x in made), torch.empty(output, device="cuda", dtype=kind))
        for _ in range(copies)
    ]


def _compiled(job: tuple[Any, ...]) -> str:
    name, configuration, problem, limits, folder = job
    family = load_families(target="cuda", operation="gemm")[name]
    try:
        programs = ProgramCache(Path(folder))
        make_program(family, family.conform(configuration), problem, limits, programs)
    except AutotuneError as error:
        return f"{name} {configuration}: {error}"[:300]
    return ""


# --- What is shipped ---


def ship(args: argparse.Namespace) -> None:
    """Learn prices from times, select programs, and write portfolios with their binaries."""
    device = Device.named(args, args.dtype)
    book = device.book()
    best = _learn(device, book, args)
    if args.same:
        chosen = [each for each in book.programs if each.known is not None]
    else:
        chosen = _selected(device, book, best, args)
    for dtype in (args.dtype, *args.like):
        _write(Device.named(args, dtype), chosen, book, len(best))


def _learn(
    device: Device, book: PriceBook, args: argparse.Namespace
) -> dict[Sizes, dict[Key, float]]:
    """Teach a book times; gives the best seconds of every program on every shape.

    Unless learnt anew, what shipped prices tell of some shapes that are no layers counts as times,
    too: plans have few of such.
    """
    best: dict[Sizes, dict[Key, float]] = {}
    shipped = book.programs
    lines = [each for file in args.files for each in file.read_text().splitlines()]
    for row in map(json.loads, lines):
        sizes = Sizes.of(device.problem(row["sizes"], row["layout"]))
        known = best.setdefault(sizes, {})
        for name, configuration, us in row["calls"]:
            candidate = Candidate(name, device.families[name].conform(configuration))
            program = book.program(candidate, row["layout"])
            assert program is not None
            if not _stays(program, args.keep):
                book.note(Timed(candidate, sizes, us / 1e6))
            known[program.key] = min(us / 1e6, known.get(program.key, np.inf))
    told = [each for each in shipped if each.timed and not args.anew]
    elsewhere = {
        layout: _told_of(
            [each for each in _elsewhere(device, args.seed, layout) if not _is_layer(each)],
            args.told,
        )
        for layout in {each.key.layout for each in told}
    }
    for program in told:
        for sizes in elsewhere[program.key.layout]:
            configuration, seconds = program.expected(sizes)
            book.note(Timed(Candidate(program.key.family, configuration), sizes, seconds))
    book.learn()
    for program in told:  # a portfolio says what was measured
        del program.timed[len(program.timed) - len(elsewhere[program.key.layout]) :]
    return best


def _told_of(shapes: Sequence[Sizes], most: int) -> list[Sizes]:
    """So many shapes, and as many large ones: of those a survey times few."""
    large = [each for each in shapes if each.products > LARGE_WORK]
    return [each[number * len(each) // most] for each in (shapes, large) for number in range(most)]


def _selected(
    device: Device,
    book: PriceBook,
    best: Mapping[Sizes, Mapping[Key, float]],
    args: argparse.Namespace,
) -> list[Any]:
    """Programs that together do best, as they are chosen; some stay in any case."""
    fastest = set(_fastest(best, POOL))
    able = [
        each
        for each in book.programs
        if each.known is not None
        or (
            not _stays(each, args.keep)
            and each.key in fastest
            and _believed(device, each, book, best)
        )
    ]
    able.sort(key=lambda each: not _stays(each, args.keep))
    fixed, most = sum(_stays(each, args.keep) for each in able), min(args.programs, LARGEST)
    if fixed > most:
        sys.exit(f"{fixed} programs stay, of {most} at most")
    elsewhere = _elsewhere(device, args.seed)
    large = [each for each in elsewhere if each.products > LARGE_WORK]
    layers = [each for each in best if _is_layer(each)]
    sizes = [*best, *elsewhere, *large * LARGE, *layers * LAYERS]
    unlike = dict.fromkeys(sizes)
    seconds = np.full((len(able), len(sizes)), np.inf)
    told = seconds.copy()
    for row, program in enumerate(able):
        doubt = 1.0 if program.known is not None else math.exp(program.spread)
        caution = math.exp(CAUTION * program.spread)
        own = (each for each in unlike if each.layout == program.key.layout)
        expected = {each: _expected(device, program, each) for each in own}
        for column, each in enumerate(sizes):
            if each in expected:
                told[row, column] = expected[each] * caution
                known = best.get(each, {}).get(program.key)
                seconds[row, column] = known or expected[each] * doubt
    served = np.isfinite(seconds).any(axis=0)
    seconds, told = seconds[:, served], told[:, served]
    if args.first:
        rows, _ = select(seconds, most=most, loss=0.0)
    else:  # what a device has is changed only where that helps
        rows = [row for row, each in enumerate(able) if each.known is not None]
    rows = [*range(fixed), *(row for row in rows if row >= fixed)][:most]
    chosen, lost = _as_chosen(seconds, told, rows, fixed, most)
    new = sum(able[row].known is None for row in chosen)
    print(f"{len(chosen)} programs, {new} new; as they are chosen they lose {lost:.4f}")
    return [able[row] for row in chosen]


def _stays(program: Any, keep: Sequence[str]) -> bool:
    layout, family = program.key.layout, program.key.family
    return not {layout, family, f"{layout}/{family}"}.isdisjoint(keep)


def _as_chosen(
    seconds: NDArray[np.float64],
    told: NDArray[np.float64],
    chosen: list[int],
    fixed: int,
    most: int,
) -> tuple[list[int], float]:
    """Programs that do best as they are chosen, by what prices tell, and what they lose then.

    A program that is never as fast as its prices promise is chosen in place of better ones. Such
    are taken out, but for the `fixed` first, and others are put in, one by one while that helps.
    Where there is no room, one takes the place of another.
    """
    least = np.log(seconds.min(axis=0))
    columns = np.arange(seconds.shape[1])

    def losses(rows: list[int]) -> NDArray[np.float64]:
        each = told[rows].argmin(axis=0)
        return np.minimum(np.log(seconds[rows][each, columns]) - least, FARTHEST)

    now = losses(chosen)
    while True:
        fewer = [[row for row in chosen if row != other] for other in chosen[fixed:]]
        first = told[chosen].min(axis=0)
        gains = np.where(told < first, np.log(seconds) - least - now, 0.0).mean(axis=1)
        added = int(gains.argmin())
        more = [chosen] if len(chosen) < most else fewer
        tried = [*fewer, *([*rows, added] for rows in more)]
        better = [(losses(rows).mean(), rows) for rows in filter(None, tried)]
        loss, rows = min(better, default=(np.inf, chosen))
        if loss > now.mean() - ENOUGH:
            return chosen, float(np.expm1(now.mean()))
        chosen, now = rows, losses(rows)


def _expected(device: Device, program: Any, sizes: Sizes) -> float:
    """Seconds that a program is expected to take; infinitely many where no call is valid."""
    problem = device.problem((sizes.m, sizes.n, sizes.k), sizes.layout)
    _, seconds = next(_valid(device, program, problem), (None, np.inf))
    return float(seconds * strangeness(sizes, program.largest))


def _told(device: Device, program: Any, sizes: Sizes) -> float:
    """Seconds that a portfolio chooses a program by."""
    return _expected(device, program, sizes) * math.exp(CAUTION * program.spread)


def _believed(
    device: Device, program: Any, book: PriceBook, best: Mapping[Sizes, Mapping[Key, float]]
) -> bool:
    """Return whether a new program was timed enough, and may be chosen by its prices.

    Not if they have it beat all on a shape where it took much longer than they say; nor on large
    or small products, or on few rows, if it was hardly timed on such: its prices are of others.
    """
    if len(program.timed) < FEWEST:
        return False
    first, timed = program.timed[0][0], [each[0] for each in program.timed]
    doubtful = [
        sizes
        for sizes, times in best.items()
        if times.get(program.key, 0.0) > SURPRISE * program.expected(sizes)[1]
    ]
    if sum(each.products > LARGE_WORK for each in timed) < FEWEST_ALIKE:
        doubtful += [dataclasses.replace(first, m=side, n=side, k=side) for side in SIDES]
    if sum(each.products <= SMALL_WORK for each in timed) < FEWEST_ALIKE:
        doubtful += [dataclasses.replace(first, m=side, n=side, k=side) for side in SMALL_SIDES]
    for rows, columns in itertools.product(FEW_ROWS, COLUMNS):
        if sum(each.m <= rows for each in timed) < FEWEST_ALIKE:
            doubtful.append(dataclasses.replace(first, m=rows, n=4096, k=columns))
    alike = [each for each in book.programs if each.key.layout == program.key.layout]
    known = [each for each in alike if each.known is not None]
    for sizes in doubtful:
        least = min((_told(device, each, sizes) for each in known), default=0.0)
        if _told(device, program, sizes) < least:
            return False
    return True


def _elsewhere(device: Device, seed: int, layout: str = "") -> list[Sizes]:
    """Shapes as earlier surveys drew them: layers, and any, most of them not aligned.

    They are in layouts as models use them, or all in one.
    """
    drawn = _drawn_elsewhere(seed)
    return [Sizes.of(device.problem(sizes, layout or usual)) for sizes, usual in drawn]


def _drawn_elsewhere(seed: int) -> Iterator[tuple[tuple[int, int, int], str]]:
    layouts = ("nn", "nn", "nn", "nt", "nn", "tn", "nn", "nn", "tt", "nn")
    for number, shape in enumerate(itertools.islice(draw(seed, GPU), ELSEWHERE // 2)):
        yield shape.sizes, layouts[number % 10]
    for side, layout in itertools.product(SIDES, ("nn", "nt", "tn", "tt")):
        yield (side, side, side), layout
    layouts = ("nt", "nt", "nn", "nt", "tn")
    any_work = dataclasses.replace(GPU, work=(0.0, np.inf))
    layers = {layout: _layers(layout, seed, any_work) for layout in layouts}
    for number in range(ELSEWHERE // 2):
        layout = layouts[number % 5]
        yield next(layers[layout]).sizes, layout


def _write(device: Device, chosen: Sequence[Any], book: PriceBook, shapes: int) -> None:
    before, problem = device.portfolio, device.problem((64, 64, 64), "nn")
    known = {entry.key: entry for entry in before.entries}
    entries = []
    for program in chosen:
        entry = program.entry(device.families[program.key.family])
        old = known.get(entry.key)
        if old is not None and old.family_digest == entry.family_digest:
            binary, support = old.binary, old.support
            learnt = dataclasses.replace(entry, binary=binary, support=support)
            entry = learnt if program.timed else old
        entries.append(entry)
    with tempfile.TemporaryDirectory() as folder:
        programs = ProgramCache(Path(folder))
        for number, entry in enumerate(entries):
            if entry.binary is None:
                entries[number] = _with_binary(device, entry, problem, programs)
            elif device.first != device.file:
                for digest in filter(None, (entry.binary, entry.support)):
                    name = f"{digest}{COMPRESSED}"
                    if not device.file.with_name(name).exists():
                        shutil.copyfile(device.first.with_name(name), device.file.with_name(name))
    called = with_calls(entries, device.families, problem, device.limits)
    portfolio = dataclasses.replace(
        before,
        entries=tuple(called),
        families={**before.families, **book.common},
        shapes=before.shapes + shapes,
        created=utc_now(),
    )
    others = [each for each in read_portfolios(device.file) if not _is_for(each, problem)]
    text = [next(export_lines([])), *(line(portfolio_document(p)) for p in [*others, portfolio])]
    device.file.write_text("".join(f"{each}\n" for each in text))
    print(f"{len(called)} programs of {before.dtype} in {device.file}")


def _with_binary(device: Device, entry: Any, problem: Gemm, programs: ProgramCache) -> Any:
    family = device.families[entry.family]
    here = dataclasses.replace(problem, layout=entry.layout)
    code = make_program(family, entry.configuration, here, device.limits, programs)
    digests = []
    for content in (code.cubin, code.support):
        digest = hashlib.sha256(content).hexdigest() if content else None
        digests.append(digest)
        if digest:
            path = device.file.with_name(f"{digest}{COMPRESSED}")
            path.write_bytes(lzma.compress(content, preset=9))
    return dataclasses.replace(entry, binary=digests[0], support=digests[1])


# --- What is chosen ---


def compare(args: argparse.Namespace) -> None:
    """Print the speed of chosen calls relative to PyTorch's, by kinds of shapes and layouts.

    A shape that all plans choose the same call for has one time; one of whose calls failed counts
    for none.
    """
    lines = [each for file in args.files for each in file.read_text().splitlines()]
    every = [json.loads(each) for each in lines]
    rows = [row for row in every if not row["failures"]]
    print(f"{len(every) - len(rows)} of {len(every)} shapes have a call that failed\n")
    layouts = dict.fromkeys(row["layout"] for row in rows)
    print(f"| shapes | {' | '.join(layouts)} |\n|---|{'---|' * len(layouts)}")
    for kind in dict.fromkeys(row["kind"] for row in rows):
        cells = [kind]
        for layout in layouts:
            own = [row for row in rows if (row["kind"], row["layout"]) == (kind, layout)]
            if not own:
                cells.append("")
                continue
            first, last = (
                [row["library_us"] / row["calls"][place][2] for row in own] for place in (0, -1)
            )
            means = ", ".join(f"{statistics.geometric_mean(each):.2f}" for each in (first, last))
            cells.append(f"{means} ({min(last):.2f}) of {len(own)}")
        print(f"| {' | '.join(cells)} |")


STEPS = {"plan": plan, "choose": choose, "time": time_all, "ship": ship, "compare": compare}


if __name__ == "__main__":
    main()
