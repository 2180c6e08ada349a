"""Products of plain tensors, by kernels or by PyTorch: what is under all that PyTorch adds."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from autotune.arrays.libraries import plain_library
from autotune.arrays.library import Descriptor
from autotune.arrays.torch import torch_is_exact
from autotune.core import session
from autotune.core.errors import LaunchError, OperandError
from autotune.core.session import Remembered
from autotune.runtime.choosing import new_contest, serve, turning
from autotune.runtime.contest import Contest
from autotune.serving.kernel import Launching, Recordable
from autotune.torch import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.operations.operation import Operation, Problem
    from autotune.operations.problem import Gemm
    from autotune.runtime.choosing import Served
    from autotune.serving.kernel import BoundKernel, Kernel
    from autotune.serving.recorded import RecordedLaunch

    Call: TypeAlias = Callable[..., Any]

_raw_stream: Call | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""The handle of the current stream of a device; what PyTorch's own compiler calls."""

_ROW_LIMIT = 2**31
"""Elements between rows that kernels count no further than."""


@dataclass(frozen=True, slots=True)
class TensorCalls:
    """Calls of a kernel on tensors that lie alike.

    Both raise OperandError where the kernel cannot compute where the tensors lie.

    Attributes:
        layout: which operands the kernel takes turned.
        of_stored: ``of_stored(a, b, out=None, alpha=1.0, beta=0.0)`` of operands as the layout
            says that they are stored: ``alpha a @ b + beta out``, in `out` or a new tensor.
        call: the same of operands as they are multiplied.
    """

    layout: str
    of_stored: Call
    call: Call


class TensorProduct:
    """A product of matrices or of stacks, or a layer, by a kernel or by PyTorch, as is faster.

    A product to which something is added is a contest of its own: PyTorch adds within its
    product, a kernel's is read once more.

    Args:
        served: the problem, and who computes it.
        calls_of: makes the calls of a kernel: of a product of matrices `TensorCalls`.
        record_of: the launch of a kernel for compiled gates; None where they cannot make it.

    Attributes:
        accuracy: the class that it is served in.
        told: what compiled gates were told of it last.
    """

    __slots__ = ("_added", "_calls", "_calls_of", "_record_of", "_served", "accuracy", "told")

    def __init__(
        self,
        served: Served,
        calls_of: Callable[[Kernel], Any],
        record_of: Callable[[Kernel], RecordedLaunch | None] = lambda kernel: None,
    ) -> None:
        self.accuracy = served.problem.accuracy
        self.told: object = None
        self._served = served
        self._calls_of, self._record_of = calls_of, record_of
        self._calls: dict[int, Any] = {}
        self._added: Contest | None = None

    def compute(
        self,
        ours: Callable[[Any], Any],
        theirs: Call,
        like: Any,
        *,
        added: bool = False,
        twice: bool = True,
    ) -> Any:
        """The product.

        Args:
            ours: computes it by a kernel's calls.
            theirs: computes it by PyTorch.
            like: an operand.
            added: whether something is added to it.
            twice: whether either may be called once more: they write to memory of their own.
        """
        contest = self._served.contest
        if added:
            contest = self._added = self._added or self._contest_of_added()
        try:
            if contest.winner is not None:
                return ours(self._of(contest.winner))
            return contest.call(lambda kernel: ours(self._of(kernel)), theirs, like, twice=twice)
        except OperandError:  # of an odd address, say, which PyTorch minds less
            return theirs()

    def by_kernel(self, ours: Callable[[Any], Any], theirs: Call, like: Any, **how: bool) -> Any:
        """The product by a kernel, whichever is faster, if one takes the tensors."""
        try:
            return ours(self._of(self._served.contest.best()))
        except OperandError:
            return theirs()

    @property
    def leaves_sums(self) -> bool:
        """True if it is known that PyTorch computes a sum with something."""
        added = self._added
        return added is not None and added.over and added.is_librarys

    def winner(self, *, added: bool = False) -> Kernel | None:
        """The kernel that computes from now on, if its calls need not be counted.

        Args:
            added: whether something is added to the product.
        """
        contest = self._added if added else self._served.contest
        return None if contest is None or contest.counts else contest.winner

    def recorded(self, kernel: Kernel) -> RecordedLaunch | None:
        """The launch of a kernel, if others can make it."""
        return self._record_of(kernel)

    def _of(self, kernel: Kernel) -> Any:
        calls = self._calls.get(id(kernel))
        if calls is None:  # the kernel stays with the contest
            calls = self._calls[id(kernel)] = self._calls_of(kernel)
        return calls

    def _contest_of_added(self) -> Contest:
        """The contest of sums; the product's own where PyTorch is faster even without a sum."""
        contest = self._served.contest
        if contest.over and contest.winner is None:
            return contest
        problem = self._served.problem
        target = contest.target
        made = new_contest(problem, target, torch.__version__)
        assert made is not None  # there are kernels for the product
        return made


