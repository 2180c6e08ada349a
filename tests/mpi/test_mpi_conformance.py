"""The MPI evaluator meets what every evaluator must."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_evaluator import EvaluatorConformance

from autotune.core.configuration import Candidate, Configuration
from autotune.distributed.mpi.target import MpiTarget
from autotune.families.program_cache import ProgramCache
from autotune.measuring.effort import Effort
from autotune.measuring.evaluator import Evaluator
from autotune.operations.problem import Gemm
from autotune.serving.target import Work
from autotune.targets.families import read_family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FAMILY = """\
family = "suspect"
operation = "gemm"
target = "mpi"
template = "suspect.py.j2"
accuracy = "ieee"
summary = "Rank 0 computes, with a fault"

[parameters]
fault = { values = ["none", "wrong", "ragged", "overrun", "underrun", "partial", "reads_c",
    "modifies_a", "stops", "hangs", "raises", "crashes", "does_not_compile"] }
step = { values = [1, 2, 1000] }

[local]
m = "M"
n = "N"
k = "K"
on = "cpu"

[[restrictions]]
expr = "step <= M"
reason = "no more rows at once than there are"
"""

TEMPLATE = '''\
"""{{ banner }}"""

import ctypes
import os
import signal

import numpy as np
{% if fault == "does_not_compile" %}
import nowhere_to_be_found
{% endif %}

FAULT = "{{ fault }}"
CALLS = []


class Plan:
    def __init__(self, comm):
        self.comm = comm

    def free(self):
        pass

    def from_root(self, a, b, c, alpha, beta):
        if FAULT == "hangs" and self.comm.rank == 1:
            ctypes.PyDLL(None).pause()
        if FAULT == "raises" and self.comm.rank == 1:
            raise ValueError("this kernel refuses")
        if FAULT == "crashes" and self.comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        self.comm.Barrier()
        if self.comm.rank:
            return
        CALLS.append(c.shape)
        if FAULT == "stops" and CALLS.count((40, 50)) > 3:
            return
        before = beta * c if beta or FAULT == "reads_c" else 0
        if FAULT == "wrong":
            a, b = a[:, :-1], b[:-1]
        result = alpha * (a @ b) + before
        if FAULT == "ragged" and len(c) % 8:
            result[-1] *= 2
        rows = len(c) - (FAULT == "partial")
        c[:rows] = result[:rows]
        if FAULT == "modifies_a":
            a[0, 0] += 1
        beyond = {"overrun": c.size, "underrun": -3}.get(FAULT, 0)
        if beyond:
            ctypes.memset(c.ctypes.data + beyond * c.itemsize, 1, c.itemsize)


def gemm(comm, m, n, k, local):
    return Plan(comm)
'''


class TestMpiEvaluator(EvaluatorConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def evaluator(
        cls, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path
    ) -> Iterator[Evaluator]:
        folder = tmp_path_factory.mktemp("suspects")
        (folder / "suspect.toml").write_text(FAMILY)
        (folder / "suspect.py.j2").write_text(TEMPLATE)
        family = read_family(folder / "suspect.toml", (folder,))
        target, problem = MpiTarget(2), Gemm(40, 30, 50)
        work = Work(
            problem,
            {family.name: family},
            target.device(problem),
            ProgramCache(shared_cache / "programs"),
            Effort(budget_s=0.01, interval=0.5, timeout_s=10.0, finals_s=0.1),
        )
        with target.evaluator(work) as evaluator:
            yield evaluator

    @pytest.fixture
    def candidates(self) -> Mapping[str, Candidate]:
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
