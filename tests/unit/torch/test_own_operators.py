"""Kernels of one's own as operators of PyTorch, in compiled programs and with gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_kernels import agree, expected, kernel, module
from structured_kernels import made, operands

import autotune
from autotune.core.errors import OperandError

torch: Any = pytest.importorskip("torch")

thorough = pytest.mark.thorough
NAMES = ("softmax", "layer_norm", "spmv", "bitonic_step", "quantisation")
"""One output, several with a scalar, sizes from expressions, in place, integers."""


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


FEW = ("layer_norm", "bitonic_step")


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in FEW else thorough) for each in NAMES],
)
def test_an_operator_is_what_pytorch_wants(name: str) -> None:
    example = module(name)
    own = kernel(example, "cpu")
    given = example.operands(np.random.default_rng(3))
    own.tune(*given, trials=1, timeout=150)
    operator = own.torch_operator()
    tensors = [torch.from_numpy(each.copy()) for each in given]
    torch.library.opcheck(operator, tuple(tensors))
    tensors = [torch.from_numpy(each.copy()) for each in given]
    found = operator(*tensors)
    in_place = name == "bitonic_step"
    results = tensors[0] if in_place else found
    several = results if isinstance(results, (tuple, list)) else (results,)
    arrays = tuple(each.numpy() for each in several)
    agree(arrays, expected(example, given), 1e-12, least=name == "quantisation")
    assert (found is None) is in_place


STRUCTURED = ("normalised", "decayed", "largest")
"""Several outputs, in place with an integer, single numbers."""


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of tracing
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each == "decayed" else thorough) for each in STRUCTURED],
)
def test_a_kernel_takes_tensors_as_they_are(name: str) -> None:
    own = made(name, "cpu", None)
    inputs, scalars, wanted = operands(name)
    tensors = [torch.from_numpy(each.copy()) for each in inputs]
    found = own(*tensors, **scalars)
    several = found if isinstance(found, tuple) else (found,)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, want in zip(several, wanted, strict=True):
        assert isinstance(got, torch.Tensor)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)
    if name == "decayed":
        assert found is tensors[0]
    else:
        out = tuple(map(torch.empty_like, several))
        assert own(*tensors, out=out)[0].data_ptr() == out[0].data_ptr()
        np.testing.assert_allclose(out[-1].numpy(), wanted[-1], rtol=1e-12)
        assert isinstance(own(*inputs)[0], np.ndarray)
        leaf = torch.nn.Parameter(tensors[0])
        with pytest.raises(OperandError, match=r"pass x.detach\(\), call it under torch.no_grad"):
            own(leaf)
        with torch.no_grad():
            assert isinstance(own(leaf)[0], torch.Tensor)
    with pytest.raises(OperandError, match="must not be traced by PyTorch"):
        torch.jit.trace(lambda *given: own(*given), tuple(tensors))
    for wrong in (tensors[0].to("meta"), tensors[0].to_sparse()):
        with pytest.raises(OperandError, match="such as NumPy can view, and Tensor is not: can't"):
            own(wrong, *tensors[1:])


def test_a_compiled_program_has_gradients_by_the_users_rule() -> None:
    example = module("softmax")
    own = kernel(example, "cpu")
    (X,) = example.operands(np.random.default_rng(3))
    own.tune(X, trials=1, timeout=150)
    operator = own.torch_operator()

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    def backward(ctx: Any, grad: Any) -> Any:
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(dim=1, keepdim=True))

    operator.register_autograd(backward, setup_context=setup)

    def program(x: Any) -> Any:
        return (operator(2 * x) ** 2).sum()

    grads = []
    for each in (program, torch.compile(program, backend="aot_eager", fullgraph=True)):
        x = torch.from_numpy(X.copy()).requires_grad_()
        each(x).backward()
        grads.append(x.grad)
    x = torch.from_numpy(X.copy()).requires_grad_()
    (torch.softmax(2 * x, dim=1) ** 2).sum().backward()
    for grad in grads:
        torch.testing.assert_close(grad, x.grad)


def test_single_numbers_have_no_dimensions(tmp_path: Path) -> None:
    own = made("largest", "cpu", tmp_path)
    operator = own.torch_operator()
    x = torch.arange(7.0)
    torch.library.opcheck(operator, (x,))
    most, place = operator(x)
    assert (most.shape, most.item(), place.dtype, place.item()) == ((), 6.0, torch.int64, 6)


def test_kernels_of_one_name_are_operators_of_their_own(tmp_path: Path) -> None:
    described = {"operands": {"x": "N"}, "out": {"y": "N"}, "parameters": {"way": [1]}}

    def scaling(by: int) -> Any:
        body = f"        y[i] = {by} * x[i]"
        text = f"def scale(x, y, way):\n    for i in range(len(x)):\n{body}\n"
        path = tmp_path / f"times_{by}.py"
        path.write_text(text)
        found: dict[str, Any] = {}
        exec(compile(text, path, "exec"), found)
        return autotune.kernel(
            found["scale"], **described, reference=f"{by} * x", trials=1, cache=tmp_path
        )

    first, second = scaling(5).torch_operator(), scaling(7).torch_operator()
    x = torch.ones(3, dtype=torch.float64)
    for operator, by in ((first, 5), (second, 7), (torch.ops.autotune_own.scale, 5)):
        torch.testing.assert_close(operator(x), by * x)
    assert scaling(5).torch_operator() is first
    assert scaling(7).torch_operator() is second
