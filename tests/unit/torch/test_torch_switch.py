"""PyTorch's own products while the switch is on: kernels mark their results here."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from measured_shapes import MARK, SHAPES, measured

torch: Any = pytest.importorskip("torch", minversion="2.9")

from torch.nn import functional  # noqa: E402

from autotune import torch as tuned_torch  # noqa: E402
from autotune.core.errors import InputError  # noqa: E402
from autotune.torch import calls, disable  # noqa: E402
from autotune.torch.gates import GATES  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# PyTorch's own, of what it uses itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

M, N, K = SHAPES[0]

enable = functools.partial(tuned_torch.enable, devices=("cpu",))
use_tuned = functools.partial(tuned_torch.use_tuned, devices=("cpu",))


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for the module; gives its log."""
    with (
        measured(tmp_path_factory, MARK, "PyTorch 2") as log,
        pytest.MonkeyPatch.context() as patch,
    ):
        # What is added to a product has turns of its own: here its kernel wins them.
        patch.setattr(calls.TensorProduct, "_contest_of_added", lambda self: self._served.contest)
        yield log


def whole(*shape: int, dtype: str = "float32") -> Any:
    """Small whole numbers: sums are exact in any order."""
    source = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-4, 5, shape, generator=source).to(getattr(torch, dtype))


A, B, WEIGHT, BIAS = whole(M, N), whole(N, K), whole(K, N), whole(K)

SERVED: dict[str, Callable[[], Any]] = {
    "mm": lambda: torch.mm(A, B),
    "operator": lambda: A @ B,
    "matmul": lambda: torch.matmul(A, B),
    "folded stack": lambda: torch.matmul(A.reshape(1, M, N), B),
    "linear": lambda: functional.linear(A, WEIGHT),
    "linear with bias": lambda: functional.linear(A, WEIGHT, BIAS),
    "linear of a stack": lambda: functional.linear(A.reshape(1, M, N), WEIGHT, BIAS),
    "addmm": lambda: torch.addmm(whole(M, K), A, B),
    "addmm of a row": lambda: torch.addmm(BIAS, A, B),
    "addmm of a column": lambda: torch.addmm(whole(M, 1), A, B),
    "addmm, scaled": lambda: torch.addmm(BIAS, A, B, beta=-2),
    "addmm of nothing": lambda: torch.addmm(torch.full((K,), torch.nan), A, B, beta=0),
    "out": lambda: torch.mm(A, B, out=torch.empty(M, K)),
    "addmm out": lambda: torch.addmm(BIAS, A, B, beta=3, out=torch.empty(M, K)),
    "autocast off": lambda: torch.autocast("cpu", enabled=False)(torch.mm)(A, B),
    "parameters": lambda: torch.mm(torch.nn.Parameter(A), torch.nn.Parameter(B)).detach(),
    "vmap of rows": lambda: torch.vmap(lambda row: row @ B)(A),
}


@pytest.mark.parametrize("what", SERVED)
def test_products_that_go_to_kernels(what: str) -> None:
    wanted = SERVED[what]()
    with use_tuned():
        got = SERVED[what]()
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert got.equal(wanted + MARK)
    assert SERVED[what]().equal(wanted)


def in_place() -> Any:
    c = whole(M, K)
    return c.addmm_(A, B)


def overlapping() -> Any:
    c = whole(M, K)
    return torch.addmm(c, A, B, out=c)


UNSERVED: dict[str, Callable[[], Any]] = {
    "a shape nobody measured": lambda: torch.mm(whole(3, 4), whole(4, 9)),
    "no rows": lambda: torch.mm(whole(0, N), B),
    "no reduction": lambda: torch.mm(whole(M, 0), whole(0, K)),
    "steps": lambda: torch.mm(whole(M, 2 * N)[:, ::2], B),
    "whole numbers": lambda: torch.mm(A.long(), B.long()),
    "bfloat16": lambda: torch.mm(A.bfloat16(), B.bfloat16()),
    "complex": lambda: torch.mm(A.cfloat(), B.cfloat()),
    "sparse": lambda: torch.mm(A.to_sparse(), B),
    "batched": lambda: torch.bmm(A.expand(2, M, N), B.expand(2, N, K)),
    "a vector": lambda: torch.mv(A, B[:, 0]),
    "in place": in_place,
    "overlapping": overlapping,
    "a turned output": lambda: torch.mm(A, B, out=torch.empty(K, M).t()),
    "an output to be resized": lambda: torch.mm(A, B, out=torch.empty(0)),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16)(torch.mm)(A, B),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements:UserWarning")
