"""Products in an accuracy class: a kernel of the class marks its results, and serves no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from measured_shapes import MARK, SHAPES, measured

import autotune
from autotune import numpy as tuned_numpy
from autotune.core.errors import InputError
from autotune.operations.problem import Gemm
from autotune.runtime.choosing import of_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

M, N, K = SHAPES[0]
CLASS = "fp32-normwise"

MATMULS = [autotune.matmul, tuned_numpy.matmul]


@pytest.fixture(autouse=True, scope="module", params=["NumPy 2", "PyTorch 2"])
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    with measured(tmp_path_factory, MARK, request.param, CLASS) as log:
        yield log


@pytest.fixture
def library(own_cache: Path, request: pytest.FixtureRequest) -> str:
    """What the kernel was faster than."""
    name: str = request.node.callspec.params["own_cache"]
    return name


def whole(*shape: int, dtype: str = "float32") -> Any:
    """Small whole numbers: sums are exact in any order."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


A, B = whole(M, N), whole(N, K)


@pytest.mark.parametrize("multiply", MATMULS)
def test_a_kernel_of_the_class_serves_who_asks_for_it(
    multiply: Callable[..., Any], library: str
) -> None:
    marked = MARK if library.startswith("NumPy") else 0
    for _ in range(2):
        np.testing.assert_array_equal(multiply(A, B), A @ B)
        np.testing.assert_array_equal(multiply(A, B, accuracy=CLASS), A @ B + marked)
        np.testing.assert_array_equal(multiply(A, B, accuracy="ieee"), A @ B)
    out = np.empty((M, K), np.float32)
    assert multiply(A, B, out=out, accuracy=CLASS) is out
    np.testing.assert_array_equal(out, A @ B + marked)


def test_a_looser_class_that_no_kernel_has_is_the_usual_one() -> None:
    usual = Gemm(M, N, K)
    assert of_class(usual, "fp32", "cpu") == usual
    assert of_class(usual, CLASS, "cpu").accuracy == CLASS
    doubles = Gemm(M, N, K, "float64")
    assert of_class(doubles, CLASS, "cpu") == doubles


