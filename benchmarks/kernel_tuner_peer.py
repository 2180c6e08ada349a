"""Kernels of one's own beside Kernel Tuner, on a GPU: ``python benchmarks/kernel_tuner_peer.py``.

Both tune the same source over the same space for as many seconds, each verifying what it tries.
Kernel Tuner has its CuPy backend; it lists spaces of up to 16 configurations, and searches others
by the strategy that did best in `search_peers.py`. Both winners are then compiled by CuPy and take
turns at the same operands. Of kernels with several launches Kernel Tuner tunes the main one, as
its examples do; turns are of all launches. Prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import cupy
import kernel_tuner
import numpy as np
from gpu_environment import describe_gpu, read_gpu
from kernel_tuner.searchspace import Searchspace

from autotune.core.configuration import Configuration
from autotune.families.gpu.planning import planner_of
from autotune.operations.parts import Kind
from autotune.own.call_sizes import sizes_of_call
from autotune.targets.families import catalog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from example_kernels import module, source

STRATEGY = "adaptive_tabu_greywolf"
LISTED = 16
TURNS = 21
TURN_S = 0.004

Make = Callable[[np.random.Generator], tuple[Any, ...]]


def _normal(*shape: int) -> Make:
    return lambda rng: (rng.standard_normal(shape, np.float32),)


def _layer(rng: np.random.Generator) -> tuple[Any, ...]:
    return (*_normal(4096, 4096)(rng), *_normal(4096)(rng), *_normal(4096)(rng))


def _made(name: str, function: str, *keys: str, **sizes: int) -> Make:
    """Operands that an example's own function makes, of float32 where they are floating."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        folder = "kernel_tuner" if name == "kernels" else "kernels"
        found = getattr(module(name, folder), function)(rng, **sizes)
        kinds = {"f": np.float32, "i": np.int32}
        return tuple(found[key].astype(kinds[found[key].dtype.kind]) for key in keys)

    return make


OPERANDS: Mapping[str, Make] = {
    "kernel_tuner/vector_add": lambda rng: (*_normal(10**7)(rng), *_normal(10**7)(rng)),
    "kernel_tuner/convolution": lambda rng: (*_normal(2064, 2064)(rng), *_normal(17, 17)(rng)),
    "kernel_tuner/matmul": lambda rng: (*_normal(2048, 2048)(rng), *_normal(2048, 2048)(rng)),
    "kernel_tuner/reduction": lambda rng: (rng.random(10**7, np.float32),),
    "kernel_tuner/pnpoly": _made("kernels", "ring", "points", "corners", N=200_000, V=600),
    "kernel_tuner/expdist": lambda rng: (
        *(rng.random((2048, 2)), rng.random((2048, 2))),
        *(0.1 + rng.random(2048), 0.1 + rng.random(2048)),
    ),
    "kernels/bitonic_step": lambda rng: (rng.integers(-(2**31), 2**31, 2**24).astype(np.int32),),
    "kernels/cholesky": _made("cholesky", "definite", "A", B=4096, N=32),
    "kernels/convolution": lambda rng: (*_normal(4100, 4100)(rng), *_normal(5, 5)(rng)),
    "kernels/heat": _normal(256, 256, 256),
    "kernels/histogram": lambda rng: (rng.geometric(0.05, 10**7).clip(0, 255).astype(np.uint8),),
    "kernels/layer_norm": _layer,
    "kernels/nbody": lambda rng: (*_normal(3, 4096)(rng), rng.random(4096, np.float32)),
    "kernels/prefix_sum": lambda rng: (rng.random(10**7, np.float32),),
    "kernels/quantisation": _normal(4096, 4096),
    "kernels/softmax": _normal(4096, 4096),
    "kernels/spmv": lambda rng: (
        *_made("spmv", "sparse", "indptr", "indices", M=200_000, N=200_000, Z=4_000_000)(rng),
        *(rng.random(4_000_000, np.float32), rng.random(200_000, np.float32)),
    ),
    "kernels/transposition": _normal(4096, 4096),
}