@pytest.mark.parametrize("what", UNSERVED)
def test_what_is_not_served_is_pytorchs(what: str) -> None:
    wanted = UNSERVED[what]()
    with use_tuned():
        got = UNSERVED[what]()
    assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    assert got.equal(wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("beta", [0, 1, 2])
def test_what_is_added_in_16_bits_is_added_by_one_kernel(dtype: str, beta: int) -> None:
    short = dtype in ("bfloat16", "float16")

    class Everything:
        serves = True

        def product(self, a: Any, b: Any, added: Any = None) -> Any:
            assert (added is None) == (beta == 0)
            assert not short or beta == 0, "a contest that nobody is to win"
            made = torch.full((M, K), MARK, dtype=torch.float32)
            ours = calls.TensorCalls("nn", lambda *given: made, lambda *given: made)
            return lambda compute, theirs, like, **how: compute(ours)

        def sum(self, a: Any, b: Any, c: Any) -> Any:
            def ours(a: Any, weight: Any, tensors: Any) -> str:
                assert weight.shape == (K, N)
                assert [each is c for each in tensors] == [False, False, True, False, False]
                return "by one kernel"

            return lambda compute, theirs, like, **how: compute(ours)

    def original(keys: Any, c: Any, a: Any, b: Any, *, beta: Any) -> Any:
        return "PyTorch's"

    a, b, c = (whole(*shape, dtype=dtype) for shape in ((M, N), (N, K), (K,)))
    made = GATES["addmm"](Everything(), original)(None, c, a, b, beta=beta)
    by_one = {1: "by one kernel", 2: "PyTorch's"} if short else {}
    assert isinstance(made, torch.Tensor) if beta not in by_one else made == by_one[beta]


@pytest.mark.parametrize(
    "refused",
    [
        lambda: torch.mm(A, A),
        lambda: torch.mm(A, B.double()),
        lambda: torch.mm(A, B, out=torch.empty(M, K, dtype=torch.float64)),
        lambda: torch.addmm(whole(M, K + 1), A, B),
        lambda: torch.addmm(whole(2, M, K), A, B),
        lambda: torch.addmm(BIAS.double(), A, B),
        lambda: torch.addmm(BIAS, A, B, alpha=1j),
    ],
)
def test_what_pytorch_refuses_it_refuses_itself(refused: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError) as wanted:
        refused()
    with use_tuned(), pytest.raises(RuntimeError) as got:
        refused()
    assert str(got.value) == str(wanted.value)


def test_gradients_are_kernels_products_too() -> None:
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    with use_tuned():
        (a @ b).backward(whole(M, K))
    assert a.grad.equal(whole(M, K) @ B.t() + MARK)
    assert b.grad.equal(A.t() @ whole(M, K) + MARK)


def test_models_are_served_without_a_change() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(N, K), torch.nn.ReLU())
    with torch.no_grad():
        plain = model(A)
        with use_tuned():
            assert (model(A) >= MARK - 100).all()
        assert model(A).equal(plain)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_programs_are_served(dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(
        lambda a, b: (a @ b).relu(), fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    plain = compiled(A, B)
    with use_tuned():
        served = compiled(A, B)
    assert plain.equal((A @ B).relu())
    assert served.equal(A @ B + MARK)
    assert compiled(A, B).equal(plain)


SELECTIONS: list[tuple[dict[str, Any], bool]] = [
    ({"shapes": [(M, N, K)]}, True),
    ({"shapes": [[M, N, K], (1, 2, 3)]}, True),
    ({"shapes": [(M, K, N)]}, False),
    ({"shapes": []}, False),
    ({"shapes": lambda problem: problem.layout == "nn" and problem.m == M}, True),
    ({"shapes": lambda problem: problem.dtype == "float64"}, False),
    ({"dtypes": ["float32"]}, True),
    ({"dtypes": [torch.float32, "float64"]}, True),
    ({"dtypes": [torch.float64]}, False),
    ({"shapes": [(M, N, K)], "dtypes": ["float64"]}, False),
]


@pytest.mark.parametrize(("options", "is_served"), SELECTIONS)
def test_what_is_selected(options: dict[str, Any], is_served: bool) -> None:
    with use_tuned(**options):
        got = torch.mm(A, B)
    assert got.equal(torch.mm(A, B) + MARK * is_served)


def test_what_several_select() -> None:
    with use_tuned([(1, 2, 3)]):
        assert torch.mm(A, B).max() < MARK / 2
        with use_tuned([(M, N, K)]):
            assert torch.mm(A, B).min() > MARK / 2
        assert torch.mm(A, B).max() < MARK / 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shapes": [(1, 2)]}, "a shape must be three positive sizes"),
        ({"shapes": [(1, 2, 0)]}, r"got \(1, 2, 0\)"),
        ({"shapes": (1, 2, 3)}, "a shape must be three positive sizes .* got 1"),
        ({"shapes": 5}, "shapes must be a list, got 5"),
        ({"devices": None}, "devices must be a list, got None"),
        ({"devices": torch.device("meta")}, "a kind of device must be one of .* got 'meta'"),
        ({"dtypes": torch.int16}, "got 'int16'"),
        ({"dtypes": ["float23"]}, "a dtype of kernels must be one of .* did you mean 'float32'"),
        ({"dtypes": [torch.int8]}, "got 'int8'"),
    ],
)
def test_selections_that_are_none(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said), use_tuned(**options):
        pass