def product_of(
    a: Any, b: Any, caller: str, accepts: Callable[[Any], str | None] | None = None
) -> TensorProduct | None:
    """The product of two plain tensors; None leaves it to PyTorch for good.

    Args:
        a: A.
        b: B.
        caller: the function that was called, for the log.
        accepts: the accuracy class that a problem is served in, or None; see `serve`.
    """
    # One flat key: every call makes it.
    # fmt: off
    return _PRODUCTS[
        a.shape, a.stride(), a.dtype, a.device, b.shape, b.stride(), b.dtype, b.device,
        caller, accepts,
    ]
    # fmt: on


@session.cached()
def in_class(accuracy: str) -> Callable[[Any], str]:
    """Function that says of all products that they are served in a class, as `serve` asks it."""
    return lambda problem: accuracy


def layer_of(rows: Any, weight: Any, caller: str, accuracy: str = "") -> TensorProduct | None:
    """The product of rows and a layer's weights, which are stored turned.

    Args:
        rows: A.
        weight: B as stored, K x N; its view as B need not be made for that.
        caller: the function that was called, for the log.
        accuracy: the class that it is served in; empty is the usual one.
    """
    shape, strides = weight.shape[::-1], weight.stride()[::-1]
    # fmt: off
    return _PRODUCTS[
        rows.shape, rows.stride(), rows.dtype, rows.device,
        shape, strides, weight.dtype, weight.device, caller,
        in_class(accuracy) if accuracy else None,
    ]
    # fmt: on


def _make_product(*key: Any) -> TensorProduct | None:
    """The product of plain tensors that lie as `product_of` says."""
    *described, caller, accepts = key
    a, b = (descriptor(*each) for each in (described[:4], described[4:]))

    def calls_of(problem: Problem, kernel: Kernel) -> TensorCalls:
        if a.place[0].type == "cpu":
            return _host_calls(problem, kernel.bound)
        return _launches(problem, kernel, a, b)

    def record_of(problem: Problem, kernel: Kernel) -> RecordedLaunch | None:
        steps = steps_of((a, b), problem.layout)
        return recorded_of(kernel, a.place[0], [*steps, (b.shape[1],)])

    return served_product(
        a, b, caller, accepts, calls_of, record_of, functools.partial(_PRODUCTS.__setitem__, key)
    )


