"""Everything of ours that takes tensors, while PyTorch watches, records or transforms it."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from measured_shapes import SHAPES, measured_cache

torch: Any = pytest.importorskip("torch", minversion="2.9")

from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import autotune  # noqa: E402
from autotune.arrays import watching  # noqa: E402
from autotune.core.errors import OperandError  # noqa: E402
from autotune.torch import (  # noqa: E402
    Linear,
    convert,
    gates,
    linear,
    mm,
    use_tuned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# PyTorch's own, of what it uses itself and of what it keeps no more.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*(nested tensors|Sparse CSR|quantize_per):UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

M, N, K = SHAPES[0]


own_cache = measured_cache(library="PyTorch 2")


def whole(*shape: int, seed: int = 0) -> Any:
    """Small whole numbers: sums are exact in any order."""
    source = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-4, 5, shape, generator=source).float()


A, B, BIAS, OTHER = whole(M, N), whole(N, K), whole(K), whole(M, N, seed=1)


def layer_like(kind: Any) -> Any:
    made = kind(N, K)
    made.load_state_dict({"weight": whole(K, N), "bias": BIAS})
    return made


class OfA(torch.nn.Module):
    """A layer, which takes A alone."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, a: Any, b: Any) -> Any:
        return self.layer(a)


LAYER, PLAIN = OfA(layer_like(Linear)), OfA(layer_like(torch.nn.Linear))
CONVERTED = convert(OfA(torch.nn.Sequential(layer_like(torch.nn.Linear))))

ENTRIES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mm": (mm, torch.mm),
    "linear": (
        lambda a, b: linear(a, b.t(), BIAS),
        lambda a, b: functional.linear(a, b.t(), BIAS),
    ),
    "Linear": (LAYER, PLAIN),
    "convert": (CONVERTED, PLAIN),
    "matmul": (autotune.matmul, torch.matmul),
    "switch": (torch.mm, torch.mm),
    "switch of a layer": (PLAIN, PLAIN),
}


