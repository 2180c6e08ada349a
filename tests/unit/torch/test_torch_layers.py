"""Layers of PyTorch's tensors: products and what follows them, by kernels and by PyTorch."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from records import record

torch: Any = pytest.importorskip("torch")

from serving_kernels import serve_by_kernels  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from autotune.core.configuration import Candidate  # noqa: E402
from autotune.core.errors import InputError  # noqa: E402
from autotune.core.paths import CacheLocations  # noqa: E402
from autotune.core.session import forget  # noqa: E402
from autotune.operations.layers import LAYERS, PARTS, Layer  # noqa: E402
from autotune.runtime import choosing  # noqa: E402
from autotune.store import BaselineRecord, EffortRecord, TuningCache  # noqa: E402
from autotune.store.record import IN_CALLS  # noqa: E402
from autotune.targets.families import catalog  # noqa: E402
from autotune.targets.registry import make_target  # noqa: E402
from autotune.torch import calls, gated, layers, linear  # noqa: E402
from autotune.torch.layers import Following, composed, sum_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# PyTorch's own, of what it uses itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

M, N, K = 6, 8, 5
LAYER = torch.ops.autotune.layer


@pytest.fixture(autouse=True)
def own_cache(warm_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache without records; nothing is measured in calls."""
    monkeypatch.setenv("AUTOTUNE_CACHE", str(warm_cache))
    monkeypatch.setenv("AUTOTUNE_BACKGROUND", "0")
    monkeypatch.setenv("AUTOTUNE_TURNS", "0")
    forget()
    yield
    forget()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels win every contest; lists the operations that they computed."""
    return serve_by_kernels(monkeypatch)


def random(*shape: int, dtype: Any = torch.float32) -> Any:
    source = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=source, dtype=torch.float64).to(dtype)


def all_parts(*lead: int, dtype: Any = torch.float64, activation: str = "gelu") -> Following:
    return Following(
        random(*lead, 1, dtype=dtype),
        random(K, dtype=dtype),
        random(K, dtype=dtype),
        activation,
        random(*lead, K, dtype=dtype),
        random(*lead, K, dtype=dtype),
    )


def keywords(following: Following) -> dict[str, Any]:
    return following._asdict()


@pytest.mark.parametrize("lead", [pytest.param((M,), marks=pytest.mark.thorough), (2, 3)])
def test_a_kernel_computes_all_of_a_layer(lead: tuple[int, ...], kernels: list[str]) -> None:
    x, w = random(*lead, N), random(K, N)
    following = all_parts(*lead, dtype=torch.float32, activation="silu")
    made = linear(x, w, **keywords(following))
    (name,) = kernels
    assert LAYERS[name] == Layer(PARTS, "silu")
    exact = Following(*(each.double() if torch.is_tensor(each) else each for each in following))
    wanted = composed(functional.linear, x.double(), w.double(), exact)
    assert made.dtype is torch.float32
    torch.testing.assert_close(made.double(), wanted, rtol=1e-5, atol=1e-5)
    # What lies otherwise is another problem; rows that are apart are read where they lie.
    apart = random(*lead[:-1], lead[-1] + 1, K + 3)[..., : lead[-1], :K]
    made = linear(x, w.t().contiguous().t(), activation="silu", residual=apart)
    wanted = functional.silu(functional.linear(x, w)) + apart
    torch.testing.assert_close(made, wanted)
    assert kernels[1:] == (["layer_silu_residual"] if len(lead) == 1 else [])


def test_what_kernels_do_not_take_is_pytorchs(kernels: list[str]) -> None:
    x, w, bias, residual = random(M, N), random(K, N), random(K), random(M, K)
    for given in (
        {"residual": residual.double()},
        {"residual": random(K)},  # one row for all
        {"residual": residual.t().contiguous().t()},
        {"multiply": residual[:, :1].expand(M, K)},
        {"row_scale": random(1, 1)},
        {"activation": "gelu"},  # Numba has no error function
    ):
        made = linear(x, w, bias, **given)
        wanted = composed(functional.linear, x, w, Following(bias=bias)._replace(**given))
        assert made.dtype is wanted.dtype
        torch.testing.assert_close(made, wanted)
    assert not kernels
    with pytest.raises(RuntimeError, match="must match"):
        linear(x, w, residual=random(M + 1, K))
    with pytest.raises(InputError, match="activation must be one of relu, gelu"):
        linear(x, w, activation="swish")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "sigmoid", None])
@pytest.mark.parametrize("parts", [(), ("bias",), ("multiply", "residual"), PARTS])
def test_gradients_of_gradients(activation: str | None, parts: tuple[str, ...]) -> None:
    whole = keywords(all_parts(M))
    names = [part for part in parts if part in whole]
    if not names and activation is None:
        return
    tensors = [random(M, N, dtype=torch.float64), random(K, N, dtype=torch.float64)]
    tensors += [whole[name] for name in names]
    given = tuple(each.requires_grad_() for each in tensors)

    def function(x: Any, w: Any, *rest: Any) -> Any:
        return linear(x, w, activation=activation, **dict(zip(names, rest, strict=True)))

    def operator(x: Any, w: Any, *rest: Any) -> Any:
        known = Following(activation=activation)._replace(**dict(zip(names, rest, strict=True)))
        return LAYER(x, w, *known)

    for layer in (function, operator):
        assert torch.autograd.gradcheck(layer, given)
    if activation != "relu":  # whose slope jumps
        assert torch.autograd.gradgradcheck(function, given)


def test_gradients_are_pytorchs_in_16_bits() -> None:
    following = all_parts(M, dtype=torch.bfloat16, activation="silu")
    pair = []
    for layer in (
        lambda x, w: linear(x, w, **keywords(following)),
        lambda x, w: composed(functional.linear, x, w, following),
    ):
        x = random(M, N, dtype=torch.bfloat16).requires_grad_()
        w = random(K, N, dtype=torch.bfloat16).requires_grad_()
        made = layer(x, w)
        made.sum().backward()
        pair.append((made, x.grad, w.grad))
    for got, wanted in zip(*pair, strict=True):
        assert got.equal(wanted)


def test_the_operator_does_what_pytorch_asks_of_one() -> None:
    x, w = random(M, N), random(K, N)
    following = all_parts(M, dtype=torch.float32, activation="silu")
    torch.library.opcheck(LAYER.default, (x, w, *following))
    wanted = [x.double().requires_grad_(), w.double(), *all_parts(M)]
    torch.library.opcheck(LAYER.default, tuple(wanted))


def test_compiled_layers_are_one_operator_without_gradients() -> None:
    x, w, bias = random(M, N), random(K, N), random(K)
    graphs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph

    @torch.compile(fullgraph=True, backend=backend)
    def layer(x: Any) -> Any:
        return linear(x, w, bias, activation="silu")

    wanted = functional.silu(functional.linear(x, w, bias))
    torch.testing.assert_close(layer(x), wanted)
    assert "autotune.layer" in graphs[-1]
    layer(x.clone().requires_grad_())
    assert "autotune.layer" not in graphs[-1]
    assert "autotune.linear" in graphs[-1]
    compiled = torch.compile(
        lambda x: linear(x, w, bias, activation="silu"), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(x), wanted)
    leaf = x.clone().requires_grad_()
    compiled(leaf).sum().backward()
    other = x.clone().requires_grad_()
    functional.silu(functional.linear(other, w, bias)).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


@pytest.mark.parametrize("operator", [False, True])
def test_autocast_has_pytorchs_dtypes(operator: bool) -> None:
    x, w, bias, residual = random(M, N), random(K, N), random(K), random(M, K)
    with torch.autocast("cpu", torch.bfloat16):
        for rest in (residual, residual.bfloat16(), None):
            known = Following(bias=bias, activation="silu", residual=rest)
            made = LAYER(x, w, *known) if operator else linear(x, w, **keywords(known))
            wanted = composed(functional.linear, x, w, known)
            assert made.dtype is wanted.dtype
            assert made.equal(wanted)


@pytest.mark.parametrize("operator", [False, True])
def test_transforms(operator: bool) -> None:
    wide = {"dtype": torch.float64}
    xs, w, bias = random(3, M, N, **wide), random(K, N, **wide), random(2, K, **wide)

    def layer(x: Any, bias: Any) -> Any:
        known = Following(bias=bias, activation="silu", residual=x[:, :K])
        return LAYER(x, w, *known) if operator else linear(x, w, **keywords(known))

    both = torch.vmap(torch.vmap(layer, (None, 0)), (0, None))(xs, bias)
    for i, j in itertools.product(range(3), range(2)):
        torch.testing.assert_close(both[i, j], layer(xs[i], bias[j]))
    if not operator:
        slope = torch.func.jacrev(layer)(xs[0], bias[0])
        torch.testing.assert_close(slope, torch.func.jacfwd(layer)(xs[0], bias[0]))


def test_modes_see_a_layer() -> None:
    with FlopCounterMode(display=False) as counter:
        linear(random(M, N), random(K, N), activation="silu")
    assert counter.get_total_flops() == 2 * M * N * K


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_gated_pair(activation: str, kernels: list[str]) -> None:
    x, gate, up, bias = random(M, N), random(K, N), random(K, N) + 1, random(K)
    made = gated(x, gate, up, activation=activation, up_bias=bias)
    function = getattr(functional, activation)
    wanted = function(functional.linear(x, gate)) * functional.linear(x, up, bias)
    torch.testing.assert_close(made, wanted)
    fused = ["layer_silu_multiply"] if activation == "silu" else []
    assert kernels == ["gemm", *fused]


class Addressed:
    """A kernel of a layer, as those of GPUs are called: adds a bias and a residual."""

    def launch_on(self, device: int) -> Any:
        return self.launch

    def launch(self, *numbers: int, stream: int) -> None:
        a, lda, b, ldb, bias, residual, ldr, c, ldc = numbers
        assert stream == 77
        left, right = matrix(a, lda, (M, N)), matrix(b, ldb, (K, N))
        added = matrix(residual, ldr, (M, K))
        matrix(c, ldc, (M, K))[...] = left @ right.T + matrix(bias, K, (1, K)) + added


def matrix(address: int, leading: int, shape: tuple[int, int]) -> Any:
    count = (shape[0] - 1) * leading + shape[1]
    memory = np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
    return np.lib.stride_tricks.as_strided(memory, shape, (4 * leading, 4))


def test_launches_on_a_gpu_are_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_raw_stream", lambda device: 77 + device)
    x, w, bias = random(2, 3, N), random(K, N + 1)[:, :N], random(K)
    residual = random(M, K + 2)[:, :K]
    problem = Layer(("bias", "residual")).operation.at((M, N, K), layout="nt")
    place = torch.device("cpu", 0)

    def look(tensor: Any) -> Any:
        return calls.descriptor(tensor.shape, tensor.stride(), tensor.dtype, place)

    looks = (look(x.view(M, N)), look(w.t()), look(bias), look(residual))
    call = layers._launched(problem, Addressed(), looks, (2, 3, K))
    assert call is not None
    made = call(x, w, (None, None, bias, None, residual))
    wanted = functional.linear(x, w, bias) + residual.view(2, 3, K)
    torch.testing.assert_close(made, wanted)
    flipped = (look(x.view(M, N).t()), *looks[1:])
    assert layers._launched(problem, Addressed(), flipped, (2, 3, K)) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(K,), (M, K)])
def test_sums_of_the_switch(shape: tuple[int, ...], kernels: list[str]) -> None:
    a, b, c = random(M, N), random(K, N).t(), random(*shape)
    found = sum_of(a, b, c, "test", lambda problem: "" if problem.shape == (M, N, K) else None)
    assert found is not None
    tensors = (None, None, c, None, None) if len(shape) == 1 else (None, None, None, None, c)
    made = found.compute(lambda call: call(a, b.t(), tensors), lambda: None, a)
    torch.testing.assert_close(made, torch.addmm(c, a, b))
    assert kernels == ["layer_bias" if len(shape) == 1 else "layer_residual"]
    assert sum_of(a, b, c, "test", lambda problem: None) is None
    assert sum_of(a, b, c.double(), "test", None) is None


@pytest.mark.parametrize("ratio", [2.0, 0.5])
def test_a_tuned_layer_takes_turns_with_pytorch_once(ratio: float, warm_cache: Path) -> None:
    problem = Layer(("bias",), "silu").operation.at((M, N, K), layout="nt")
    device = make_target("cpu").device(problem)
    family = catalog("cpu", problem.operation)["unpacked"]
    tuned = record(
        problem=problem,
        operation=problem.operation,
        target="cpu",
        candidate=Candidate("unpacked", family.default(problem, device.limits)),
        family_digest=family.digest,
        fingerprint=device.fingerprint,
        toolchain=dict(device.toolchain),
        baseline=None,
    )
    cache = TuningCache(CacheLocations.at(warm_cache).create().database)
    cache.add(tuned)
    library = f"PyTorch {torch.__version__}"
    found, reason = choosing._CONTESTS[problem, "cpu", library]
    assert found is not None
    assert found.winner is None
    assert "no kernel is known to be faster" in reason
    beside = BaselineRecord(library, tuned.median_s * ratio, ratio)
    in_calls = EffortRecord(2, 0.1, IN_CALLS)
    cache.add(replace(tuned, baseline=beside, effort=in_calls))
    forget()
    found, reason = choosing._CONTESTS[problem, "cpu", library]
    assert found is not None
    assert found.over
    assert (found.winner is not None) is (ratio > 1)
    assert reason == f"unpacked is at {ratio:.2f}x {library} here"
