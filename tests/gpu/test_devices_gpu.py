"""Several GPUs of one host make trials of one study, and kernels of others are judged on one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from autotune import Gemm, tune
from autotune.checking import Checker
from autotune.distributed.mpi.gpu.cuda import count_gpus
from autotune.measuring.effort import Effort
from autotune.search.claims import Owner, claim_of
from autotune.search.study import TuningStudy

if TYPE_CHECKING:
    from pathlib import Path

SUMS = """
__global__ void sums(const float* A, int lda, float* y, int M, int N) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= M) return;
  float sum = 0;
  for (int j = 0; j < N; ++j) sum += A[(long long)row * lda + j];
  y[row] = sum;
}
"""
REMEMBERS = "__device__ float seen[300];\n__device__ int known;\n" + SUMS.replace(
    "float sum = 0;", "if (M == 300 && known) { y[row] = seen[row]; return; } float sum = 0;"
).replace("y[row] = sum;", "y[row] = sum; if (M == 300) { seen[row] = sum; known = 1; }")


def test_two_gpus_share_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if count_gpus() < 2:
        pytest.skip("two GPUs are needed, and there is one")
    made: Counter[int] = Counter()
    close = TuningStudy.close

    def closing(study: TuningStudy[object]) -> None:
        close(study)
        for trial in study.optuna.get_trials(deepcopy=False):
            owner = Owner.parse(str(claim_of(trial).get("owner", "")))
            if owner is not None and "outcome" in trial.user_attrs:
                made[owner.pid] += 1

    monkeypatch.setattr(TuningStudy, "close", closing)
    effort = Effort(budget_s=0.02, finals_s=0.2)
    result = tune(
        Gemm(512, 512, 512), target="cuda", devices=[0, 1], trials=24, timeout=200,
        cache=tmp_path, effort=effort,
    )  # fmt: skip
    assert sorted(made.values()) == [12, 12]
    assert len(result.trials) == 24
    assert len({trial.candidate for trial in result.trials}) == 24


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (SUMS, ""),
        (SUMS.replace("j < N", "j < N - 1"), "expected"),
        (SUMS.replace("y[row] = sum;", "y[row] = sum; ((float*)A)[0] += 1;"), "A"),
        (REMEMBERS, "y["),
        (SUMS.replace("sum += A", "sum += B"), "B"),
    ],
    ids=["right", "wrong", "writes", "remembers", "does not compile"],
)
def test_sources_of_others_are_judged(source: str, told: str, tmp_path: Path) -> None:
    request = {
        "kernel": source,
        "reference": "def sums(A):\n    return A.sum(axis=1)\n",
        "operands": {"A": "MxN"},
        "out": {"y": "M"},
        "shape": "300x200",
        "grid": ["ceildiv(M, 64)"],
        "block": ["64"],
    }
    with Checker(cache=tmp_path) as checker:
        answer = checker.answer(request)
    assert answer["verified"] is (not told), answer
    assert told in answer["reason"], answer