class Program(torch.nn.Module):
    """A function as what all of PyTorch's tools take."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Any, b: Any) -> Any:
        return self.function(a, b).relu()


def again(made: Any) -> tuple[Any, ...]:
    """What a recorded program makes of these operands, and of others."""
    return made(A, B), made(OTHER, B)


def traced(f: Any) -> Any:
    with torch.no_grad():
        made = torch.jit.trace(f, (A, B))
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    assert "autotune::" not in str(made.inlined_graph)  # other programs run it
    return *again(made), *again(torch.jit.load(file)), *again(torch.jit.freeze(made.eval()))


def traced_with_gradients(f: Any) -> Any:
    made = torch.jit.trace(f, (A.clone().requires_grad_(), B))
    return again(made)


def exported(strict: bool) -> Callable[..., Any]:
    return lambda f: again(torch.export.export(f, (A, B), strict=strict).module())


def compiled(f: Any) -> Any:
    torch.compiler.reset()
    return again(torch.compile(f, fullgraph=True, backend="aot_eager"))


def recorded(**options: Any) -> Callable[..., Any]:
    return lambda f: again(make_fx(f, **options)(A, B))


def faked(f: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        a, b = mode.from_tensor(A), mode.from_tensor(B)
        inside = f(a, b)
    outside = f(a, b)
    return tuple((type(each), each.shape, each.dtype) for each in (inside, outside))


class Functions(TorchFunctionMode):
    """A mode that looks on."""

    def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return f(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    """The same below."""

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return f(*args, **(kwargs or {}))


def within(*contexts: Callable[[], Any]) -> Callable[..., Any]:
    def run(f: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for each in contexts:
                stack.enter_context(each())
            return f(A, B)

    return run


def dual(f: Any) -> Any:
    with forward_ad.dual_level():
        made = forward_ad.unpack_dual(f(forward_ad.make_dual(A, 2 * A), B))
        return made.primal, made.tangent


def differentiated(f: Any) -> Any:
    a = A.clone().requires_grad_()
    made = f(a, B)
    (gradient,) = torch.autograd.grad(made.sum(), a)
    return made, gradient


def counted(f: Any) -> Any:
    a = A.clone().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        f(a, B).sum().backward()
        f(A, B)
    return torch.tensor(counter.get_total_flops()), f(A, B)


def profiled(f: Any) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        made = f(A, B)
    seen = {each.key for each in profile.key_averages()}
    assert seen & {"aten::mm", "aten::addmm", "autotune::mm", "autotune::linear", "aten::empty"}
    return made


class Table(torch.Tensor):
    """Tensors whose class computes the products that it knows by name, as quantised ones do."""

    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(f, types, args, kwargs or {})
        if f in (torch.mm, torch.matmul, functional.linear):
            return made + 1000
        return made


class Wrapper(torch.Tensor):
    """Tensors without memory of their own: another one computes."""

    @staticmethod
    def __new__(cls, held: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert f.namespace == "aten", "only PyTorch's operators are known"
        bare = torch.utils._pytree.tree_map(lambda x: getattr(x, "held", x), (args, kwargs or {}))
        return cls(f(*bare[0], **bare[1]))


def sharded(f: Any) -> Any:
    from torch import distributed
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        a = distribute_tensor(A, mesh, [Shard(0)])
        made = f(a, distribute_tensor(B, mesh, [Replicate()]))
        return type(made), made.to_local()
    finally:
        distributed.destroy_process_group()


WATCHERS: dict[str, Callable[[Any], Any]] = {
    "nobody": again,
    "trace": traced,
    "trace with gradients": traced_with_gradients,
    "trace under autocast": lambda f: within(lambda: torch.autocast("cpu", torch.bfloat16))(
        lambda a, b: again(torch.jit.trace(f, (a, b), check_trace=False))
    ),
    "symbolic_trace": lambda f: again(torch.fx.symbolic_trace(f)),
    "export": exported(strict=False),
    "strict export": exported(strict=True),
    "compile": compiled,
    "make_fx": recorded(),
    "make_fx, fake": recorded(tracing_mode="fake"),
    "make_fx, symbolic": recorded(tracing_mode="symbolic"),
    "make_fx, before dispatch": recorded(pre_dispatch=True),
    "fake tensors": faked,
    "functionalize": lambda f: again(torch.func.functionalize(f)),
    "a function mode": within(Functions),
    "a dispatch mode": within(Dispatches),
    "two dispatch modes": within(Dispatches, Dispatches),
    "a default device": within(lambda: torch.device("cpu")),
    "another default device": within(lambda: torch.device("meta")),
    "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast in a mode": within(Dispatches, lambda: torch.autocast("cpu", torch.bfloat16)),
    "inference mode": within(torch.inference_mode),
    "forward mode": dual,
    "gradients": differentiated,
    "vmap": lambda f: torch.vmap(f, (0, None))(torch.stack([A, OTHER]), B),
    "vmap of both": lambda f: torch.vmap(f)(torch.stack([A, OTHER]), torch.stack([B, -B])),
    "func.grad": lambda f: torch.func.grad(lambda a: f(a, B).sum())(A),
    "func.vjp": lambda f: torch.func.vjp(lambda a: f(a, B), A)[1](torch.ones(M, K)),
    "func.jvp": lambda f: torch.func.jvp(lambda a: f(a, B), (A,), (OTHER,)),
    "func.hessian": lambda f: torch.func.hessian(lambda a: (f(a, B) ** 2).sum())(A),
    "a counter of operations": counted,
    "a profiler": profiled,
    "a class that knows products": lambda f: f(A.as_subclass(Table), B),
    "a class of wrappers": lambda f: f(Wrapper(A), Wrapper(B)).held,
    "a sharded tensor": sharded,
    "sparse": lambda f: f(A.to_sparse(), B),
    "compressed": lambda f: f(A.to_sparse_csr(), B),
    "meta": lambda f: f(A.to("meta"), B.to("meta")).shape,
    "negated": lambda f: f(torch._neg_view(A), B),
    "conjugated": lambda f: f(A.cfloat().conj(), B.cfloat().conj()),
    "zeros without memory": lambda f: f(torch._efficientzerotensor((M, N)), B),
    "nested": lambda f: f(torch.nested.nested_tensor([A, OTHER]), B).unbind(),
    "a jagged nest": lambda f: f(
        torch.nested.nested_tensor([A, OTHER], layout=torch.jagged), B
    ).unbind(),
    "a quantised tensor": lambda f: f(torch.quantize_per_tensor(A, 1.0, 0, torch.qint8), B),
    "bfloat16 as numbers": lambda f: f(A.bfloat16(), B.bfloat16()),
}


@pytest.mark.sampled(80)
@pytest.mark.parametrize("watcher", WATCHERS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_who_watches_sees_what_pytorch_does(entry: str, watcher: str) -> None:
    ours, theirs = (Program(each) for each in ENTRIES[entry])
    switched = use_tuned(devices=["cpu"]) if "switch" in entry else contextlib.nullcontext()
    try:
        wanted = WATCHERS[watcher](theirs)
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
        with pytest.raises(type(error)), switched:
            WATCHERS[watcher](ours)
        return
    with switched:
        got = WATCHERS[watcher](ours)
    same(got, wanted)


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple | list):
        assert len(got) == len(wanted)
        for each in zip(got, wanted, strict=True):
            same(*each)
    elif isinstance(wanted, torch.Tensor):
        assert type(got) is type(wanted)
        assert (got.dtype, got.shape, got.layout) == (wanted.dtype, wanted.shape, wanted.layout)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    else:
        assert got == wanted


def scripted_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return mm(a, b).relu()


def scripted_linear(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return linear(a, b.t()).relu()


def scripted_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return autotune.matmul(a, b).relu()


@pytest.mark.parametrize("function", [scripted_mm, scripted_linear, scripted_matmul])
def test_scripted_functions_are_pytorchs(function: Any) -> None:
    made = torch.jit.script(function)
    assert "autotune" not in made.code
    same(made(A, B), torch.mm(A, B).relu())


def test_scripted_models_are_pytorchs() -> None:
    model = torch.nn.Sequential(layer_like(torch.nn.Linear), torch.nn.ReLU())
    wanted = model(A)
    made = torch.jit.script(convert(model))
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    for each in (made, torch.jit.load(file), torch.jit.freeze(made.eval())):
        same(each(A).detach(), wanted.detach())


def test_stacks_are_traced_for_any_sizes() -> None:
    stack = torch.stack([A, OTHER]), torch.stack([B, -B])
    made = torch.jit.trace(autotune.matmul, stack)
    same(made(stack[0], B[None]), torch.matmul(stack[0], B))


def test_an_operator_that_is_traced_stays_one() -> None:
    made = torch.jit.trace(torch.ops.autotune.mm, (A, B))
    assert "autotune::mm" in str(made.graph)
    same(again(made), (torch.mm(A, B), torch.mm(OTHER, B)))


@pytest.mark.parametrize("function", [mm, lambda a, b: linear(a, b.t().contiguous())])
def test_kernels_serve_where_nobody_watches(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all of the above would be right without."""
    for module, own in ((torch, "mm"), (functional, "linear")):
        monkeypatch.setattr(module, own, None)
    assert function(A, B).shape == (M, K)
    for context in (lambda: torch.device("cpu"), torch.inference_mode, Dispatches):
        with context():
            assert function(A, B).shape == (M, K)


