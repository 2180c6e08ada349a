"""The example operations beside what people use for them: ``python benchmarks/operations.py``.

Each problem is tuned in a cache of its own; then its kernel and its peer take turns on the same
operands. On a GPU the peer is PyTorch (cuBLAS and cuDNN, without TF32), both are captured in CUDA
graphs, so that no call waits for Python, and operands rotate through more than the level-2 cache.
On a CPU the peer is NumPy as one writes it: its products may take as many threads as the kernel,
its sums and element-wise functions (row_sum, stencil, bias and relu) take one. A ratio is that of
two neighbours in time; what is printed are its median and the range of its middle 80%. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune import find_operation, load, tune
from autotune.core.errors import TuningFailedError
from autotune.cpu.harness import SETTLE_S

FOLDER = Path(__file__).parents[1] / "examples" / "operations"
SHAPES: Mapping[str, tuple[str, ...]] = {
    "gemv": ("4096x4096", "16384x16384", "65536x128", "16x65536", "1000x1001"),
    "row_sum": ("4096x4096", "16384x16384", "65536x128", "16x1048576"),
    "batched_gemm": ("10000x8x8x8", "4096x16x16x16", "1024x64x64x64", "64x512x512x512"),
    "gemm_bias_relu": ("512x512x512", "2048x2048x2048", "4096x4096x4096", "1000x1001x999"),
    "stencil": ("1024x1024", "4096x4096", "16384x16384"),
}
BURST_S = 2e-3
"""What one turn takes at least."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Compared:
    """Times of a kernel and its peer that took turns.

    Attributes:
        seconds: median time of the kernel's calls.
        ratios: the peer's time over the kernel's, turn by turn.
    """

    seconds: float
    ratios: tuple[float, ...]

    @classmethod
    def of(cls, turns: list[tuple[float, float]]) -> Compared:
        """From pairs of seconds: the kernel's, the peer's."""
        ratios = sorted(peer / ours for ours, peer in turns)
        return cls(statistics.median(ours for ours, _ in turns), tuple(ratios))

    def summary(self) -> str:
        """The median ratio and the range of the middle 80%."""
        count = len(self.ratios)
        low, high = self.ratios[count // 10], self.ratios[count - 1 - count // 10]
        return f"**{statistics.median(self.ratios):.2f}** [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--operations", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--shapes", nargs="+", help="of one operation; default: several of each")
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of search each")
    parser.add_argument("--turns", type=int, default=31)
    args = parser.parse_args()

    print(described(args.target))
    print(
        f"- search: 200 trials or {args.timeout:g} s each; {args.turns} turns of kernel and peer\n"
    )
    print("| operation | shape | dtype | kernel | ms | GB/s | GFLOP/s | peer's time / ours |")
    print("|---|---|---|---|---|---|---|---|")
    compare = on_gpu if args.target == "cuda" else on_cpu
    with tempfile.TemporaryDirectory() as cache:
        for name in args.operations:
            operation = find_operation(name, [FOLDER], target=args.target)
            for dtype in args.dtypes:
                for text in args.shapes or SHAPES[name]:
                    problem = operation.at(operation.parse_shape(text), dtype=dtype)
                    own = {"target": args.target, "cache": cache, "extra_families": [FOLDER]}
                    try:
                        best = tune(problem, timeout=args.timeout, **own).best
                    except TuningFailedError as error:
                        print(f"| {name} | {text} | {dtype} | {one_line(error)} | | | | |")
                        continue
                    compared = compare(load(problem, **own), problem, args.turns)
                    print(
                        f"| {name} | {text} | {dtype} | {best.candidate.family}: "
                        f"{best.candidate.configuration} | {compared.seconds * 1e3:.4f} "
                        f"| {problem.traffic / compared.seconds / 1e9:.0f} "
                        f"| {problem.flops / compared.seconds / 1e9:.0f} | {compared.summary()} |",
                        flush=True,
                    )


def one_line(error: Exception) -> str:
    """What went wrong, for a cell."""
    return " ".join(str(error).split()).replace("|", "/")[:200]


def described(target: str) -> str:
    """Lines naming the machine and the software."""
    if target == "cpu":
        from environment import describe

        return describe()
    import torch
    from gpu_environment import describe_gpu, read_gpu

    return f"{describe_gpu(read_gpu())}\n- peer: PyTorch {torch.__version__}, TF32 off"


def on_cpu(kernel: Any, problem: Any, turns: int) -> Compared:
    """Kernel and NumPy in turns on the same arrays, each when the other's threads are at rest."""
    rng = np.random.default_rng(0)
    operands = {
        each.name: rng.uniform(-1, 1, each.shape).astype(each.dtype) for each in problem.operands
    }
    out = operands[problem.defined.output.name]
    inputs = [operands[each.name] for each in problem.defined.inputs]
    peer = numpy_call(problem.operation, operands, dict(problem.defined.scalars))

    def seconds(call: Call, calls: int) -> float:
        time.sleep(SETTLE_S)
        call()  # wakes its own
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / calls

    def ours() -> object:
        return kernel(*inputs, out=out)

    ours(), peer()
    calls = [max(1, round(BURST_S / seconds(each, 1))) for each in (ours, peer)]
    return Compared.of([(seconds(ours, calls[0]), seconds(peer, calls[1])) for _ in range(turns)])


def numpy_call(name: str, v: Mapping[str, Any], scalars: Mapping[str, float]) -> Call:
    """The operation as one writes it with NumPy, into arrays that are there."""
    match name:
        case "gemv":
            return lambda: np.matmul(v["A"], v["x"], out=v["y"])
        case "row_sum":
            return lambda: np.sum(v["A"], axis=1, out=v["y"])
        case "batched_gemm":
            return lambda: np.matmul(v["A"], v["B"], out=v["C"])
        case "gemm_bias_relu":

            def layer() -> None:
                np.matmul(v["A"], v["B"], out=v["C"])
                np.add(v["C"], v["bias"], out=v["C"])
                np.maximum(v["C"], 0, out=v["C"])

            return layer
    a, b = v["A"], v["B"]
    around = np.empty_like(a)

    def stencil() -> None:
        around.fill(0)
        around[1:] += a[:-1]
        around[:-1] += a[1:]
        around[:, 1:] += a[:, :-1]
        around[:, :-1] += a[:, 1:]
        np.multiply(around, scalars["side"], out=around)
        np.multiply(a, scalars["center"], out=b)
        np.add(b, around, out=b)

    return stencil


def on_gpu(kernel: Any, problem: Any, turns: int) -> Compared:
    """Kernel and PyTorch in turns, each call on the next of several sets of operands."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    copies = max(2, -(-2 * cache // problem.traffic))
    dtype = getattr(torch, problem.dtype)
    sets = [
        {
            each.name: torch.rand(each.shape, dtype=dtype, device="cuda") * 2 - 1
            for each in problem.operands
        }
        for _ in range(min(copies, 512))
    ]
    inputs, output = [each.name for each in problem.defined.inputs], problem.defined.output.name
    scalars = dict(problem.defined.scalars)
    stream = torch.cuda.Stream()

    def ours(v: Mapping[str, Any]) -> None:
        kernel(*(v[name] for name in inputs), out=v[output], stream=stream.cuda_stream)

    def peer(v: Mapping[str, Any]) -> None:
        torch_call(problem.operation, v, scalars)

    def captured(call: Callable[[Mapping[str, Any]], None]) -> Callable[[], float]:
        """Seconds of one call, from a graph of as many as a turn takes."""
        with torch.cuda.stream(stream):
            call(sets[0])  # libraries load and choose
            stream.synchronize()
            begin = time.perf_counter()
            for each in sets:
                call(each)
            stream.synchronize()
            once = (time.perf_counter() - begin) / len(sets)
        calls = min(2000, len(sets) * max(1, round(BURST_S / once / len(sets))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for number in range(calls):
                call(sets[number % len(sets)])

        def run() -> float:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.stream(stream):
                first.record()
                graph.replay()
                last.record()
            last.synchronize()
            return float(first.elapsed_time(last)) / 1e3 / calls

        run()
        return run

    with torch.inference_mode():
        timed = captured(ours), captured(peer)
        return Compared.of([(timed[0](), timed[1]()) for _ in range(turns)])


def torch_call(name: str, v: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
    """The operation as one writes it with PyTorch."""
    import torch

    match name:
        case "gemv":
            torch.mv(v["A"], v["x"], out=v["y"])
        case "row_sum":
            torch.sum(v["A"], 1, out=v["y"])
        case "batched_gemm":
            torch.bmm(v["A"], v["B"], out=v["C"])
        case "gemm_bias_relu":
            torch.addmm(v["bias"], v["A"], v["B"], out=v["C"]).relu_()
        case _:
            center, side = scalars["center"], scalars["side"]
            weights = [[0.0, side, 0.0], [side, center, side], [0.0, side, 0.0]]
            torch.nn.functional.conv2d(
                v["A"][None, None], stencil_weights(v["A"], weights), padding=1
            )


_WEIGHTS: dict[Any, Any] = {}


def stencil_weights(a: Any, weights: list[list[float]]) -> Any:
    """The weights on the GPU, copied there once: no copy is part of a call."""
    key = (a.dtype, a.device)
    if key not in _WEIGHTS:
        _WEIGHTS[key] = a.new_tensor(weights)[None, None]
    return _WEIGHTS[key]


if __name__ == "__main__":
    main()
