"""``autotune::mm`` and ``autotune::linear`` beside PyTorch's own, in all that PyTorch does."""

from __future__ import annotations

import copy
import io
import itertools
import multiprocessing
import threading
from typing import TYPE_CHECKING, Any

import pytest
from measured_shapes import SHAPES, measured_cache

torch: Any = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from autotune.core.errors import InputError  # noqa: E402
from autotune.torch import Linear, convert, linear, mm  # noqa: E402
from autotune.torch.calls import product_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# PyTorch's own, of what it uses itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

M, N, K = SHAPES[0]
OPERATORS = (mm, torch.ops.autotune.mm)


own_cache = measured_cache(library="PyTorch 2")


def whole(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    """Small whole numbers: sums are exact in any order."""
    source = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-4, 5, shape, generator=source).to(getattr(torch, dtype))


def same(got: Any, wanted: Any) -> None:
    assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    assert got.equal(wanted)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("operator", OPERATORS, ids=["function", "operator"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_products_that_kernels_compute(operator: Any, dtype: str, layout: str) -> None:
    a, b = whole(M, N, dtype=dtype), whole(N, K, dtype=dtype)
    if layout[0] == "t":
        a = a.t().contiguous().t()
    if layout[1] == "t":
        b = b.t().contiguous().t()
    assert product_of(a, b, "test") is not None
    same(operator(a, b), torch.mm(a, b))


UNSERVED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a shape nobody measured": lambda: (whole(3, 4), whole(4, 9)),
    "no rows": lambda: (whole(0, N), whole(N, K)),
    "no reduction": lambda: (whole(M, 0), whole(0, K)),
    "steps": lambda: (whole(M, 2 * N)[:, ::2], whole(N, K)),
    "reversed": lambda: (whole(M, N).flip(0), whole(N, K)),
    "repeated": lambda: (whole(1, N).expand(M, N), whole(N, K)),
    "whole numbers": lambda: (whole(M, N, dtype="int64"), whole(N, K, dtype="int64")),
    "bfloat16": lambda: (whole(M, N, dtype="bfloat16"), whole(N, K, dtype="bfloat16")),
    "complex": lambda: (whole(M, N).cfloat(), whole(N, K).cfloat().conj()),
    "negated": lambda: (torch.complex(whole(M, N), whole(M, N)).conj().imag, whole(N, K)),
    "negated where a kernel could read": lambda: (torch._neg_view(whole(M, N)), whole(N, K)),
    "sparse": lambda: (whole(M, N).to_sparse(), whole(N, K)),
    "compressed": lambda: (whole(M, N).to_sparse_csr(), whole(N, K)),
    "without contents": lambda: (whole(M, N).to("meta"), whole(N, K).to("meta")),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("operator", OPERATORS, ids=["function", "operator"])
@pytest.mark.parametrize("what", UNSERVED)
def test_what_is_not_served_is_pytorchs(operator: Any, what: str) -> None:
    a, b = UNSERVED[what]()
    wanted, got = torch.mm(a, b), operator(a, b)
    assert (got.dtype, got.shape, got.layout) == (wanted.dtype, wanted.shape, wanted.layout)
    assert got.is_meta or got.equal(wanted)


@pytest.mark.parametrize("operator", OPERATORS, ids=["function", "operator"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (whole(M, N), whole(K, N)),
        (whole(M, N), whole(N, K, dtype="float64")),
        (whole(N), whole(N, K)),
        (whole(2, M, N), whole(N, K)),
    ],
)
def test_what_pytorch_refuses_it_refuses_itself(operator: Any, a: Any, b: Any) -> None:
    messages = []
    for multiply in (torch.mm, operator):
        with pytest.raises(RuntimeError) as caught:
            multiply(a, b)
        messages.append(str(caught.value).partition("\n")[0])
    assert messages[0] == messages[1]


def test_addresses_that_kernels_do_not_take() -> None:
    raw = torch.zeros(4 * M * N + 4, dtype=torch.uint8)
    odd = raw[2 : 2 + 4 * M * N].view(torch.uint8)
    tensor = torch.empty(0).set_(odd.untyped_storage()[2:].clone(), 0, (M, N))
    same(mm(tensor, whole(N, K)), torch.mm(tensor, whole(N, K)))


def test_rows_may_be_apart() -> None:
    a, b = whole(M, N + 3)[:, :N], whole(N, 2 * K)[:, K:]
    assert product_of(a, b, "test") is not None
    same(mm(a, b), torch.mm(a, b))


@pytest.mark.parametrize("operator", OPERATORS, ids=["function", "operator"])
def test_gradients_of_gradients(operator: Any) -> None:
    a = whole(M, N, dtype="float64").requires_grad_()
    b = whole(N, K, dtype="float64").requires_grad_()
    assert torch.autograd.gradcheck(operator, (a, b))
    assert torch.autograd.gradgradcheck(operator, (a, b))


@pytest.mark.parametrize("operator", [linear, torch.ops.autotune.linear])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("stack", [(M,), (), (1, M), (2, 3)])
def test_gradients_of_layers(operator: Any, biased: bool, stack: tuple[int, ...]) -> None:
    inputs = [whole(*stack, N, dtype="float64"), whole(K, N, dtype="float64")]
    inputs += [whole(K, dtype="float64") if biased else None]
    same(operator(*inputs), functional.linear(*inputs))
    inputs = [each if each is None else each.requires_grad_() for each in inputs]
    assert torch.autograd.gradcheck(operator, tuple(inputs))
    assert torch.autograd.gradgradcheck(operator, tuple(inputs))


def test_gradients_are_products_of_kernels(own_cache: Path) -> None:
    a, b = whole(M, N).requires_grad_(), whole(N, K).requires_grad_()
    mm(a, b).backward(whole(M, K))
    same(a.grad, torch.mm(whole(M, K), b.detach().t()))
    same(b.grad, torch.mm(a.detach().t(), whole(M, K)))
    told = own_cache.read_text()
    assert f"torch mm {M}x{K}x{N}-float32-nt on cpu: textbook" in told
    assert f"torch mm {N}x{M}x{K}-float32-tn on cpu: textbook" in told


def test_what_no_gradient_needs_is_not_kept() -> None:
    a, b = whole(M, N), whole(N, K).requires_grad_()
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        mm(a, b)
    assert [tuple(each.shape) for each in kept] == [(M, N)]


@pytest.mark.parametrize("gradients", [True, False])
def test_what_pytorch_checks_of_operators(gradients: bool) -> None:
    a, b, c, bias = whole(M, N), whole(N, K), whole(K, N), whole(K)
    for each in (a, b, c, bias):
        each.requires_grad_(gradients)
    operators = torch.ops.autotune
    torch.library.opcheck(operators.mm.default, (a, b))
    turned = c.detach().t().requires_grad_(gradients)
    torch.library.opcheck(operators.mm.default, (a, turned))
    torch.library.opcheck(operators.mm.default, (whole(0, N), b))
    torch.library.opcheck(operators.linear.default, (a, c, bias))
    torch.library.opcheck(operators.linear.default, (whole(2, 3, N), c, None))
    torch.library.opcheck(operators.mm.default, (a, b, "ieee"))
    torch.library.opcheck(operators.linear.default, (a, c, bias, "ieee"))


def layers(a: Any, b: Any, weight: Any, bias: Any) -> Any:
    return linear(mm(a, b).relu(), weight, bias).sum(0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_break(dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    inputs = [whole(M, N), whole(N, K), whole(N, K), whole(N)]
    same(compiled(*inputs), layers(*inputs))
    grads = []
    for function in (compiled, layers):
        wanted = [each.clone().requires_grad_() for each in inputs]
        function(*wanted).backward(whole(N))
        grads.append([each.grad for each in wanted])
    for got, expected in zip(*grads, strict=True):
        assert got.equal(expected)


def test_exported() -> None:
    class Layers(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return mm(a, b)

    program = torch.export.export(Layers(), (whole(M, N), whole(N, K)))
    assert "autotune.mm" in str(program.graph)
    same(program.module()(whole(M, N), whole(N, K)), torch.mm(whole(M, N), whole(N, K)))


@pytest.mark.parametrize("operator", OPERATORS, ids=["function", "operator"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("given", ["float32", "float64"])
def test_autocast_casts_as_for_pytorchs_products(operator: Any, dtype: str, given: str) -> None:
    a = whole(M, N, dtype=given).requires_grad_()
    b = whole(N, K, dtype=given)
    with torch.autocast("cpu", getattr(torch, dtype)):
        wanted = torch.mm(a, b)
        got = operator(a, b)
        layer = linear(a, b.t(), whole(K, dtype=given))
        same(layer, functional.linear(a, b.t(), whole(K, dtype=given)))
    same(got.detach(), wanted.detach())
    got.sum().backward()
    assert a.grad.dtype == a.dtype
    with torch.autocast("cpu", enabled=False):
        same(operator(a.detach(), b), torch.mm(a.detach(), b))


@pytest.mark.parametrize("operator", OPERATORS, ids=["function", "operator"])
@pytest.mark.parametrize("dims", [(0, None), (1, None), (None, 0), (0, 2), (2, 1)])
def test_vectorised(operator: Any, dims: tuple[int | None, int | None]) -> None:
    a, b = (
        whole(*shape) if along is None else torch.stack([whole(*shape)] * 3, dim=along)
        for shape, along in zip(((M, N), (N, K)), dims, strict=True)
    )
    got = torch.vmap(operator, dims)(a, b)
    assert got.equal(torch.vmap(torch.mm, dims)(a, b))


@pytest.mark.parametrize("dims", [(0, None, None), (0, 0, 0), (None, 0, None), (0, None, 0)])
def test_vectorised_layers(dims: tuple[int | None, ...]) -> None:
    inputs = [
        whole(*shape) if along is None else torch.stack([whole(*shape)] * 3)
        for shape, along in zip(((M, N), (K, N), (K,)), dims, strict=True)
    ]
    wanted = torch.vmap(functional.linear, dims)(*inputs)
    assert torch.vmap(linear, dims)(*inputs).equal(wanted)
    assert torch.vmap(torch.ops.autotune.linear, dims)(*inputs).equal(wanted)


def test_transforms_of_functions() -> None:
    a, b, stack = whole(M, N), whole(N, K), whole(3, M, N)

    def cost(multiply: Any) -> Any:
        return lambda x: (multiply(x, b) ** 2).sum()

    func = torch.func
    for transform in (
        lambda f: func.grad(f)(a),
        lambda f: func.jacrev(func.grad(f))(a),
        lambda f: func.jacfwd(f)(a),
        lambda f: func.hessian(f)(a),
        lambda f: func.vmap(func.grad(f))(stack),
        lambda f: func.grad(lambda x: func.vmap(f)(x).sum())(stack),
        lambda f: func.jvp(f, (a,), (a,))[1],
        lambda f: func.vjp(f, a)[1](torch.tensor(1.0))[0],
    ):
        assert transform(cost(mm)).equal(transform(cost(torch.mm)))
    with torch.autocast("cpu", torch.bfloat16):
        got, wanted = (func.grad(cost(each))(a) for each in (mm, torch.mm))
    assert got.equal(wanted)


OVERLOADS = (torch.ops.autotune.mm.default, torch.ops.autotune.linear.default)


@pytest.mark.parametrize("operator", OVERLOADS, ids=["mm", "linear"])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="needs PyTorch 2.9")
def test_plain_tensors_pass_the_dispatcher_once(
    operator: Any, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[Any] = []
    overload = torch._ops.OpOverload
    redispatch = overload.redispatch

    def noted(op: Any, *args: Any, **kwargs: Any) -> Any:
        again.append(op)
        return redispatch(op, *args, **kwargs)

    monkeypatch.setattr(overload, "redispatch", noted)
    if operator is OVERLOADS[0]:
        others = [whole(N, K).requires_grad_(wanted)]
    else:
        others = [whole(K, N).requires_grad_(wanted), whole(K)]
    a = whole(M, N)
    got = operator(a, *others)
    assert got.requires_grad is wanted
    assert not again
    assert operator(torch._neg_view(-a), *others).equal(got)
    assert again == [operator]


@pytest.mark.parametrize("operator", OPERATORS, ids=["function", "operator"])
@pytest.mark.parametrize("wanted", [False, True])
def test_forward_mode_derivatives_are_pytorchs(operator: Any, wanted: bool) -> None:
    a, b = whole(M, N), whole(N, K).requires_grad_(wanted)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, 2 * a)
        got, tangent = forward_ad.unpack_dual(operator(dual, b))
    same(got, torch.mm(a, b))
    same(tangent, 2 * torch.mm(a, b))


def test_modes_of_pytorchs_see_the_operator() -> None:
    seen: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, f: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(f))
            return f(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(
            self, f: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(f))
            return f(*args, **(kwargs or {}))

    for mode in (Functions(), Dispatches()):
        seen.clear()
        with mode:
            got = mm(whole(M, N), whole(N, K))
        same(got, torch.mm(whole(M, N), whole(N, K)))
        assert any("autotune" in each for each in seen)


def test_classes_of_tensors_are_kept() -> None:
    class Own(torch.Tensor):
        pass

    a = whole(M, N).as_subclass(Own)
    got = mm(a, whole(N, K))
    assert type(got) is Own
    assert torch.Tensor(got).equal(torch.mm(whole(M, N), whole(N, K)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Any) -> None:
    weight = torch.nn.Parameter(whole(N, K))
    with mode():
        got = mm(whole(M, N), weight)
        wanted = torch.mm(whole(M, N), weight)
    assert not got.requires_grad
    assert got.is_inference() == wanted.is_inference()
    same(got, wanted)


def test_a_layer_is_pytorchs_in_all_but_its_product() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(N, K)
    own = Linear(N, K)
    own.load_state_dict(plain.state_dict())
    assert list(own.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(own(whole(M, N)), plain(whole(M, N)))
    for made in (copy.deepcopy(own), saved(own)):
        assert type(made) is Linear
        same(made(whole(M, N)), own(whole(M, N)))
    own.double()
    assert own(whole(M, N, dtype="float64")).dtype is torch.float64


def saved(module: Any) -> Any:
    """A module after it was saved and loaded."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_model_is_converted_in_place(own_cache: Path) -> None:
    class Derived(torch.nn.Linear):
        pass

    shared = torch.nn.Linear(N, N)
    model = torch.nn.Sequential(torch.nn.Linear(N, K), torch.nn.ReLU(), Derived(K, N), shared)
    model.append(shared)
    before, state = model(whole(M, N)), list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert convert(model) is model
    kinds = [type(each) for each in model]
    assert kinds == [Linear, torch.nn.ReLU, Derived, Linear, Linear]
    assert list(model.state_dict()) == state
    torch.testing.assert_close(model(whole(M, N)), before)
    model(whole(M, N)).sum().backward()
    weight = model[0].weight.detach().clone()
    optimizer.step()
    assert not model[0].weight.equal(weight)
    assert type(convert(torch.nn.Linear(2, 3))) is Linear
    with pytest.raises(InputError, match=r"a model must be a torch\.nn\.Module, got None"):
        convert(None)
    assert f"torch linear {M}x{N}x{K}-float32-nt on cpu: textbook" in own_cache.read_text()


def test_threads() -> None:
    a, b = whole(M, N), whole(N, K)
    wanted, wrong = torch.mm(a, b), []

    def work() -> None:
        for _ in range(200):
            if not mm(a, b).equal(wanted):
                wrong.append(1)
            left = a.clone().requires_grad_()
            mm(left, b).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Products(torch.utils.data.Dataset):
    """A dataset whose items are products."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return mm(whole(M, N, seed=index), whole(N, K))


@pytest.mark.filterwarnings("ignore::UserWarning")  # of machines with few cores
def test_processes_of_a_data_loader() -> None:
    mm(whole(M, N), whole(N, K))
    context = multiprocessing.get_context("fork")
    loader = torch.utils.data.DataLoader(
        Products(), num_workers=2, multiprocessing_context=context
    )
    for index, got in enumerate(loader):
        assert got[0].equal(torch.mm(whole(M, N, seed=index), whole(N, K)))


def test_the_log_tells_each_way_once(own_cache: Path) -> None:
    for a, b in itertools.repeat((whole(M, N), whole(N, K)), 3):
        mm(a, b)
        mm(whole(3, 4), whole(4, 9))
    lines = own_cache.read_text().splitlines()
    (served,) = [each for each in lines if f"torch mm {M}x{N}x{K}-float32 on cpu" in each]
    (left,) = [each for each in lines if "torch mm 3x4x9-float32 on cpu" in each]
    assert served.endswith("textbook: step=1, EXACT")
    assert "left to the library: no kernel is known to be faster (tuned for " in left
