"""The hybrid evaluator meets what every evaluator must, on GPUs that are NumPy's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy_machine import NumpyMachine
from test_evaluator import EvaluatorConformance

from autotune.core.configuration import Candidate, Configuration
from autotune.distributed.hybrid.baseline import Library
from autotune.distributed.hybrid.harness import HybridEvaluator, HybridHarness, Setup
from autotune.distributed.hybrid.target import HybridTarget
from autotune.distributed.machine import LocalKernel
from autotune.families.program_cache import ProgramCache
from autotune.measuring.effort import Effort, Work
from autotune.measuring.evaluator import Evaluator
from autotune.measuring.sharing import Subjects
from autotune.measuring.trial import Trials
from autotune.operations.problem import Gemm
from autotune.targets.families import read_family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from autotune.core.device import Device
    from autotune.distributed.hybrid.machine import ChooseLocal
    from autotune.operations.verification import ProductCheck

PROBLEM = Gemm(40, 30, 50)

FAMILY = """\
family = "suspect"
operation = "gemm"
target = "hybrid"
template = "suspect.py.j2"
accuracy = "ieee"
summary = "The first GPU computes, with a fault"

[parameters]
fault = { values = ["none", "wrong", "ragged", "overrun", "underrun", "partial", "reads_c",
    "modifies_a", "stops", "hangs", "raises", "crashes", "does_not_compile"] }
step = { values = [1, 2, 1000] }

[local]
m = "M"
n = "N"
k = "K"
on = "cuda"

[[restrictions]]
expr = "step <= M"
reason = "no more rows at once than there are"
"""

TEMPLATE = '''\
"""{{ banner }}"""

import ctypes
import os
import signal
import time
{% if fault == "does_not_compile" %}
import nowhere_to_be_found
{% endif %}

FAULT = "{{ fault }}"
CALLS = []


class Plan:
    def __init__(self, machine):
        self.machine = machine
        with machine.here(0):
            self.stream = machine.stream(0)

    def free(self):
        self.machine.free(self.stream)

    def blocks(self):
        return []

    def from_host(self, a, b, c, alpha, beta):
        if FAULT == "hangs":
            time.sleep(1000)
        if FAULT == "raises":
            raise ValueError("this kernel refuses")
        if FAULT == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        CALLS.append(c.shape)
        if FAULT == "stops" and CALLS.count((40, 50)) > 3:
            return
        if FAULT == "wrong":
            a, b = a[:, :-1], b[:-1]
        beta = beta if beta or FAULT != "reads_c" else 1e-30
        here = {}
        with self.machine.here(0):
            for name, whole in (("a", a), ("b", b), ("c", c)):
                here[name] = self.machine.memory(0, *whole.shape)
                self.machine.copy(here[name], whole, self.stream)
            if 0 not in (*a.shape, *b.shape):
                self.machine.multiply(here["a"], here["b"], here["c"], alpha, beta, self.stream)
            rows = len(c) - (FAULT == "partial")
            self.machine.copy(c[:rows], here["c"][:rows, :], self.stream)
            self.machine.finish(self.stream)
        for matrix in here.values():
            self.machine.free(matrix)
        if FAULT == "ragged" and len(c) % 8:
            c[-1] *= 2
        if FAULT == "modifies_a":
            a[0, 0] += 1
        beyond = {"overrun": c.size, "underrun": -3}.get(FAULT, 0)
        if beyond:
            stride = c.strides[0] // c.itemsize
            beyond = len(c) * stride if beyond > 0 else beyond
            ctypes.memset(c.ctypes.data + beyond * c.itemsize, 1, c.itemsize)


def gemm(machine, m, n, k):
    return Plan(machine)
'''


def numpy_worker(setup: Setup, problem: Gemm) -> Subjects:
    """Entry of a worker as the real one, with GPUs and a library that are NumPy's."""

    def machine(local: LocalKernel) -> Any:
        return NumpyMachine(setup.devices, problem.dtype)

    def library(check: ProductCheck) -> Library:
        return Library("NumPy", functools.partial(np.matmul, check.a, check.b, out=check.c))

    def measuring(subject: Gemm) -> Trials:
        return Trials(HybridHarness(subject, setup, machine, library), setup.effort)

    return Subjects(measuring, problem, weigh=lambda each: 1, limit=1)


@pytest.mark.slow
class TestHybridEvaluator(EvaluatorConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def evaluator(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
        folder = tmp_path_factory.mktemp("suspects")
        device = HybridTarget(1).device(PROBLEM, "h200")
        limits: Any = device.limits
        with suspects_evaluator(
            folder,
            device,
            lambda wanted: LocalKernel(suspect(), "", wanted.dtype, limits, None),
            numpy_worker,
        ) as evaluator:
            yield evaluator

    @pytest.fixture
    def candidates(self) -> Mapping[str, Candidate]:
        return suspects()


def suspects_evaluator(
    folder: Path, device: Device, choose_local: ChooseLocal, entry: Any
) -> HybridEvaluator:
    """An evaluator of the suspects for a small problem, with little effort."""
    (folder / "suspect.toml").write_text(FAMILY)
    (folder / "suspect.py.j2").write_text(TEMPLATE)
    family = read_family(folder / "suspect.toml", (folder,))
    effort = Effort(budget_s=0.01, interval=0.5, timeout_s=4.0, finals_s=0.1)
    programs = ProgramCache(folder / "programs")
    work = Work(PROBLEM, {family.name: family}, device, programs, effort)
    return HybridEvaluator(work, "host", choose_local, entry)


def suspects() -> Mapping[str, Candidate]:
    return {
        "right": suspect(),
        "right too": suspect(step=2),
        "invalid": suspect(step=1000),
        "does not compile": suspect("does_not_compile"),
        "raises": suspect("raises"),
        "crashes": suspect("crashes"),
        "hangs": suspect("hangs"),
        "wrong": suspect("wrong"),
        "wrong at ragged sizes": suspect("ragged"),
        "writes part of C": suspect("partial"),
        "writes past C": suspect("overrun"),
        "writes before C": suspect("underrun"),
        "reads C when beta is 0": suspect("reads_c"),
        "modifies A": suspect("modifies_a"),
        "stops computing": suspect("stops"),
    }


def suspect(fault: str = "none", step: int = 1) -> Candidate:
    return Candidate("suspect", Configuration({"fault": fault, "step": step}))