def descriptor(shape: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> Descriptor:
    """The descriptor of a tensor.

    Whether gradients are wanted is not for kernels to know, which are called below all that.
    """
    return Descriptor(shape, strides, dtype, (device, False, False))


def served_product(
    a: Descriptor,
    b: Descriptor,
    caller: str,
    accepts: Callable[[Gemm], str | None] | None,
    calls_of: Callable[[Problem, Kernel], Any],
    record_of: Callable[[Problem, Kernel], RecordedLaunch | None],
    settle: Callable[[TensorProduct | None], None],
    layer: Operation | None = None,
) -> TensorProduct | None:
    """The product of tensors that lie alike, or a layer; None leaves it to PyTorch.

    Args:
        a: A.
        b: B.
        caller: the function that was called, for the log.
        accepts: as for `product_of`.
        calls_of: makes the calls of a kernel.
        record_of: the launch of a kernel for compiled gates.
        settle: takes what replaces it later.
        layer: what follows the product.
    """
    tensors = plain_library(torch.Tensor)
    assert tensors is not None
    found = serve(tensors, a, b, caller, accepts, layer)
    return None if found is None else contested_product(found, calls_of, record_of, settle)


def contested_product(
    found: Served,
    calls_of: Callable[[Problem, Kernel], Any],
    record_of: Callable[[Problem, Kernel], RecordedLaunch | None],
    settle: Callable[[TensorProduct | None], None],
) -> TensorProduct | None:
    """The product that a contest is about; None where PyTorch has won it for good.

    Arguments are those of `served_product`.
    """
    contest = found.contest
    if contest.over and contest.winner is None and not contest.counts:
        return None
    product = TensorProduct(
        found,
        functools.partial(calls_of, found.problem),
        functools.partial(record_of, found.problem),
    )

    def change() -> None:
        settle(None if contest.is_librarys else product)
        compiled.changed()

    contest.on_change(change)
    return product


_PRODUCTS = Remembered(_make_product)


def _host_calls(problem: Problem, kernel: BoundKernel) -> TensorCalls:
    """Calls of a kernel that takes NumPy's arrays."""
    shape, layout = problem.operands[-1].shape, problem.layout
    dtype = getattr(torch, problem.dtype)
    empty, device = torch.empty, torch.device("cpu")  # not where the program's default is

    def of_stored(a: Any, b: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0) -> Any:
        if out is None:
            out = empty(shape, dtype=dtype, device=device)
        left = a.detach().numpy() if a.requires_grad else a.numpy()
        right = b.detach().numpy() if b.requires_grad else b.numpy()
        kernel(left, right, out.numpy(), alpha, beta)
        return out

    return TensorCalls(layout, of_stored, turning(of_stored, layout))


def detached(*tensors: Any) -> list[Any]:
    """Tensors as kernels take them, whose gradients PyTorch's dispatcher sees to above them."""
    return [each.detach() if each.requires_grad else each for each in tensors]


def _launches(problem: Problem, kernel: Kernel, a: Descriptor, b: Descriptor) -> TensorCalls:
    """Calls of a kernel of a GPU."""
    layout, bound = problem.layout, kernel.bound
    launched = functools.partial(_launched, problem, bound, a, b)

    def looking(a: Any, b: Any, *more: Any) -> Any:
        return bound(*detached(a, b), *more)

    return TensorCalls(layout, launched(looking), launched(turning(looking, layout)))


def _launched(
    problem: Problem, kernel: BoundKernel, a: Descriptor, b: Descriptor, usual: Call
) -> Call:
    """Calls of a kernel of a GPU: where tensors lie alike, all that is new are their addresses.

    Args:
        problem: what it computes.
        kernel: the kernel.
        a: how A lies, as it is multiplied.
        b: how B lies.
        usual: the same calls, with a look at the operands in each.
    """
    leading = [each[0] for each in steps_of((a, b), problem.layout) if each is not None]
    device = a.place[0]
    unchecked = launch_of(kernel, device) if len(leading) == 2 else None
    if unchecked is None:
        return usual
    (launch, stream), number, empty = unchecked, device.index, torch.empty
    shape, dtype = problem.operands[-1].shape, a.dtype
    (lda, ldb), ldc = leading, shape[1]

    def call(a: Any, b: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0) -> Any:
        if out is not None or alpha != 1 or beta != 0:
            return usual(a, b, out, alpha, beta)
        made = empty(shape, dtype=dtype, device=device)
        c = made.data_ptr()
        launch(a.data_ptr(), lda, b.data_ptr(), ldb, c, ldc, 1.0, 0.0, stream(number))
        return made

    return call


def launch_of(kernel: BoundKernel, device: torch.device) -> tuple[Call, Call] | None:
    """The unchecked launch of a kernel of a GPU, and the stream to pass it; None without one."""
    if _raw_stream is None or not isinstance(kernel, Launching):
        return None
    try:
        return kernel.launch_on(device.index), _raw_stream
    except OperandError:  # the usual calls say so as well
        return None


def recorded_of(
    kernel: Kernel, device: torch.device, steps: Sequence[tuple[int, ...] | None]
) -> RecordedLaunch | None:
    """The launch of a kernel of a GPU for others to make; None where they cannot.

    Args:
        kernel: the kernel.
        device: where.
        steps: of every operand its strides but the last; None as of `steps_of`.
    """
    bound = kernel.bound
    known = [each for each in steps if each is not None]
    if len(known) < len(steps) or device.type != "cuda" or not isinstance(bound, Recordable):
        return None
    try:
        return bound.recorded_on(device.index, known)
    except (OperandError, LaunchError):  # the usual calls say so as well
        return None


def steps_of(looks: Sequence[Descriptor], layout: str) -> list[tuple[int, ...] | None]:
    """Strides, but the last, of operands; None where that is for a closer look to say.

    Args:
        looks: how they lie, as they are multiplied.
        layout: a letter of each matrix.
    """
    steps: list[tuple[int, ...] | None] = []
    for look, stored in zip(looks, layout, strict=True):
        leading = leading_of(look, stored) if len(look.shape) > 1 else None
        steps.append(() if len(look.shape) == 1 else None if leading is None else (leading,))
    return steps


def leading_of(look: Descriptor, stored: str) -> int | None:
    """Elements from one stored row to the next; None where that is for a closer look to say."""
    lines = zip(look.shape, look.strides, strict=True)
    (rows, leading), (columns, step) = lines if stored == "n" else reversed([*lines])
    if columns > 1 and step != 1:
        return None
    if rows == 1:
        return columns
    return leading if columns <= leading < _ROW_LIMIT else None


def plain_mm(a: Tensor, b: Tensor, accuracy: str = "") -> Tensor:
    """The product of plain tensors, by a kernel of a class or by PyTorch."""
    product = product_of(a, b, "torch mm", in_class(accuracy) if accuracy else None)
    if product is None or not is_exact(a, accuracy):
        return torch.mm(a, b)
    made: Tensor = product.compute(lambda calls: calls.call(a, b), lambda: torch.mm(a, b), a)
    return made


def is_exact(operand: Tensor, accuracy: str = "") -> bool:
    """True if PyTorch's products are as exact as a class asks for.

    It is left what it is set to round, but for class tf32, whose kernels round, too.
    """
    return (
        operand.dtype is not torch.float32
        or accuracy == "tf32"
        or torch_is_exact(torch, operand.device.type)
    )


def adds_apart(dtype: torch.dtype) -> bool:
    """True if adding something to a product afterwards is worth the product by a kernel.

    PyTorch adds within its own. In 16 bits a product may be over before its result could be read
    and written once more.
    """
    return bool(dtype.itemsize > 2)
