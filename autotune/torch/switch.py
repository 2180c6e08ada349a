"""The switch: PyTorch's own products are tuned kernels' while it is on.

It takes the place of PyTorch's kernels of ``aten::mm``, ``aten::addmm`` and ``aten::bmm``, where
all of it comes for a product of matrices or stacks: `torch.mm`, ``@``,
`torch.nn.functional.linear`, modules, gradients, compiled graphs, C++. What lies above (autograd,
autocast, `torch.func`) does as it does without, no other operator costs more, and what is not
served goes to the kernel that was there. The switch is the process's, as PyTorch's dispatcher is:
products of all threads go through it.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import torch

from autotune.arrays.torch import lies_apart
from autotune.core import session
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError, MissingDependencyError
from autotune.core.suggestions import must_be
from autotune.operations.accuracy import refuse_unknown
from autotune.runtime.product_log import log_product
from autotune.torch.calls import TensorCalls, adds_apart, is_exact, product_of
from autotune.torch.layers import sum_of
from autotune.torch.stacks import StackProduct, product_of_stacks

if TYPE_CHECKING:
    from autotune.operations.problem import Problem

Compute: TypeAlias = "Callable[..., Any]"
"""``compute(ours, theirs, like, added=False, twice=True)``, as `TensorProduct.compute` has it."""


class Keeper(Protocol):
    """Says what the gates of a device let through.

    Attributes:
        serves: False lets all be PyTorch's, which costs less than to ask for each product.
    """

    serves: bool

    def product(self, a: Any, b: Any) -> Compute | None:
        """Function that computes a product now; None lets PyTorch."""
        ...

    def sum(self, a: Any, b: Any, c: Any) -> Compute | None:
        """Function that computes ``a @ b + c`` now by one kernel; None lets PyTorch."""
        ...

    def stack(self, a: Any, b: Any) -> StackProduct | None:
        """The products of two stacks; None lets PyTorch."""
        ...


def install(keepers: Mapping[str, Keeper]) -> None:
    """Set up the gates of some devices, unless they are.

    They stay as long as the process: taking a kernel away from PyTorch's dispatcher, which other
    threads may be calling, is not safe. With nothing to let through they cost about 2 us.

    Args:
        keepers: what they let through, by the kind of device.

    Raises:
        MissingDependencyError: PyTorch is older than 2.9 and does not give its kernels away.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise MissingDependencyError(
            "the switch needs PyTorch 2.9 or newer, this is "
            f"{torch.__version__}: use autotune.torch.convert or linear instead"
        )
    for device in sorted(keepers.keys() - _INSTALLED.keys()):
        _INSTALLED[device] = _install_on(keepers[device], device.upper())


def _install_on(keeper: Keeper, device: str) -> Any:
    """The library of the gates of a device, as the dispatcher calls it."""
    library = torch.library.Library("aten", "IMPL")
    # PyTorch warns of that once. The filter stays: other threads may be changing theirs meanwhile.
    warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered", UserWarning)
    for name, gate in GATES.items():
        try:
            original = torch.library.get_kernel(f"aten::{name}", device)
        except RuntimeError:  # a build without such devices
            break
        made = gate(keeper, original.call_boxed)
        library.impl(name, made, device, with_keyset=True)
    return library


_INSTALLED: dict[str, Any] = {}


def _product(keeper: Keeper, original: Any) -> Any:
    """Gate of ``aten::mm`` and ``aten::mm.out``."""

    def gate(keys: Any, a: Any, b: Any, **options: Any) -> Any:
        compute = keeper.product(a, b) if keeper.serves else None
        if compute is None:
            return original(keys, a, b, **options)

        def theirs() -> Any:
            return original(keys, a, b, **options)

        if not options:
            return compute(lambda calls: calls.call(a, b), theirs, a)
        out = options["out"]
        if not _holds(out, a, b):
            return theirs()
        return compute(lambda calls: calls.call(a, b, out), theirs, a, twice=False)

    return gate


def _stack(keeper: Keeper, original: Any) -> Any:
    """Gate of ``aten::bmm`` and ``aten::bmm.out``."""

    def gate(keys: Any, a: Any, b: Any, **options: Any) -> Any:
        out = options.get("out")
        product = keeper.stack(a, b) if keeper.serves else None
        if product is None or (out is not None and not _holds_stack(out, a, b)):
            return original(keys, a, b, **options)
        return product.compute((a, b), out, lambda: original(keys, a, b, **options))

    return gate


def _sum(keeper: Keeper, original: Any) -> Any:
    """Gate of ``aten::addmm`` and ``aten::addmm.out``."""

    def gate(keys: Any, c: Any, a: Any, b: Any, **options: Any) -> Any:
        if not keeper.serves:
            return original(keys, c, a, b, **options)
        beta, alpha, out = options.get("beta", 1), options.get("alpha", 1), options.get("out")
        within = beta != 0 and not adds_apart(a.dtype)
        if within:
            plain = out is None and _is_one(alpha) and _is_one(beta)
            compute = keeper.sum(a, b, c) if plain else None
        else:
            compute = keeper.product(a, b)
            if compute is not None and not _adds(c, a, b, alpha, beta):
                compute = None
        if compute is None or (out is not None and not _holds(out, a, b, c)):
            return original(keys, c, a, b, **options)

        def theirs() -> Any:
            return original(keys, c, a, b, **options)

        def ours(calls: TensorCalls) -> Any:
            made = calls.call(a, b, out, alpha)
            return made if beta == 0 else made.add_(c, alpha=beta)

        if within:
            added = (None, None, c, None, None) if c.dim() == 1 else (None, None, None, None, c)
            return compute(lambda call: call(a, b.t(), added), theirs, a)
        return compute(ours, theirs, a, added=True, twice=out is None)

    return gate


