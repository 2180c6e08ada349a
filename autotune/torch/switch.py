"""The switch: PyTorch's own products are tuned kernels' while it is on.

It takes the place of PyTorch's kernels of ``aten::mm`` and ``aten::addmm``, where all of it comes
for a product of two matrices: `torch.mm`, ``@``, `torch.nn.functional.linear`, modules, gradients,
compiled graphs, C++. What lies above (autograd, autocast, `torch.func`) does as it does without,
no other operator costs more, and what is not served goes to the kernel that was there. The switch
is the process's, as PyTorch's dispatcher is: products of all threads go through it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch

from autotune.core.errors import OperandError
from autotune.runtime.routes import tell
from autotune.targets.precision import torch_is_exact
from autotune.torch.calls import product_of
from autotune.torch.gates import install
from autotune.torch.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from autotune.operations.problem import Gemm
    from autotune.torch.calls import TensorProduct

_CALLER = "torch switch"


def enable(
    shapes: Iterable[tuple[int, int, int]] | Callable[[Gemm], bool] | None = None,
    dtypes: Iterable[Any] | None = None,
    *,
    rounded: bool = False,
) -> None:
    """Have PyTorch's products computed by tuned kernels, until `disable`.

    Args:
        shapes: rows, reduction and columns of the products that are meant, or a function that
            says it of a `Gemm`; None means all. Of those, kernels get what was measured.
        dtypes: element types that are meant, PyTorch's or their names; None means all.
        rounded: whether float32 goes to kernels, which never round it, where PyTorch is set to
            round it to TF32 or bfloat16. If not, it is PyTorch's there.

    Raises:
        InputError: a shape or a dtype is none.
        MissingDependencyError: PyTorch is older than 2.9.
    """
    selection = Selection.of(shapes, dtypes, rounded=rounded)
    _SWITCH.add(selection)
    _ENABLED.append(selection)


def disable() -> None:
    """Take back every `enable`; what `use_tuned` has on meanwhile stays on."""
    while _ENABLED:
        with contextlib.suppress(IndexError):  # another thread was faster
            _SWITCH.remove(_ENABLED.pop())


@contextlib.contextmanager
def use_tuned(
    shapes: Iterable[tuple[int, int, int]] | Callable[[Gemm], bool] | None = None,
    dtypes: Iterable[Any] | None = None,
    *,
    rounded: bool = False,
) -> Iterator[None]:
    """A context in which products of PyTorch's are tuned kernels', in all threads.

    Arguments and errors are those of `enable`. Where several are on, in one thread or in many,
    what any of them selects is served.
    """
    selection = Selection.of(shapes, dtypes, rounded=rounded)
    _SWITCH.add(selection)
    try:
        yield
    finally:
        _SWITCH.remove(selection)


class _Switch:
    """What is selected now, in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selections: list[Selection] = []
        self._accepts: Callable[[Gemm], bool] | None = None
        self._accepts_rounded: Callable[[Gemm], bool] | None = None
        self._thread = threading.local()

    def add(self, selection: Selection) -> None:
        """Serve what is selected, too."""
        with self._lock:
            install(self)
            self._change([*self._selections, selection])

    def remove(self, selection: Selection) -> None:
        """Serve it no more, unless others select it."""
        with self._lock:
            rest = list(self._selections)
            rest.remove(selection)
            self._change(rest)

    def product(self, a: Any, b: Any) -> TensorProduct | None:
        """The product of two plain tensors by a kernel, if it is served now."""
        accepts = self._accepts
        if accepts is None or getattr(self._thread, "inside", False):
            return None
        found = product_of(a, b, _CALLER, accepts)
        if found is None or a.dtype is not torch.float32:
            return found
        if torch_is_exact(torch, a.device.type):
            return found
        tell(_CALLER, None, "", "float32 is left to the library where it is set to round it")
        accepts = self._accepts_rounded
        return None if accepts is None else product_of(a, b, _CALLER, accepts)

    def compute(self, product: TensorProduct, a: Any, b: Any, out: Any, alpha: float) -> Any:
        """``alpha a @ b``, in `out` or a new tensor; None where it cannot be, after all.

        What computes while a kernel is being compiled may be PyTorch: it is not served then.
        """
        self._thread.inside = True
        try:
            return product.call(a, b, out, alpha)
        except OperandError:  # of an odd address, say, which PyTorch minds less
            return None
        finally:
            self._thread.inside = False

    def _change(self, selections: list[Selection]) -> None:
        self._selections = selections
        self._accepts = _any_of(tuple(selections))
        self._accepts_rounded = _any_of(tuple(each for each in selections if each.rounded))


@functools.lru_cache(maxsize=64)
def _any_of(selections: tuple[Selection, ...]) -> Callable[[Gemm], bool] | None:
    """What one of some selections takes; None where there is none.

    The same function for equal selections: products are remembered by it, also when the switch is
    turned on again and again.
    """
    if not selections:
        return None
    return lambda problem: any(each.takes(problem) for each in selections)


_SWITCH = _Switch()
_ENABLED: list[Selection] = []
