"""Products of stacks and of groups of rows on a GPU: tuned, called, and beneath PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from records import record

from autotune import TuningCache, load, tune
from autotune.core.configuration import Candidate
from autotune.core.paths import CacheLocations
from autotune.core.session import forget
from autotune.measuring.effort import Effort
from autotune.store import BaselineRecord
from autotune.targets.families import find_operation, load_families

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.core.device import Device

torch: Any = pytest.importorskip("torch", minversion="2.9")

from autotune.torch import bmm, grouped_mm, stacks, use_tuned  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
    ),
]

SHAPES = {
    "bmm": (5, 136, 264, 200),
    "grouped": (5, 333, 264, 200),
    "grouped_masked": (5, 133, 264, 200),
}


def drawn(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype or torch.bfloat16)


def close(found: Any, expected: Any) -> None:
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert float(error) < 1e-2


def of_groups(a: Any, b: Any, ends: list[int]) -> Any:
    parts = zip([0, *ends[:-1]], ends, b, strict=True)
    made = torch.zeros(a.shape[0], b.shape[2], device="cuda")
    for begin, end, each in parts:
        made[begin:end] = a[begin:end].float() @ each.float()
    return made


@pytest.mark.parametrize("family", ["wgmma", "mma"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_tuned_loaded_and_right(
    name: str, layout: str, family: str, tmp_path: Path, gpu: Device
) -> None:
    problem = find_operation(name).at(SHAPES[name], dtype="bfloat16", layout=layout)
    if len(load_families(target="cuda", operation=name)[family].space(problem, gpu.limits)) == 0:
        pytest.skip(f"{family} is for other devices")
    result = tune(
        problem,
        target="cuda",
        families=[family],
        trials=6,
        timeout=90,
        cache=tmp_path,
        effort=Effort(budget_s=0.02, finals_s=0.1),
    )
    assert result.best.median_s > 0
    kernel = load(problem, target="cuda", cache=tmp_path)
    (batch, m, n, k), rng = SHAPES[name], np.random.default_rng(3)
    b = drawn(batch, n, k)
    given = b if layout == "nn" else b.mT.contiguous()
    if name == "bmm":
        a = drawn(m, batch, n).transpose(0, 1)  # side by side
        close(kernel(a, given), a.float() @ b.float())
        odd = drawn(batch, m, n + 1)[..., 1:]  # no tensor map knows where that lies
        one = given[:1].expand_as(given)
        close(kernel(odd, one), odd.float() @ b[:1].float())
    elif name == "grouped":
        a, ends = drawn(m, n), sorted(rng.integers(0, m, batch).tolist())
        places = torch.tensor(ends, dtype=torch.int32, device="cuda")
        close(kernel(a, given, places), of_groups(a, b, ends))
    else:
        a, counts = drawn(batch, m, n), rng.integers(0, m + 1, batch).tolist()
        out = drawn(batch, m, k)
        kept = out.clone()
        kernel(a, given, torch.tensor(counts, dtype=torch.int32, device="cuda"), out=out)
        for group, count in enumerate(counts):
            assert torch.equal(out[group, count:], kept[group, count:])
            expected = a[group, :count].float() @ b[group].float()
            close(out[group, :count], expected)


@pytest.fixture
def known(own_cache: Path, gpu: Device) -> Iterator[None]:
    """A cache that knows kernels of some products, and of their gradients, to be faster."""
    for name, layout, shape in (
        ("bmm", "nn", (4, 128, 192, 256)),
        ("bmm", "nt", (4, 128, 256, 192)),
        ("bmm", "tn", (4, 192, 128, 256)),
        ("grouped", "nt", (4, 300, 192, 256)),
        ("grouped", "nn", (4, 300, 256, 192)),
    ):
        problem = find_operation(name).at(shape, dtype="bfloat16", layout=layout)
        families = load_families(target="cuda", operation=name)
        family = next(each for each in families.values() if len(each.space(problem, gpu.limits)))
        made = record(
            problem=problem,
            operation=name,
            target="cuda",
            candidate=Candidate(family.name, family.default(problem, gpu.limits)),
            family_digest=family.digest,
            fingerprint=gpu.fingerprint,
            toolchain=dict(gpu.toolchain),
            baseline=BaselineRecord("cuBLAS 13", 2e-3, 2.0),
        )
        TuningCache(CacheLocations.at(own_cache).database).add(made)
    forget()
    yield
    forget()


@pytest.mark.usefixtures("known")
def test_pytorchs_products_are_kernels() -> None:
    a, b = (drawn(4, 128, 192).requires_grad_(), drawn(4, 192, 256).requires_grad_())
    made = bmm(a, b)
    assert stacks.product_of_stacks(a.detach(), b.detach(), "torch bmm")._served.contest.winner
    close(made, a.float() @ b.float())
    seed = drawn(4, 128, 256)
    made.backward(seed)
    close(a.grad, seed.float() @ b.float().mT)
    close(b.grad, a.float().mT @ seed.float())
    with torch.no_grad(), use_tuned():
        close(torch.matmul(a, b), a.float() @ b.float())
        out = torch.empty_like(made)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.bmm(a, b, out=out)
    out.zero_()
    graph.replay()
    close(out, a.float() @ b.float())


@pytest.mark.usefixtures("known")
def test_groups_of_rows_are_kernels() -> None:
    a = drawn(300, 192).requires_grad_()
    b = drawn(4, 256, 192).mT.requires_grad_()
    places = [100, 100, 228, 300]
    ends = torch.tensor(places, dtype=torch.int32, device="cuda")
    made = grouped_mm(a, b, ends)
    looks = [each for one in (a, b, ends) for each in stacks._looks(one)]
    product = stacks._PRODUCTS["grouped", "torch grouped_mm", None, *looks]
    assert product is not None
    assert product._served.contest.winner
    close(made, of_groups(a.detach(), b.detach(), places))
    seed = drawn(300, 256)
    made.backward(seed)
    close(a.grad, of_groups(seed, b.detach().mT, places))
    for group, (begin, end) in enumerate(zip([0, *places], places, strict=False)):
        expected = a[begin:end].float().T @ seed[begin:end].float()
        if begin < end:
            close(b.grad[group], expected)