class Case:
    """A kernel of an example, with operands on the host.

    Args:
        name: of `OPERANDS`.
        cache: where autotune keeps what it finds.
    """

    def __init__(self, name: str, cache: Path) -> None:
        self.kernel = source(name)
        self.kernel._cache = cache
        inputs = OPERANDS[name](np.random.default_rng(0))
        self.defined = self.kernel.operation
        sizes = sizes_of_call(self.defined, inputs, None)
        dtype = self.kernel._dtype(inputs)
        self.problem = self.kernel.problem(**sizes, dtype=dtype)
        self.family = catalog("cuda", self.kernel.name, [self.kernel.folder])[self.kernel.name]
        self.limits: Any = read_gpu(0).limits
        self.first = {each.name: each.values[0] for each in self.family.parameters}
        given = dict(zip((each.name for each in self.defined.inputs), inputs, strict=True))
        self.arrays = {
            each.name.lower(): given.get(each.name, np.zeros(each.shape, each.dtype))
            for each in self.problem.operands
        }

    @property
    def launch(self) -> Any:
        """The launch of its family."""
        return self.family.launch

    def plan(self, chosen: Mapping[str, Any]) -> Any:
        """The launches of a configuration."""
        held = Configuration({name: chosen[name] for name in self.first})
        return planner_of(self.family, held, self.problem.dtype, self.limits).plan(self.problem)

    def step(self, chosen: Mapping[str, Any]) -> Any:
        """The launch of the main kernel."""
        steps = {each.kernel: each for each in self.plan(chosen).steps}
        return steps[self.kernel.name]

    def text(self, chosen: Mapping[str, Any], left_out: Collection[str] = ()) -> str:
        """The source of a configuration, without some of its macros."""
        lines = self.kernel.emit(dtype=self.problem.dtype, **chosen).splitlines()
        words = [[*each.split(), "", ""][:2] for each in lines]
        return "\n".join(
            each
            for each, (first, name) in zip(lines, words, strict=True)
            if first != "#define" or name not in left_out
        )

    def arguments(self, arrays: Mapping[str, Any], workspace: Any) -> list[Any]:
        """The arguments of its kernels, in order."""
        types = self.defined.scalar_types(self.problem.dtype)
        spelled = {self.defined.spelled(name): name for name in self.defined.sizes}
        scalars, found = dict(self.defined.scalars), list[Any]()
        for each in self.defined.arguments:
            if each.kind is Kind.SIZE:
                found.append(np.int32(self.problem.sizes[spelled[each.name]]))
            elif each.kind is Kind.SCALAR:
                found.append(np.dtype(types[each.name]).type(scalars[each.name]))
            else:
                found.append(arrays[each.name.lower()])
        return found if workspace is None else [*found, workspace]

    def ours(self, seconds: float) -> tuple[dict[str, Any], int]:
        """The winner of autotune, and the number of configurations that were tried."""
        result = self.kernel.tune(self.problem, trials=10_000, timeout=seconds)
        return dict(result.best.candidate.configuration), len(result.trials)

    def theirs(self, seconds: float, answer: list[Any] | None) -> tuple[dict[str, Any], int]:
        """The winner of Kernel Tuner, and the number of configurations that were tried."""
        tuned = {each.name: [*each.values] for each in self.family.parameters}
        block = [text for text in self.kernel._definition.launch.block if text in tuned]
        if not block:  # threads of a block are a parameter there: 32 * WARPS
            block = ["block_size_x"]
            tuned["block_size_x"] = [32 * each for each in tuned["WARPS"]]

        def holds(*values: Any, **named: Any) -> bool:
            p = named or dict(zip(tuned, values, strict=True))
            if block[0] not in self.first and p["block_size_x"] != 32 * p["WARPS"]:
                return False
            chosen = {name: p[name] for name in self.first}
            known = self.family.values(chosen, self.problem, self.limits)
            return all(each.expression.holds(known) for each in self.family.restrictions)

        space = Searchspace(tuned, [holds], 1024)
        workspace = None
        if self.launch.workspace_bytes is not None:
            rows = [dict(zip(tuned, row, strict=True)) for row in space.list]
            most = max(self.plan(row).workspace_bytes for row in rows)
            workspace = np.zeros(max(most // 4, 1) + 1, self.problem.dtype)
        listed = space.size <= LISTED
        results, _ = kernel_tuner.tune_kernel(
            self.kernel.name,
            self.text(self.first, tuned),
            lambda p: self.step(p).grid,
            self.arguments(self.arrays, workspace),
            tuned,
            grid_div_x=[],
            grid_div_y=[],
            grid_div_z=[],
            restrictions=[holds],
            block_size_names=block,
            smem_args={"size": lambda p: self.step(p).shared_bytes},
            answer=answer,
            atol=1e-3 if answer is None else 1e-3 * max(map(_largest, answer)),
            lang="cupy",
            compiler_options=["--std=c++17"],
            strategy="brute_force" if listed else STRATEGY,
            strategy_options={} if listed else {"time_limit": seconds},
            quiet=True,
        )
        right = [each for each in results if isinstance(each.get("time"), float)]
        best = min(right, key=lambda each: float(each["time"]))
        return {name: best[name] for name in self.first}, len(results)

    def launched(self, chosen: Mapping[str, Any]) -> tuple[Callable[[], None], list[Any]]:
        """A function that enqueues all launches of a configuration, and what they are given."""
        plan = self.plan(chosen)
        code = cupy.RawModule(code=self.text(chosen), options=("--std=c++17",))
        arrays = {name: cupy.asarray(each) for name, each in self.arrays.items()}
        workspace = None
        if plan.workspace_bytes is not None:
            workspace = cupy.zeros(max(plan.workspace_bytes, 8), np.uint8)
        given = self.arguments(arrays, workspace)
        calls = [(code.get_function(each.kernel), each) for each in plan.steps]
        for call, each in calls:
            if each.shared_bytes > 48 * 1024:
                call.max_dynamic_shared_size_bytes = each.shared_bytes
        packed = tuple(given)

        def launch() -> None:
            for call, each in calls:
                call(each.grid, each.block, packed, shared_mem=each.shared_bytes)

        return launch, given

    def answer(self, chosen: Mapping[str, Any]) -> list[Any] | None:
        """Outputs of a configuration, for Kernel Tuner to verify its own by.

        None where it cannot: of several launches it makes one, and points on an edge may be
        either.
        """
        if self.defined.accept is not None or len(self.plan(chosen).steps) > 1:
            return None
        launch, given = self.launched(chosen)
        launch()
        written = {each.name.lower() for each in self.defined.outputs}
        names = [each.name.lower() for each in self.defined.arguments]
        names += ["workspace"] * (len(given) - len(names))
        return [
            cupy.asnumpy(array) if name in written else None
            for name, array in zip(names, given, strict=True)
        ]


def _largest(array: Any) -> float:
    return 0.0 if array is None else float(np.abs(array.astype(np.float64)).max())


def in_turns(launches: Mapping[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Seconds a call of each, in turns of some milliseconds, by events."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()

    def timed(launch: Callable[[], None], calls: int) -> float:
        start.record()
        for _ in range(calls):
            launch()
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3 / calls

    counts = {}
    for name, launch in launches.items():
        timed(launch, 3)
        counts[name] = max(1, round(TURN_S / timed(launch, 5)))
    times: dict[str, list[float]] = {name: [] for name in launches}
    for turn in range(TURNS):
        for name in [*launches][:: 1 if turn % 2 == 0 else -1]:
            times[name].append(timed(launches[name], counts[name]))
    return times


def row(name: str, seconds: float, cache: Path) -> str:
    """A row of the table."""
    case = Case(name, cache)
    begin = time.perf_counter()
    ours, our_trials = case.ours(seconds)
    between = time.perf_counter()
    answer = case.answer(ours)
    start = time.perf_counter()
    theirs, their_trials = case.theirs(seconds, answer)
    end = time.perf_counter()
    times = in_turns({"ours": case.launched(ours)[0], "theirs": case.launched(theirs)[0]})
    mine, other = (statistics.median(times[key]) for key in ("ours", "theirs"))
    ratio = statistics.median(b / a for a, b in zip(times["ours"], times["theirs"], strict=True))
    same = ", the same one" if ours == theirs else ""
    print(f"{name}: {ours}, Kernel Tuner's {theirs}{same}", file=sys.stderr)
    return (
        f"| {name} {case.problem.label} | {between - begin:.1f} | {our_trials} "
        f"| {end - start:.1f} | {their_trials} | {mine * 1e6:.1f} | {other * 1e6:.1f} "
        f"| {ratio:.2f}{same} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="examples; all of them if left out")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a tuning run")
    arguments = parser.parse_args()
    print(describe_gpu(read_gpu(0)))
    print(
        "\n| kernel | autotune, s | tried | Kernel Tuner, s | tried | autotune's winner, µs "
        "| Kernel Tuner's, µs | ratio |\n|---|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as cache:
        for name in arguments.names or OPERANDS:
            try:
                print(row(name, arguments.seconds, Path(cache)), flush=True)
            except Exception:
                print(f"| {name} | failed |", flush=True)
                traceback.print_exc()


if __name__ == "__main__":
    main()
