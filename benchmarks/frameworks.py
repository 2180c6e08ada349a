"""Tuned kernels inside PyTorch: ``python benchmarks/frameworks.py`` on a GPU.

An MLP and a transformer block in strict FP32 (or ``--dtype bfloat16``), forward and in training,
with PyTorch's products and with the switch on, in turns within one run; what of it is products;
and calls of the operator, the switch and `torch.mm` on small squares: one by one, and in a CUDA
graph. With ``--decoder`` blocks of a language model instead, in CUDA graphs, by the number of
tokens. Shapes are tuned first with ``--tune SECONDS``. What the switch puts before PyTorch's
kernels stays until the process ends, so the operator is measured before it is first on. Models of
few tokens wait for the host. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from gpu_environment import GpuWatch, describe_gpu, read_gpu
from torch.nn import functional

from autotune import Gemm, tune
from autotune.core.session import forget
from autotune.torch import mm, use_tuned

Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048, help="rows of the products")
    parser.add_argument("--width", type=int, default=1024, help="of the model; its layers have 4x")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each turn")
    parser.add_argument(
        "--small", type=int, default=256, help="side of the squares that are called"
    )
    parser.add_argument("--calls", type=int, default=2000, help="of each turn on small squares")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--decoder", action="store_true", help="blocks of a language model")
    parser.add_argument(
        "--sizes",
        type=int,
        nargs=3,
        default=(4096, 6144, 14336),
        metavar="N",
        help="of the decoder: width, columns of the attention's projection, hidden",
    )
    parser.add_argument("--tune", type=float, default=0, help="seconds for each shape")
    args = parser.parse_args()
    os.environ.setdefault("AUTOTUNE_BACKGROUND", "0")
    torch.set_float32_matmul_precision("highest")
    device = read_gpu()
    print(describe_gpu(device))
    tuned = f"{args.tune:g} s of tuning for each shape" if args.tune else "nothing tuned before"
    print(f"- {args.dtype}; PyTorch {torch.__version__}; {args.turns} turns; {tuned}\n")
    place = {"device": "cuda", "dtype": getattr(torch, args.dtype)}
    if args.decoder:
        with GpuWatch(device) as watch:
            print_decoder(args, place)
        print(f"\n{watch.summary()}")
        return
    models = {
        "MLP": Mlp(args.width).to(**place),
        "transformer block": Block(args.width, args.heads).to(**place),
    }
    x = torch.randn(1, args.tokens, args.width, **place)
    side = args.small
    a, b, out = (torch.randn(side, side, **place) for _ in range(3))
    operator = torch.ops.autotune.mm.default
    with GpuWatch(device) as watch:
        tune_all([Gemm(side, side, side, dtype=args.dtype)], args.tune)
        print(f"### Calls at {side} x {side} x {side}, {args.dtype}\n")
        print_calls(
            {
                "torch.mm": lambda: torch.mm(a, b),
                "autotune.torch.mm": lambda: mm(a, b),
                "torch.ops.autotune.mm": lambda: operator(a, b),
            },
            args,
        )
        print("\nOnce the switch has been on:\n")
        print_calls(
            {
                "torch.mm, off": lambda: torch.mm(a, b),
                "torch.mm, on": lambda: torch.mm(a, b),
                "torch.mm(out=), on": lambda: torch.mm(a, b, out=out),
            },
            args,
        )
        tune_all(products_of(models, x), args.tune)
        print_models(models, x, args)
    print(f"\n{watch.summary()}")


def tune_all(problems: list[Gemm], seconds: float) -> None:
    """Tune some problems for so long each; for no time, leave what there is."""
    if seconds:
        for problem in problems:
            tune(problem, target="cuda", timeout=seconds)
        forget()


class Mlp(torch.nn.Module):
    """Two layers and what is between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        return self.down(functional.gelu(self.up(x)))


class Block(torch.nn.Module):
    """Attention and an MLP, each normalised before and added after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = torch.nn.LayerNorm(width)
        self.between = torch.nn.LayerNorm(width)
        self.into = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.mlp = Mlp(width)

    def forward(self, x: Any) -> Any:
        parts = self.into(self.before(x)).chunk(3, -1)
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in parts
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.between(x))


class Decoder(torch.nn.Module):
    """The products of a block of a language model, and what is between them but attention itself.

    Weights of several blocks take turns, so that none is in a cache when it is needed.
    """

    def __init__(self, width: int, projected: int, hidden: int) -> None:
        super().__init__()
        layers = ((width, projected), (width, width), (width, hidden), (width, hidden))
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(*sizes, bias=False) for sizes in (*layers, (hidden, width))
        )

    def forward(self, x: Any) -> Any:
        into, out, gate, up, down = self.layers
        x = x + out(into(x)[:, : x.shape[1]])
        x = x + down(functional.silu(gate(x)) * up(x))
        return functional.rms_norm(x, x.shape[1:])


BLOCKS = 3
TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
WARM_UP = 3
"""Calls before a graph is captured: what a program does, and not enough for each shape's turns."""