GATES = {
    "mm": _product,
    "mm.out": _product,
    "addmm": _sum,
    "addmm.out": _sum,
    "bmm": _stack,
    "bmm.out": _stack,
}


def _is_one(scalar: Any) -> bool:
    return isinstance(scalar, int | float) and scalar == 1


def _holds(out: Any, a: Any, b: Any, *others: Any) -> bool:
    """True if a kernel may write a product to an output as it is: alike, and apart."""
    return (
        out.shape == (a.shape[0], b.shape[1])
        and out.dtype is a.dtype
        and out.device == a.device
        and not out.requires_grad
        and lies_apart(out, a, b, *others)
    )


def _holds_stack(out: Any, a: Any, b: Any) -> bool:
    """The same of a stack, which is written without gaps."""
    return (
        out.shape == (*a.shape[:2], b.shape[2])
        and out.is_contiguous()
        and out.dtype is a.dtype
        and out.device == a.device
        and not out.requires_grad
        and lies_apart(out, a, b)
    )


def _adds(c: Any, a: Any, b: Any, alpha: Any, beta: Any) -> bool:
    """True if something can be added to a product as it is, scaled by real numbers."""
    shape = (a.shape[0], b.shape[1])
    sizes = zip(reversed(c.shape), reversed(shape), strict=False)
    return (
        c.dtype is a.dtype
        and c.device == a.device
        and c.dim() <= 2
        and all(size in (1, wanted) for size, wanted in sizes)
        and isinstance(alpha, int | float)
        and isinstance(beta, int | float)
    )


Accepts: TypeAlias = "Callable[[Problem], str | None]"

_CALLER = "torch switch"

DEVICES = ("cuda", "cpu")
"""Kinds of devices that kernels are for, as PyTorch calls them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Products that the switch may give to kernels; of those, kernels get what was measured.

    Attributes:
        shapes: rows, reduction and columns of products; None takes all.
        predicate: says it of a problem as well; None takes all.
        dtypes: names of element types; None takes all.
        rounded: whether float32 goes to kernels, which do not round it, where PyTorch is set to.
        devices: kinds of devices.
        accuracy: the loosest class that kernels may have, of products of a type that it is for;
            empty is the usual one.
    """

    shapes: frozenset[tuple[int, int, int]] | None = None
    predicate: Callable[[Problem], bool] | None = None
    dtypes: frozenset[str] | None = None
    rounded: bool = False
    devices: frozenset[str] = frozenset(["cuda"])
    accuracy: str = ""

    @classmethod
    def of(
        cls,
        shapes: Iterable[tuple[int, int, int]] | Callable[[Problem], bool] | None,
        dtypes: Iterable[Any] | None,
        *,
        rounded: bool,
        devices: Iterable[str],
        accuracy: str = "",
    ) -> Self:
        """A selection as users say it: shapes or a predicate, and dtypes by name or PyTorch's.

        Raises:
            InputError: a shape is not three sizes, or a dtype or a device none that kernels have,
                or there is no such accuracy class.
        """
        if accuracy:
            refuse_unknown(accuracy)
        predicate = shapes if callable(shapes) else None
        listed = None if shapes is None or callable(shapes) else frozenset(map(_sizes, shapes))
        names = None if dtypes is None else frozenset(map(_name, dtypes))
        kinds = (devices,) if isinstance(devices, str) else devices
        return cls(listed, predicate, names, rounded, frozenset(map(_device, kinds)), accuracy)

    def takes(self, problem: Problem) -> bool:
        """True if a problem is selected: of a stack, its products are."""
        return (
            (self.shapes is None or problem.product_sizes in self.shapes)
            and (self.dtypes is None or problem.dtype in self.dtypes)
            and (self.predicate is None or bool(self.predicate(problem)))
        )


def _sizes(shape: Any) -> tuple[int, int, int]:
    sizes = tuple(shape)
    if len(sizes) != 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(
            f"a shape must be three positive sizes (rows, reduction, columns), got {shape!r:.60}"
        )
    return sizes


def _device(kind: Any) -> str:
    if kind not in DEVICES:
        raise InputError(must_be("a kind of device", str(kind), list(DEVICES)))
    return str(kind)


def _name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(must_be("a dtype of kernels", name, list(DTYPES)))
    return name