def test_recorded_calls_of_kernels_are_refused() -> None:
    def call(a: Any) -> Any:
        watching.check_unrecorded()
        return a + 1

    refused = pytest.raises(OperandError, match="must not be traced by PyTorch")
    assert call(A).equal(A + 1)
    with Functions(), Dispatches(), FlopCounterMode(display=False):
        call(A)
    for record in (
        lambda: torch.jit.trace(call, (A,)),
        lambda: make_fx(call)(A),
        lambda: make_fx(call, tracing_mode="fake")(A),
        lambda: make_fx(call, pre_dispatch=True)(A),
    ):
        with refused:
            record()


def test_other_peoples_filters_of_warnings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread sets one while the switch is set up."""
    monkeypatch.setattr(gates, "_INSTALLED", {})

    class Library:
        def __init__(self, *_: Any) -> None:
            pass

        def impl(self, *_: Any, **__: Any) -> None:
            pass

    monkeypatch.setattr(torch.library, "Library", Library)

    def get_kernel(name: str, device: str) -> Any:
        warnings.filterwarnings("ignore", "of another thread", BytesWarning)
        raise RuntimeError

    monkeypatch.setattr(torch.library, "get_kernel", get_kernel)
    gates.install({"cpu": gates.Keeper})
    assert any(each[2] is BytesWarning for each in warnings.filters)


def test_what_completion_shows() -> None:
    assert dir(autotune.torch) == sorted(autotune.torch.__all__)