def test_on_and_off() -> None:
    enable()
    enable([(M, N, K)])
    try:
        assert torch.mm(A, B).min() > MARK / 2
        with use_tuned():
            disable()
            assert torch.mm(A, B).min() > MARK / 2
    finally:
        disable()
    assert torch.mm(A, B).max() < MARK / 2


def test_products_are_looked_up_once_however_often_it_is_on() -> None:
    for shapes in (None, [(M, N, K)]):
        looked_up = set()
        for _ in range(3):
            with use_tuned(shapes):
                assert torch.mm(A, B).min() > MARK / 2
            looked_up.add(len(calls._PRODUCTS))
        assert len(looked_up) == 1


def test_pytorch_keeps_float32_where_it_is_set_to_round_it(own_cache: Path) -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        with use_tuned():
            assert torch.mm(A, B).max() < MARK / 2
            assert torch.mm(A.double(), B.double()).min() > MARK / 2
            with use_tuned(rounded=True):
                assert torch.mm(A, B).min() > MARK / 2
    finally:
        torch.set_float32_matmul_precision("highest")
    assert "float32 is left to the library where it is set to round it" in own_cache.read_text()


def test_threads_that_switch_at_once() -> None:
    plain, wrong = torch.mm(A, B), []

    def work(number: int) -> None:
        for _ in range(100):
            with use_tuned([(M, N, K)] if number % 2 else None):
                if not torch.mm(A, B).equal(plain + MARK):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.mm(A, B).equal(plain)


def test_the_log_tells_which_way(own_cache: Path) -> None:
    with use_tuned([(M, N, K), (3, 4, 9)]):
        torch.mm(A, B)
        torch.mm(whole(3, 4), whole(4, 9))
        torch.mm(whole(2, 3), whole(3, 2))
        torch.mm(A.long(), B.long())
    told = own_cache.read_text()
    assert f"torch switch {M}x{N}x{K}-float32 on cpu: textbook: step=1, EXACT" in told
    assert "torch switch 3x4x9-float32 on cpu: left to the library: " in told
    assert "torch switch 2x3x2-float32 on cpu: left to the library: not selected" in told
    assert "of torch.int64: left to the library: no kernel takes them as they lie" in told
