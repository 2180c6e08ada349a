"""Shapes on the CPU, one after the other: what serves them, and the libraries beside it."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator

from environment import describe
from shape_cpu import CpuBench, job_of, read_rate, tuned_peer
from shape_draws import Shape
from shape_rows import Asked, Header, Row

from autotune import tune
from autotune.cpu.identity import read_cpu

TRIALS = 1_000_000
"""Of a search, which its time ends."""

BUDGET_S = 1.5
"""Of a shape's rounds."""


def measure(asked: Asked) -> Iterator[Row | Header]:
    """A header, then the rows of shapes."""
    device = read_cpu()
    limits = device.limits.names()
    threads = asked.threads or limits["max_threads"]
    load = os.getloadavg()[0]
    read = read_rate(threads) if asked.copy else None
    with CpuBench.started(asked, threads) as bench:
        text = [*describe().splitlines(), asked.text, *bench.about]
        text.append(f"- threads: {threads}; {load:.1f} others ran in the minute before")
        if read is not None:
            text.append(f"- reading from memory: {read / 1e9:.1f} GB/s")
        yield Header(device.fingerprint.name, text)
        with tempfile.TemporaryDirectory() as scratch:
            for number, shape in enumerate(asked.shapes):
                row = _row(asked, bench, shape, scratch if number < asked.tuned else None)
                if read and row.seconds and shape.few == 1 and row.bytes > limits["l3_bytes"]:
                    row = dataclasses.replace(row, copy_share=row.bytes / row.seconds / read)
                yield row


def _row(asked: Asked, bench: CpuBench, shape: Shape, scratch: str | None) -> Row:
    """One shape; tuned as well where there is a folder for that."""
    job = job_of(shape, asked, bench.threads)
    tuned, spent_s = None, 0.0
    try:
        if scratch is not None:
            begun = time.monotonic()
            tune(job.problem, target="cpu", trials=TRIALS, timeout=asked.seconds, cache=scratch)
            spent_s = time.monotonic() - begun
            tuned = tuned_peer(bench.threads, scratch)
        answers, times = bench.contest(job, BUDGET_S, tuned)
    except Exception as error:  # one of another process may be of any kind
        return Row(shape, asked.dtype, failure=" ".join(str(error).split())[:300])
    finally:
        if tuned is not None:
            tuned.close()
    ours = answers["ours"]
    if not ours.error <= 1:
        return Row(shape, asked.dtype, failure=f"wrong: {ours}")
    peers = {name: times[name] for name in times if name not in answers}
    row = Row.of(shape, asked.dtype, ours, times["ours"], peers, job.problem.traffic)
    if tuned is not None:
        row = row.with_tuned(answers["tuned"], times["tuned"], times, spent_s)
    return row
