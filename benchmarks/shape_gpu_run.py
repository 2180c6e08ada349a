"""Shapes on a GPU, one after the other: what serves them, and cuBLAS beside it."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterator

from gpu_environment import EnergyMeter, GpuWatch, describe_gpu, read_gpu
from launch_notes import launch_note
from shape_draws import Shape
from shape_gpu import Contest, GpuBench
from shape_rows import Asked, Header, Row, Served

from autotune import Gemm, load, tune
from autotune.core.errors import AutotuneError
from autotune.core.limits import GpuLimits
from autotune.gpu.driver import driver_errors
from autotune.gpu.launch.code import make_program
from autotune.gpu.measure.timing import HungError
from autotune.gpu.nvidia.cublas import CublasError
from autotune.serving.lookup import binary_of, look_up
from autotune.targets.registry import make_target

SQUARES = (2048, 4096, 8192, 16384)

TRIALS = 1_000_000
"""Of a search, which its time ends."""

SUSTAIN_S = 1.5
"""Seconds of launches behind a reading of the energy counter."""

MEMORY_BOUND = 8
"""Rows or columns of C up to which memory limits a product whose operands no cache holds."""


def measure(asked: Asked) -> Iterator[Row | Header]:
    """A header, the rows of shapes and squares, and what the GPU did meanwhile."""
    device = read_gpu(asked.device)
    bench = GpuBench(device, asked.dtype, asked.seed)
    copied = bench.copy_rate() if asked.copy else None
    text = [*describe_gpu(device).splitlines(), asked.text]
    if copied is not None:
        text.append(f"- copying within the device's memory: {copied / 1e9:.0f} GB/s")
    yield Header(device.fingerprint.name, text)
    l2_bytes = device.limits.names()["l2_bytes"]
    with GpuWatch(device) as watch, tempfile.TemporaryDirectory() as scratch:
        for number, shape in enumerate(asked.shapes):
            row = _row(asked, bench, shape, scratch if number < asked.tuned else None)
            if copied and row.seconds and shape.few <= MEMORY_BOUND and row.bytes > l2_bytes:
                row = dataclasses.replace(row, copy_share=row.bytes / row.seconds / copied)
            yield row
        meter = EnergyMeter(device)
        for size in SQUARES if asked.squares else ():
            yield _row(asked, bench, Shape(size, size, size), None, meter)
    bench.close()
    yield Header(device.fingerprint.name, [watch.summary()])


def _row(
    asked: Asked,
    bench: GpuBench,
    shape: Shape,
    scratch: str | None,
    meter: EnergyMeter | None = None,
) -> Row:
    """One shape; tuned as well where there is a folder for that."""
    problem = Gemm(*shape.sizes, dtype=asked.dtype)
    spent_s = 0.0
    failures: tuple[type[Exception], ...] = (AutotuneError, ArithmeticError, CublasError)
    failures += (HungError, *driver_errors())
    try:
        if scratch is not None:
            begun = time.monotonic()
            tune(
                problem,
                target="cuda",
                device=asked.device,
                trials=TRIALS,
                timeout=asked.seconds,
                cache=scratch,
            )
            spent_s = time.monotonic() - begun
        with bench.contest(problem) as contest:
            ours = _enter("ours", contest, bench, problem, asked.device, asked.cache)
            tuned = None
            if scratch is not None:
                tuned = _enter("tuned", contest, bench, problem, asked.device, scratch)
            times = contest.times()
            peers = {contest.peer: times[contest.peer]}
            row = Row.of(shape, asked.dtype, ours, times["ours"], peers, problem.traffic)
            row = dataclasses.replace(row, peer_error=contest.peer_error)
            if tuned is not None:
                row = row.with_tuned(tuned, times["tuned"], times, spent_s)
            if meter is not None:
                joules, sustained = _steady(contest, meter)
                row = dataclasses.replace(row, joules=joules, sustained=sustained)
            return row
    except failures as error:
        return Row(shape, asked.dtype, failure=" ".join(str(error).split())[:300])


def _enter(
    name: str,
    contest: Contest,
    bench: GpuBench,
    problem: Gemm,
    device: str | None,
    cache: str | None,
) -> Served:
    """Let the kernel that a cache has for a problem take part.

    Raises:
        ArithmeticError: its result is wrong.
    """
    begun = time.perf_counter()
    # What serves at last is measured, not what serves while a compiler works.
    kernel = load(problem, "cuda", match="nearest", device=device, cache=cache, background=False)
    ready_s = time.perf_counter() - begun
    limits = bench.device.limits
    assert isinstance(limits, GpuLimits)
    found = look_up(problem, make_target("cuda"), match="nearest", device=device, cache=cache)
    assert found.candidate == kernel.candidate  # what was loaded a moment ago
    binary, programs = binary_of(problem, found), found.shared.programs
    configuration = found.candidate.configuration
    program = make_program(found.family, configuration, problem, limits, programs, binary)
    error = contest.enter(name, program)
    if not error <= 1:
        raise ArithmeticError(f"{kernel!r} is wrong: its error is {error:.3g} of what is allowed")
    note = launch_note(kernel.candidate, problem, found.shared.families, limits)
    return Served.of(kernel, launch=note, ready_s=ready_s, error=error)


def _steady(contest: Contest, meter: EnergyMeter) -> tuple[tuple[float, float] | None, float]:
    """Without a pause, in two turns each: energy of a call of ours and of cuBLAS's, None where
    nothing tells; and the ratio of their times."""
    used = {"ours": 0.0, contest.peer: 0.0}
    calls, took_s = dict.fromkeys(used, 0), dict.fromkeys(used, 0.0)
    told = True
    for name in (*used, *reversed(used)):
        before = meter.joules()
        launches, seconds = contest.sustain(name, SUSTAIN_S)
        after = meter.joules()
        told = told and before is not None and after is not None
        used[name] += (after or 0) - (before or 0)
        calls[name] += launches
        took_s[name] += seconds
    ours, theirs = (used[name] / calls[name] for name in used)
    ratio = took_s[contest.peer] / took_s["ours"]
    return (ours, theirs) if told else None, ratio
