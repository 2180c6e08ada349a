"""The operator and the switch on a GPU: streams, CUDA graphs, compiled programs, training."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from records import record

from autotune import Gemm, TuningCache
from autotune.core.configuration import Candidate
from autotune.core.paths import CacheLocations
from autotune.core.session import forget
from autotune.store import BaselineRecord
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autotune.core.device import Device

torch: Any = pytest.importorskip("torch", minversion="2.9")

from autotune.runtime import product_log  # noqa: E402
from autotune.torch import Linear, convert, linear, mm, use_tuned  # noqa: E402
from autotune.torch.calls import product_of  # noqa: E402

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.gpu,
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
    ),
]

M, N, K = 192, 320, 256


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory, gpu: Device) -> Iterator[Path]:
    """A cache with records of a layer's products, of a family's default; gives the log."""
    if not torch.cuda.is_available():
        pytest.skip("PyTorch is without CUDA")
    log = tmp_path_factory.mktemp("log") / "log.txt"
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("AUTOTUNE_CACHE", str(cache))
        patch.setenv("AUTOTUNE_BACKGROUND", "0")
        patch.setenv(product_log.VARIABLE, str(log))
        family = load_families(target="cuda")["block"]
        for sizes, layout in itertools.product(
            ((M, N, K), (M, K, N), (K, M, N), (N, M, K), (N, K, M)), ("nn", "nt", "tn")
        ):
            problem = Gemm(*sizes, layout=layout)
            made = record(
                problem=problem,
                target="cuda",
                candidate=Candidate("block", family.default(problem, gpu.limits)),
                family_digest=family.digest,
                fingerprint=gpu.fingerprint,
                toolchain=dict(gpu.toolchain),
                baseline=BaselineRecord("cuBLAS 13", 1.5e-3, 1.2),
            )
            TuningCache(CacheLocations.at(cache).database).add(made)
        forget()
        yield log
    forget()


def normal(*shape: int, seed: int = 0) -> Any:
    source = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=source, device="cuda")


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=2e-3)


def test_products_of_kernels() -> None:
    a, b, weight, bias = normal(M, N), normal(N, K), normal(K, N), normal(K)
    assert product_of(a, b, "test") is not None
    assert product_of(a, weight.t(), "test") is not None
    for operator in (mm, torch.ops.autotune.mm):
        close(operator(a, b), a @ b)
        close(operator(a, weight.t()), a @ weight.t())
    close(linear(a, weight, bias), torch.nn.functional.linear(a, weight, bias))
    close(linear(a.view(2, -1, N), weight), torch.nn.functional.linear(a, weight).view(2, -1, K))
    torch.library.opcheck(torch.ops.autotune.mm.default, (a, b), rtol=1e-4, atol=2e-3)


def test_on_a_stream_of_its_own() -> None:
    a, b = normal(M, N), normal(N, K)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        late = a * 2
        got = mm(late, b)
    torch.cuda.current_stream().wait_stream(stream)
    close(got, 2 * a @ b)


@pytest.mark.parametrize("way", ["function", "operator", "switch", "layer"])
def test_captured(way: str) -> None:
    a, b = normal(M, N), normal(N, K)
    layer = Linear(N, K, device="cuda")
    multiply = {
        "function": lambda: mm(a, b),
        "operator": lambda: torch.ops.autotune.mm(a, b),
        "switch": lambda: torch.mm(a, b),
        "layer": lambda: layer(a).detach(),
    }[way]
    with use_tuned():
        multiply()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = multiply()
    for seed in (1, 2):
        a.copy_(normal(M, N, seed=seed))
        graph.replay()
        wanted = torch.nn.functional.linear(a, layer.weight, layer.bias)
        close(got, wanted.detach() if way == "layer" else a @ b)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode: str, own_cache: Path) -> None:
    torch.compiler.reset()
    weight, bias = normal(K, N), normal(K)

    def layers(x: Any) -> Any:
        return linear(x, weight, bias).relu() + mm(x, weight.t())

    compiled = torch.compile(layers, fullgraph=True, mode=mode)
    for seed in range(4):
        x = normal(M, N, seed=seed)
        close(compiled(x).clone(), layers(x))
    plain = torch.compile(lambda x: x @ weight.t(), fullgraph=True, mode=mode)
    with use_tuned():
        for seed in range(4):
            x = normal(M, N, seed=seed)
            close(plain(x).clone(), x @ weight.t())
    assert f"torch switch {M}x{N}x{K}-float32-nt on cuda: block" in own_cache.read_text()


@pytest.mark.parametrize("way", ["convert", "switch"])
def test_trained(way: str) -> None:
    def train(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for seed in range(3):
            optimizer.zero_grad()
            model(normal(M, N, seed=seed)).square().mean().backward()
            optimizer.step()
        return model(normal(M, N)).detach()

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(N, K), torch.nn.GELU(), torch.nn.Linear(K, N)
        ).cuda()

    wanted = train(model())
    if way == "convert":
        got = train(convert(model()))
    else:
        with use_tuned():
            got = train(model())
    close(got, wanted)


def test_autocast() -> None:
    a, b = normal(M, N), normal(N, K)
    with torch.autocast("cuda", torch.bfloat16):
        got, wanted = mm(a, b), torch.mm(a, b)
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got, wanted)


def test_float32_that_pytorch_may_round_is_pytorchs() -> None:
    a, b = normal(M, N), normal(N, K)
    torch.set_float32_matmul_precision("high")
    try:
        wanted = torch.mm(a, b)
        with use_tuned():
            torch.testing.assert_close(torch.mm(a, b), wanted, rtol=0, atol=0)
    finally:
        torch.set_float32_matmul_precision("highest")