def enable(
    shapes: Iterable[tuple[int, int, int]] | Callable[[Problem], bool] | None = None,
    dtypes: Iterable[Any] | None = None,
    *,
    rounded: bool = False,
    devices: Iterable[str] = ("cuda",),
    accuracy: str = "",
) -> None:
    """Have PyTorch's products computed by tuned kernels, until `disable`.

    Args:
        shapes: rows, reduction and columns of the products that are meant, or a function that
            says it of a problem; None means all. Of those, kernels get what was measured.
        dtypes: element types that are meant, PyTorch's or their names; None means all.
        rounded: whether float32 goes to kernels, which never round it, where PyTorch is set to
            round it to TF32 or bfloat16. If not, it is PyTorch's there.
        devices: kinds of devices that are meant: "cuda", "cpu". The way through the switch takes
            some 3 us of the host, which a small product on the CPU notices: that is for you to
            choose.
        accuracy: the loosest accuracy class that kernels may have, of products of a type that the
            class is for: "fp32-normwise" of float32, "fp64" of float64. Empty is the usual class
            of the type, which others have in any case.

    Raises:
        InputError: a shape, a dtype or an accuracy class is none.
        MissingDependencyError: PyTorch is older than 2.9.
    """
    selection = Selection.of(shapes, dtypes, rounded=rounded, devices=devices, accuracy=accuracy)
    _SWITCH.add(selection)
    _ENABLED.append(selection)


def disable() -> None:
    """Take back every `enable`; what `use_tuned` has on meanwhile stays on."""
    while _ENABLED:
        with contextlib.suppress(IndexError):  # another thread was faster
            _SWITCH.remove(_ENABLED.pop())


@contextlib.contextmanager
def use_tuned(
    shapes: Iterable[tuple[int, int, int]] | Callable[[Problem], bool] | None = None,
    dtypes: Iterable[Any] | None = None,
    *,
    rounded: bool = False,
    devices: Iterable[str] = ("cuda",),
    accuracy: str = "",
) -> Iterator[None]:
    """A context in which products of PyTorch's are tuned kernels', in all threads.

    Arguments and errors are those of `enable`. Where several are on, in one thread or in many,
    what any of them selects is served, in the class that the latest of them says.
    """
    selection = Selection.of(shapes, dtypes, rounded=rounded, devices=devices, accuracy=accuracy)
    _SWITCH.add(selection)
    try:
        yield
    finally:
        _SWITCH.remove(selection)


class _Served:
    """See `Keeper`: products on a device that are selected now."""

    def __init__(self, device: str) -> None:
        self.serves = False
        self._device = device
        self._accepts: Accepts | None = None
        self._accepts_rounded: Accepts | None = None

    def select(self, selections: Sequence[Selection]) -> None:
        """Serve what these select."""
        rounded = [selection for selection in selections if selection.rounded]
        self._accepts = _any_of(selections, self._device)
        self._accepts_rounded = _any_of(rounded, self._device)
        self.serves = self._accepts is not None

    def product(self, a: Any, b: Any) -> Compute | None:
        """Function that computes a product of plain tensors now; None lets PyTorch."""
        accepts = self._accepts
        if accepts is None or (found := product_of(a, b, _CALLER, accepts)) is None:
            return None
        if is_exact(a, found.accuracy):
            return found.compute
        log_product(
            _CALLER, None, "", "float32 is left to the library where it is set to round it"
        )
        accepts = self._accepts_rounded
        found = None if accepts is None else product_of(a, b, _CALLER, accepts)
        return None if found is None else found.by_kernel

    def sum(self, a: Any, b: Any, c: Any) -> Compute | None:
        """Function that computes ``a @ b + c`` of 16-bit tensors; None lets PyTorch."""
        accepts = self._accepts
        found = None if accepts is None else sum_of(a, b, c, _CALLER, accepts)
        return None if found is None else found.compute

    def stack(self, a: Any, b: Any) -> StackProduct | None:
        """The products of two stacks of plain tensors; None lets PyTorch."""
        accepts = self._accepts
        return None if accepts is None else product_of_stacks(a, b, _CALLER, accepts)


class _Switch:
    """Products that are selected now, in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selections: list[Selection] = []
        self._served = {device: _Served(device) for device in DEVICES}

    def add(self, selection: Selection) -> None:
        """Serve what is selected, too."""
        with self._lock:
            install({device: self._served[device] for device in selection.devices})
            self._change([*self._selections, selection])

    def remove(self, selection: Selection) -> None:
        """Serve it no more, unless others select it."""
        with self._lock:
            rest = list(self._selections)
            rest.remove(selection)
            self._change(rest)

    def _change(self, selections: list[Selection]) -> None:
        self._selections = selections
        for served in self._served.values():
            served.select(selections)


def _any_of(selections: Iterable[Selection], device: str) -> Accepts | None:
    """Union of the selections of a device; None where there is none."""
    there = tuple(one for one in selections if device in one.devices)
    return _accepting(there) if there else None


@session.cached(most=64)
def _accepting(selections: tuple[Selection, ...]) -> Accepts:
    """The same function for equal selections.

    Products are remembered by it, also when the switch is turned on again and again.
    """
    latest = selections[::-1]
    return lambda problem: next((one.accuracy for one in latest if one.takes(problem)), None)


_SWITCH = _Switch()
_ENABLED: list[Selection] = []