def print_decoder(args: argparse.Namespace, place: dict[str, Any]) -> None:
    """Blocks of a language model, captured, by the number of tokens."""
    sizes = " x ".join(map(str, args.sizes))
    print(f"### {BLOCKS} blocks of a decoder, {sizes}, {args.dtype}, in a CUDA graph\n")
    print("| tokens | PyTorch, ms | switch on, ms | PyTorch / on (quartiles) | after more calls |")
    print("|---|---|---|---|---|")
    model = torch.nn.Sequential(*(Decoder(*args.sizes) for _ in range(BLOCKS))).to(**place)
    for tokens in TOKENS:
        x = torch.randn(tokens, args.sizes[0], **place)

        def forward(x: Any = x) -> None:
            with torch.no_grad():
                model(x)

        plain, columns = captured(forward), []
        for calls in (WARM_UP, 40):
            for _ in range(calls):
                switched(forward)()
            torch.cuda.synchronize()
            on = captured(switched(forward))
            count = max(int(args.seconds / elapsed(plain, 3)), 3)
            columns.append(in_turns([plain, on], count, args.turns))
        others, ours = columns[0]
        shown = " | ".join(f"{1e3 * statistics.median(each):.3f}" for each in (others, ours))
        print(f"| {tokens} | {shown} | {' | '.join(ratio(*each) for each in columns)} |")


def products_of(models: dict[str, Any], x: Any) -> list[Gemm]:
    """The problems that forward and backward passes are made of."""
    seen: dict[Gemm, None] = {}

    def note(problem: Gemm) -> bool:
        seen[problem] = None
        return False

    with use_tuned(note):
        for model in models.values():
            model(x).square().mean().backward()
    return list(seen)


def passes(model: Any, x: Any) -> Iterator[tuple[str, Call, Call | On]]:
    """What is timed of a model: with PyTorch's products, and with tuned ones."""

    def forward() -> None:
        with torch.no_grad():
            model(x)

    def training() -> None:
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()

    yield "forward", forward, On(forward)
    yield "forward and backward", training, On(training)
    yield "forward, captured", captured(forward), captured(switched(forward))


class On(NamedTuple):
    """A call that the switch is on for, as in a program: not for each one anew."""

    call: Call


def switched(call: Call) -> Call:
    """The same with the switch on."""

    def tuned() -> None:
        with use_tuned():
            call()

    return tuned


def captured(call: Call) -> Call:
    """A call as a CUDA graph, replayed."""
    call()  # what is loaded and allocated once is no part of it
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Call = graph.replay
    return replay


def elapsed(call: Call | On, count: int) -> float:
    """Seconds of each of some calls, by events of the GPU; enqueueing is part of it."""
    if isinstance(call, On):
        with use_tuned():
            return elapsed(call.call, count)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / count


def in_turns(calls: Sequence[Call | On], count: int, turns: int) -> list[list[float]]:
    """Times of calls that take turns, a list for each."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        elapsed(call, max(count // 10, 1))
    for turn in range(turns):
        order = range(len(calls)) if turn % 2 else reversed(range(len(calls)))
        for place in order:
            times[place].append(elapsed(calls[place], count))
    return times


def ratio(others: list[float], ours: list[float]) -> str:
    """How many times as long others take: the median of turns and its quartiles."""
    each = [other / own for other, own in zip(others, ours, strict=True)]
    low, middle, high = statistics.quantiles(each, n=4)
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def print_models(models: dict[str, Any], x: Any, args: argparse.Namespace) -> None:
    """Whole models; results agree to what the element type leaves open."""
    print(f"\n### Models, {args.tokens} tokens of width {args.width}, {args.dtype}\n")
    off = 1e-3 if args.dtype == "float32" else 5e-2
    print("| model | pass | PyTorch, ms | tuned, ms | PyTorch / tuned (quartiles) |")
    print("|---|---|---|---|---|")
    for name, model in models.items():
        with torch.no_grad():
            wanted = model(x)
            with use_tuned():
                torch.testing.assert_close(model(x), wanted, rtol=off, atol=off)
        for label, plain, tuned in passes(model, x):
            count = max(int(args.seconds / elapsed(plain, 3)), 3)
            others, ours = in_turns([plain, tuned], count, args.turns)
            shown = " | ".join(f"{1e3 * statistics.median(each):.3f}" for each in (others, ours))
            print(f"| {name} | {label} | {shown} | {ratio(others, ours)} |")


def print_calls(ways: dict[str, Call], args: argparse.Namespace) -> None:
    """Calls one after the other: the host's time, or the GPU's where that is more."""
    print(
        "| call | one by one, us | of the first's (quartiles) | in a graph, us | of the first's |"
    )
    print("|---|---|---|---|---|")
    with torch.no_grad():
        eager = [
            On(many(call)) if name.endswith(" on") else many(call) for name, call in ways.items()
        ]
        graphs = [captured(switched(e.call) if isinstance(e, On) else e) for e in eager]
        count = max(args.calls // IN_A_GRAPH, 1)
        columns = [in_turns(calls, count, args.turns) for calls in (eager, graphs)]
    for place, name in enumerate(ways):
        cells = []
        for times in columns:
            cells.append(f"{1e6 * statistics.median(times[place]) / IN_A_GRAPH:.2f}")
            cells.append(ratio(times[place], times[0]))
        print(f"| {name} | {' | '.join(cells)} |")


IN_A_GRAPH = 50
"""Calls that a graph is captured of."""


def many(call: Call) -> Call:
    """Some calls."""

    def repeated() -> None:
        for _ in range(IN_A_GRAPH):
            call()

    return repeated


if __name__ == "__main__":
    main()