@pytest.mark.parametrize("multiply", MATMULS)
@pytest.mark.parametrize(
    ("dtype", "accuracy", "said"),
    [
        ("float32", "fp23", "accuracy must be one of ieee, fp32, .* got 'fp23'"),
        ("float32", "fp64", "accuracy fp64 is of float64 operands, got float32: use one of ieee"),
        ("float64", CLASS, "accuracy fp32-normwise is of float32 operands, got float64"),
        ("float16", "ieee", "accuracy ieee of float16 operands is stricter than native"),
    ],
)
def test_a_class_that_operands_do_not_have_is_refused(
    multiply: Callable[..., Any], dtype: str, accuracy: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        multiply(whole(M, N, dtype=dtype), whole(N, K, dtype=dtype), accuracy=accuracy)


@pytest.mark.parametrize("multiply", MATMULS)
@pytest.mark.parametrize("accuracy", [["x"], [], {}, 0, False, np.ones(2)])
def test_what_is_no_name_of_a_class_is_refused(
    multiply: Callable[..., Any], accuracy: Any
) -> None:
    with pytest.raises(InputError, match="accuracy must be one of ieee"):
        multiply(A, B, accuracy=accuracy)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_switch_has_a_class(library: str) -> None:
    torch = pytest.importorskip("torch", minversion="2.9")
    from autotune.torch import use_tuned

    a, b = torch.from_numpy(A), torch.from_numpy(B)
    marked = MARK if library.startswith("PyTorch") else 0
    with use_tuned(devices=("cpu",), accuracy=CLASS):
        np.testing.assert_array_equal(a @ b, A @ B + marked)
        np.testing.assert_array_equal(a.double() @ b.double(), A @ B)
        with use_tuned(devices=("cpu",)):  # the latest
            np.testing.assert_array_equal(a @ b, A @ B)
        with use_tuned(devices=("cpu",), dtypes=["float64"], accuracy="fp64"):
            np.testing.assert_array_equal(a @ b, A @ B + marked)
    with use_tuned(devices=("cpu",)):
        np.testing.assert_array_equal(a @ b, A @ B)
    with pytest.raises(InputError, match="got 'fp23'"), use_tuned(accuracy="fp23"):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_class_tf32_is_served_where_pytorch_rounds_as_well(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    torch = pytest.importorskip("torch", minversion="2.9")
    from autotune.torch import linear, mm, use_tuned

    a, b = torch.from_numpy(A), torch.from_numpy(B)
    with measured(tmp_path_factory, MARK, "PyTorch 2", "tf32"):
        torch.set_float32_matmul_precision("medium")
        try:
            for accuracy, marked in (("tf32", MARK), ("fp32-normwise", 0)):
                with use_tuned(devices=("cpu",), accuracy=accuracy):
                    np.testing.assert_array_equal(a @ b, A @ B + marked)
                    np.testing.assert_array_equal(a.double() @ b.double(), A @ B)
                np.testing.assert_array_equal(mm(a, b, accuracy=accuracy), A @ B + marked)
                np.testing.assert_array_equal(linear(a, b.t(), accuracy=accuracy), A @ B + marked)
        finally:
            torch.set_float32_matmul_precision("highest")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_operators_have_a_class(library: str) -> None:
    torch = pytest.importorskip("torch", minversion="2.9")
    from autotune.torch import linear, mm

    a, b = torch.from_numpy(A), torch.from_numpy(B)
    marked = MARK if library.startswith("PyTorch") else 0
    expected = torch.from_numpy(A @ B + marked)
    operators = torch.ops.autotune

    def compiled(a: Any, b: Any) -> Any:
        return mm(a, b, accuracy=CLASS)

    ways: dict[str, Callable[[], Any]] = {
        "function": lambda: mm(a, b, accuracy=CLASS),
        "operator": lambda: operators.mm(a, b, CLASS),
        "with gradients": lambda: mm(a.clone().requires_grad_(), b, accuracy=CLASS),
        "operator with gradients": lambda: operators.mm(a.clone().requires_grad_(), b, CLASS),
        "gradient": lambda: torch.func.grad(lambda x: (x * mm(a, b, accuracy=CLASS)).sum())(a @ b),
        "vmap": lambda: torch.func.vmap(lambda row: mm(row, b, accuracy=CLASS))(a[:, None])[:, 0],
        "compiled": lambda: torch.compile(compiled, backend="aot_eager", fullgraph=True)(a, b),
        "layer": lambda: linear(a, b.t(), accuracy=CLASS),
        "operator of layers": lambda: operators.linear(a, b.t(), None, CLASS),
        "layer with gradients": lambda: linear(a.clone().requires_grad_(), b.t(), accuracy=CLASS),
    }
    for name, way in ways.items():
        np.testing.assert_array_equal(way().detach(), expected, name)
    for usual in (mm(a, b), operators.mm(a, b), linear(a, b.t()), mm(a, b, accuracy="ieee")):
        np.testing.assert_array_equal(usual, A @ B)
    np.testing.assert_array_equal(
        linear(a, b.t(), activation="relu", accuracy=CLASS), np.maximum(A @ B, 0)
    )  # no kernel of the layer was measured
    for call in (mm, linear):
        with pytest.raises(InputError, match="accuracy fp64 is of float64"):
            call(a, b, accuracy="fp64")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gradients_are_of_the_class_of_the_product(library: str) -> None:
    torch = pytest.importorskip("torch", minversion="2.9")
    from autotune.torch import linear, mm

    if not library.startswith("PyTorch"):
        pytest.skip("kernels were faster than another library")
    # The gradient of the right factor of X Y is X^T times that of the product: A B again.
    left = torch.from_numpy(A).t().contiguous()
    right = torch.zeros(M, K, requires_grad=True)
    upstream = torch.from_numpy(B)
    for product in (mm, lambda x, y, **how: linear(x, y.t(), **how)):
        (slope,) = torch.autograd.grad(product(left, right, accuracy=CLASS), right, upstream)
        np.testing.assert_array_equal(slope, A @ B + MARK)
        (slope,) = torch.autograd.grad(product(left, right), right, upstream)
        np.testing.assert_array_equal(slope, A @ B)


def test_products_in_jax_programs() -> None:
    jax = pytest.importorskip("jax")
    from autotune.jax import matmul

    a, b = jax.numpy.asarray(A), jax.numpy.asarray(B)
    np.testing.assert_array_equal(matmul(a, b), A @ B)
    np.testing.assert_array_equal(matmul(a, b, accuracy=CLASS), A @ B + MARK)
    slope = jax.grad(lambda a: matmul(a, b, accuracy=CLASS).sum())(a)
    np.testing.assert_array_equal(slope, np.ones((M, K)) @ B.T + MARK)
    with pytest.raises(InputError, match="accuracy fp64 is of float64"):
        matmul(a, b, accuracy="fp64")
