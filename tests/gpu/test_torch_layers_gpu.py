"""Layers on a GPU: kernels with what follows a product, in 16 bits, beside PyTorch in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autotune import tune
from autotune.core.measurement import Outcome
from autotune.core.session import forget
from autotune.operations.layers import LAYERS, PARTS, Layer
from autotune.runtime.loading import request_of
from autotune.serving.loading import contenders
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch: Any = pytest.importorskip("torch", minversion="2.9")

from serving_kernels import serve_by_kernels  # noqa: E402
from torch.nn import functional  # noqa: E402

from autotune.torch import gated, linear, use_tuned  # noqa: E402
from autotune.torch.layers import Following, composed  # noqa: E402

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.gpu,
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
    ),
]

SHAPES = ((1, 512, 384), (64, 1024, 320), (200, 264, 136), (37, 130, 77), (300, 512, 640))
DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch is without CUDA")
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path))
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "0")
    forget()
    yield
    forget()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels win every contest; lists the operations that they compute."""
    return serve_by_kernels(monkeypatch)


def random(*shape: int, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    source = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=source, device="cuda").to(dtype)


def operands(
    m: int, n: int, k: int, layer: Layer, dtype: Any, seed: int = 0
) -> tuple[Any, Any, Following]:
    shapes = {"row_scale": (m, 1), "column_scale": (k,), "bias": (k,)}
    given = {
        part: random(*shapes.get(part, (m, k)), dtype=dtype, seed=seed) for part in layer.parts
    }
    x, w = random(m, n, dtype=dtype, seed=seed), random(k, n, dtype=dtype, seed=seed) / n**0.5
    return x, w, Following(activation=layer.activation or None)._replace(**given)


def close(got: Any, x: Any, w: Any, following: Following) -> None:
    """Rounded once: within a unit of the result's type, and of sums in float32."""
    wide = Following(*(each.float() if torch.is_tensor(each) else each for each in following))
    wanted = composed(functional.linear, x.float(), w.float(), wide)
    unit = 2.0**-8 if got.dtype is torch.bfloat16 else 2.0**-11
    torch.testing.assert_close(got.float(), wanted, rtol=unit, atol=1e-4)


def right_whoever_computed(got: Any, x: Any, w: Any, following: Following) -> None:
    """PyTorch's bits, rounded after every operator, or rounded once."""
    if not torch.equal(got, composed(functional.linear, x, w, following)):
        close(got, x, w, following)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    [
        "layer_bias",
        "layer_residual",
        "layer_bias_gelu",
        "layer_silu_multiply",
        "layer_gelu_tanh",
        "layer_row_scale_column_scale_bias_silu_multiply_residual",
        "layer_column_scale_bias_sigmoid_multiply",
        "layer_row_scale_relu_residual",
    ],
)
def test_layers_of_the_best_programs(name: str, dtype: Any) -> None:
    layer, target = LAYERS[name], make_target("cuda")
    for m, n, k in SHAPES:
        problem = layer.operation.at((m, n, k), dtype=str(dtype)[6:], layout="nt")
        x, w, following = operands(m, n, k, layer, dtype)
        given = [each for each in following.tensors if each is not None]
        for each in contenders(target, request_of(problem, "cuda", match="nearest"), 2):
            close(each.load()(x, w, *given), x, w, following)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_the_function_launches_them(layout: str, kernels: list[str]) -> None:
    x, w, following = operands(64, 512, 320, Layer(PARTS, "silu"), torch.bfloat16)
    x = x.t().contiguous().t() if layout[0] == "t" else x
    w = w if layout[1] == "t" else w.t().contiguous().t()
    close(linear(x, w, **following._asdict()), x, w, following)
    assert kernels == [Layer(PARTS, "silu").name]
    stacked = following._replace(
        **{
            part: getattr(following, part).view(2, 32, -1)
            for part in ("row_scale", "multiply", "residual")
        }
    )
    if layout[0] == "n":
        made = linear(x.view(2, 32, -1), w, **stacked._asdict())
        close(made.view(64, -1), x, w, following)
        assert len(kernels) == 2


def test_captured_on_a_stream(kernels: list[str]) -> None:
    x, gate, up = random(64, 512), random(320, 512) / 23, random(320, 512) / 23
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gated(x, gate, up)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gated(x, gate, up)
    for seed in (1, 2):
        x.copy_(random(64, 512, seed=seed))
        graph.replay()
        other = functional.linear(x, up)
        close(got, x, gate, Following(activation="silu", multiply=other))
    assert sorted(kernels) == ["gemm", "layer_silu_multiply"]


def test_what_is_added_in_16_bits_goes_through_the_switch(kernels: list[str]) -> None:
    x, w, bias, residual = random(64, 512), random(320, 512) / 23, random(320), random(64, 320)
    with use_tuned():
        with_bias = functional.linear(x, w, bias)
        added = torch.addmm(residual, x, w.t())
        doubled = torch.addmm(bias, x, w.t(), beta=2)
    # Outside: what float32 says is a product as well.
    close(with_bias, x, w, Following(bias=bias))
    close(added, x, w, Following(residual=residual))
    close(doubled, x, w, Following(bias=2 * bias))
    assert kernels == ["layer_bias", "layer_residual"]


def test_a_contest_decides() -> None:
    x, w, following = operands(64, 1024, 1024, Layer(("bias",), "gelu"), torch.bfloat16)
    for _ in range(60):
        right_whoever_computed(linear(x, w, **following._asdict()), x, w, following)
    torch.cuda.synchronize()


def test_compiled_and_under_autocast() -> None:
    torch.compiler.reset()
    x, w, following = operands(64, 512, 320, Layer(("bias", "residual"), "silu"), torch.bfloat16)

    def layer(x: Any) -> Any:
        return linear(x, w, **following._asdict())

    right_whoever_computed(torch.compile(layer, fullgraph=True)(x), x, w, following)
    with torch.autocast("cuda", torch.bfloat16):
        made = linear(x.float(), w.float(), following.bias.float(), activation="silu")
    assert made.dtype is torch.bfloat16
    right_whoever_computed(made, x, w, Following(bias=following.bias, activation="silu"))


def test_training() -> None:
    pair = []
    for own in (True, False):
        x, w, following = operands(64, 512, 320, Layer(("bias",), "gelu"), torch.bfloat16)
        given = [each.requires_grad_() for each in (x, w, following.bias)]
        made = (
            linear(x, w, following.bias, activation="gelu")
            if own
            else composed(functional.linear, x, w, following)
        )
        made.float().square().sum().backward()
        pair.append([each.grad.float() for each in given])
    for got, wanted in zip(*pair, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", ["layer_bias_gelu", "layer_silu_multiply_residual"])
def test_tuned_kernels_are_verified(name: str, tmp_path: Path) -> None:
    """Every case of a program's, with NaN and infinity, against float64."""
    problem = LAYERS[name].operation.at((96, 256, 320), dtype="bfloat16", layout="nt")
    tuned = tune(problem, target="cuda", trials=8, timeout=60, cache=tmp_path)
    assert tuned.best is not None
    assert not tuned.counts.get(Outcome.WRONG_RESULT)
