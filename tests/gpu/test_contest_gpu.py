"""Turns of kernels and a library on a GPU, and the clock that decides them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autotune import Gemm, matmul
from autotune.core.paths import CacheLocations
from autotune.core.session import forget
from autotune.runtime import choosing
from autotune.runtime.contest import MARGIN_OF_BRIEF
from autotune.runtime.contestants import MARGIN
from autotune.serving.background import background
from autotune.store import TuningCache
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from pathlib import Path

torch: Any = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    # Of libraries while they are imported.
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
    ),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch is without CUDA")
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path))
    forget()
    return tmp_path


def square(size: int, dtype: str = "float32") -> Any:
    return torch.randn(size, size, device="cuda", dtype=getattr(torch, dtype))


def test_the_clock_knows_the_gpus_time_and_not_the_hosts() -> None:
    clock = make_target("cuda").clock()
    seconds = {}
    for size in (256, 4096):
        a = square(size)
        assert clock.runs(a)
        for _ in range(5):  # the first ones load what is called, and find out how slow the host is
            _, reading = clock.time(lambda a=a: a @ a, a, twice=False)
            torch.cuda.synchronize()
            (seconds[size],) = reading()
    assert seconds[4096] > 50 * seconds[256] > 0


def test_calls_that_are_not_over_have_no_time() -> None:
    clock, a = make_target("cuda").clock(), square(64)
    _, reading = clock.time(lambda: torch.cuda._sleep(200_000_000), a, twice=False)
    assert reading() is None
    torch.cuda.synchronize()
    assert reading() is not None


def test_a_capture_is_seen() -> None:
    clock, a = make_target("cuda").clock(), square(64)
    a @ a  # cuBLAS begins outside of captures
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert not clock.runs(a)
        a @ a
    assert clock.runs(a)


@pytest.mark.alone  # four calls decide if nobody else's come between
def test_a_layer_is_settled_before_a_capture() -> None:
    """Three calls come before it as a rule; compiling is waited for here."""
    a = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(6144, 4096, device="cuda", dtype=torch.bfloat16).T
    problem = Gemm(16, 4096, 6144, "bfloat16", layout="nt")
    for _ in range(4):
        got = matmul(a, b)
        while background().busy:
            pass
        torch.cuda.synchronize()
    turns, _ = choosing._CONTESTS[problem, "cuda", f"PyTorch {torch.__version__}"]
    assert turns is not None
    assert turns.over
    wanted = a.double() @ b.double()
    assert float((got.double() - wanted).norm() / wanted.norm()) < 5e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_shape_is_settled_in_some_calls(dtype: str, cache: Path) -> None:
    a, b = square(1096, dtype), square(1096, dtype)
    wanted = a.double() @ b.double()
    problem, name = Gemm(1096, 1096, 1096, dtype), f"PyTorch {torch.__version__}"
    for _ in range(400):
        got = matmul(a, b)
        turns, _ = choosing._CONTESTS[problem, "cuda", name]
        assert turns is not None
        if turns.over:
            break
        torch.cuda.synchronize()
        assert float((got.double() - wanted).norm() / wanted.norm()) < 5e-3
    assert turns.over
    while background().busy:
        pass
    (kept,) = TuningCache(CacheLocations.at(cache).database).records()
    assert kept.is_light
    assert kept.baseline is not None
    assert kept.baseline.name == name
    least = MARGIN_OF_BRIEF if dtype == "bfloat16" else MARGIN
    assert (turns.winner is not None) is (kept.baseline.ratio >= least)
