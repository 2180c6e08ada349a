"""Shapes that nobody tuned for, beside the best library: ``python benchmarks/every_shape.py``.

Draws shapes log-uniformly from a seed; every third one is odd in all sizes. Of each, what
``load(Gemm(...), match="nearest")`` gives takes turns with cuBLAS (strict FP32) or with NumPy and
OpenBLAS, of which the faster one counts. A ratio is the median of the turns' ratios; every result
is verified on sampled rows.

    python benchmarks/every_shape.py --target cuda --seed 1 --count 100 -o after.jsonl
    python benchmarks/every_shape.py --target cuda --count 30 --tuned 10 --copy --squares
    python benchmarks/every_shape.py --target cpu --threads 1 --count 100
    python benchmarks/every_shape.py --report after.jsonl --compare before.jsonl --plot shapes.png

Says a line for each shape at once, and prints Markdown in the end. ``-o`` keeps every line as JSON
as soon as it is known; ``--skip`` goes on where a run was cut off; ``--report`` reads several such
files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from shape_draws import CPU, GPU, Shape, draw
from shape_plot import scatter
from shape_rows import Asked, Header, Row, read_rows
from shape_tables import compared, report

from autotune.core.dtypes import DTYPES

FOOT = 130
"""Characters of a line below a picture."""


def main() -> None:
    args = _arguments()
    if args.report:
        headers, rows = read_rows(args.report)
    else:
        headers, rows = _measured(args)
    print(report(headers, rows))
    runs = [("", rows)]
    if args.compare:
        _, before = read_rows([args.compare])
        print(f"\n### Before and after\n\n{compared(before, rows)}")
        runs = [("before", before), ("after", rows)]
    if args.plot and any(row.ratio is not None for row in rows):
        scatter(args.plot, _foot(headers), runs)


def measured(asked: Asked, target: str) -> Iterator[Header | Row]:
    """Headers and rows, as they come.

    Args:
        asked: what to measure.
        target: "cuda" or "cpu".
    """
    if target == "cuda":
        from shape_gpu_run import measure
    else:
        from shape_cpu_run import measure
    return measure(asked)


def _measured(args: argparse.Namespace) -> tuple[list[Header], list[Row]]:
    """Measure, and tell of each shape at once: a run may be cut off."""
    headers: list[Header] = []
    rows: list[Row] = []
    with ExitStack() as stack:
        out = stack.enter_context(args.output.open("a")) if args.output else None
        for found in measured(_asked(args), args.target):
            if out is not None:
                print(json.dumps(found.document()), file=out, flush=True)
            if isinstance(found, Row):
                rows.append(found)
                print(found.line(), file=sys.stderr, flush=True)
            else:
                headers.append(found)
                print("\n".join(found.text), file=sys.stderr, flush=True)
    return headers, rows


def _asked(args: argparse.Namespace) -> Asked:
    drawn = draw(args.seed, GPU if args.target == "cuda" else CPU, args.multiple)
    last = args.skip + args.count
    shapes = [*itertools.islice(drawn, args.skip, last), *args.shapes]
    text = f"- {args.dtype}, seed {args.seed}, shapes {args.skip} to {last - 1} drawn from it"
    if args.multiple > 1:
        text += f", all sizes multiples of {args.multiple}"
    if args.shapes:
        text += f", and {', '.join(map(str, args.shapes))}"
    if args.tuned:
        text += f"; the first {args.tuned} were also tuned, {args.seconds:g} s each"
    return Asked(
        shapes,
        args.dtype,
        args.seed,
        args.cache,
        args.tuned,
        args.seconds,
        args.copy,
        args.squares,
        args.threads,
        args.device,
        tuple(args.cblas),
        text,
    )


def _foot(headers: Sequence[Header]) -> str:
    """Machine, date and commit, and what was drawn, for a picture."""
    lines = [line.removeprefix("- ") for header in headers[:1] for line in header.text]
    told = [line for line in lines if line.startswith(("date", *DTYPES))]
    short = [textwrap.shorten(line, FOOT, placeholder=" ...") for line in told]
    device = headers[0].device if headers else ""
    return "\n".join([", ".join([device, *short[:1]]), *short[1:]])


def _shape(text: str) -> Shape:
    m, n, k = map(int, text.split("x"))
    return Shape(m, n, k)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    parser.add_argument("--seed", type=int, default=0, help="of shapes and operands")
    parser.add_argument("--multiple", type=int, default=1, help="draw multiples of it alone")
    parser.add_argument("--count", type=int, default=100, help="shapes (default 100)")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first so many")
    parser.add_argument(
        "--shapes", type=_shape, nargs="*", default=[], metavar="MxNxK", help="besides"
    )
    parser.add_argument("--threads", type=int, default=0, help="of the CPU (default: all)")
    parser.add_argument("--device", help="GPU, by number or name")
    parser.add_argument("--cache", help="of tuning records (default: the user's)")
    parser.add_argument("--cblas", nargs="*", default=[], metavar="NAME=PATH")
    parser.add_argument("--tuned", type=int, default=0, help="tune the first so many as well")
    parser.add_argument("--seconds", type=float, default=25.0, help="of search for each of them")
    parser.add_argument(
        "--copy", action="store_true", help="measure the memory; shares of it for few rows"
    )
    parser.add_argument("--squares", action="store_true", help="with energy, on a GPU")
    parser.add_argument("-o", "--output", type=Path, help="JSON Lines, appended to")
    parser.add_argument("--report", type=Path, nargs="+", help="measure nothing, read these")
    parser.add_argument("--compare", type=Path, help="an earlier output")
    parser.add_argument("--plot", type=Path, help="PNG or SVG: ratios against work")
    return parser.parse_args()


if __name__ == "__main__":
    main()
