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
import itertools
import operator
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import torch

from autotune.arrays.watching import PLAIN, sees_functions
from autotune.core import session
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.core.suggestions import must_be
from autotune.operations.accuracy import refuse_unknown
from autotune.runtime.product_log import log_product
from autotune.torch.calls import in_class, is_exact, product_of
from autotune.torch.compiled import Call, are_ready, compile_gates, gates_of
from autotune.torch.gates import Compute, are_installed, install
from autotune.torch.layers import sum_of
from autotune.torch.stacks import product_of_stacks

if TYPE_CHECKING:
    from autotune.operations.problem import Problem
    from autotune.torch.calls import TensorProduct
    from autotune.torch.compiled import CompiledGates

Accepts: TypeAlias = "Callable[[Problem], str | None]"

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
        devices: str | Iterable[str],
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
        listed = None
        if shapes is not None and predicate is None:
            listed = frozenset(map(_sizes, _each("shapes", shapes)))
        names = None if dtypes is None else frozenset(map(_name, _each("dtypes", dtypes)))
        kinds = frozenset(map(_device, _each("devices", devices)))
        return cls(listed, predicate, names, rounded, kinds, accuracy)

    def takes(self, problem: Problem) -> bool:
        """True if a problem is selected: of a stack, its products are."""
        return (
            (self.shapes is None or problem.product_sizes in self.shapes)
            and (self.dtypes is None or problem.dtype in self.dtypes)
            and (self.predicate is None or bool(self.predicate(problem)))
        )


def _each(name: str, given: Any) -> Iterable[Any]:
    """The values of an argument, one by one; one alone needs no list."""
    if isinstance(given, str | torch.dtype | torch.device):
        return (given,)
    if not isinstance(given, Iterable):
        raise InputError(f"{name} must be a list, got {given!r:.60}")
    return given


def _sizes(shape: Any) -> tuple[int, int, int]:
    sizes = tuple(shape) if isinstance(shape, Iterable) else ()
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
    devices: str | Iterable[str] = ("cuda",),
    accuracy: str = "",
) -> None:
    """Have PyTorch's products computed by tuned kernels, until `disable`.

    Args:
        shapes: rows, reduction and columns of the products that are meant, or a function that
            says it of a problem; None means all. Of those, kernels get what was measured.
        dtypes: element types that are meant, PyTorch's or their names; None means all.
        rounded: whether float32 goes to kernels, which never round it, where PyTorch is set to
            round it to TF32 or bfloat16. If not, it is PyTorch's there.
        devices: kinds of devices that are meant: "cuda", "cpu". On the CPU kernels are called
            from Python, which takes some 3 us that a small product notices: that is for you to
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


def use_tuned(
    shapes: Iterable[tuple[int, int, int]] | Callable[[Problem], bool] | None = None,
    dtypes: Iterable[Any] | None = None,
    *,
    rounded: bool = False,
    devices: str | Iterable[str] = ("cuda",),
    accuracy: str = "",
) -> Tuned:
    """A context in which products of PyTorch's are tuned kernels', in all threads.

    Arguments and errors are those of `enable`. Where several are on, in one thread or in many,
    what any of them selects is served, in the class that the latest of them says.
    """
    return Tuned(Selection.of(shapes, dtypes, rounded=rounded, devices=devices, accuracy=accuracy))


class Tuned(contextlib.ContextDecorator):
    """See `use_tuned`: a context, or a decorator of functions."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def __enter__(self) -> None:
        _SWITCH.add(self._selection)

    def __exit__(self, *_: object) -> None:
        _SWITCH.remove(self._selection)


class _Selected(NamedTuple):
    """Products on a device that are selected now.

    Attributes:
        accepts: see `autotune.runtime.choosing.serve`.
        rounded: the same of float32 where PyTorch is set to round it; None accepts nothing.
        number: for compiled gates.
        caller: for the log.
    """

    accepts: Accepts | None
    rounded: Accepts | None
    number: int
    caller: str = "torch switch"


class _Served:
    """See `Keeper`: products on a device that are selected now."""

    def __init__(self, device: str) -> None:
        self.serves = False
        self._device = device
        self._selected: _Selected | None = None
        self._compiled: CompiledGates | None = None

    def select(self, selected: _Selected | None) -> None:
        """Serve what is selected."""
        self._selected = selected
        # Compiled gates pass on what they do not know alone.
        self.serves = self._select() is not None or selected is not None

    def _now(self) -> _Selected | None:
        """Products that are selected in this thread, which an operator's call may be in."""
        owner = self._compiled.owner() if self._compiled is not None else 0
        return _OWN_BY_NUMBER[owner] if owner else self._selected

    def product(self, a: Any, b: Any, added: Any = None) -> Compute | None:
        """Function that computes a product of plain tensors now; None lets PyTorch."""
        selected = self._now()
        if selected is None:
            return None
        is_sum = added is not None
        operands = (a, b, added) if is_sum else (a, b)
        call = self._call("addmm" if is_sum else "mm", selected, *operands)
        found = product_of(a, b, selected.caller, selected.accepts)
        if found is None or (is_sum and found.leaves_sums):
            self._leave(call)
            return None
        if is_exact(a, found.accuracy):
            strict = a.dtype is torch.float32 and found.accuracy != "tf32"
            self._take(call, found, strict=strict, afterwards=is_sum)
            return found.compute
        left = "float32 is left to the library where it is set to round it"
        log_product(selected.caller, None, "", left)
        rounded = selected.rounded
        found = None if rounded is None else product_of(a, b, selected.caller, rounded)
        return None if found is None else found.by_kernel

    def sum(self, a: Any, b: Any, c: Any) -> Compute | None:
        """Function that computes ``a @ b + c`` of 16-bit tensors; None lets PyTorch."""
        selected = self._now()
        if selected is None:
            return None
        call = self._call("addmm", selected, a, b, c)
        found = sum_of(a, b, c, selected.caller, selected.accepts)
        if found is None:
            self._leave(call)
            return None
        self._take(call, found)
        return found.compute

    def stack(self, a: Any, b: Any) -> Compute | None:
        """Function that computes products of two plain stacks now; None lets PyTorch."""
        selected = self._now()
        if selected is None:
            return None
        call = self._call("bmm", selected, a, b)
        found = product_of_stacks(a, b, selected.caller, selected.accepts)
        if found is None:
            self._leave(call)
            return None
        self._take(call, found)
        return found.compute

    def _select(self) -> CompiledGates | None:
        """The compiled gates; what is selected goes through them from now on."""
        gates, selected = self._compiled or gates_of(self._device), self._selected
        if gates is not None:
            self._compiled = gates
            gates.select(0 if selected is None else selected.number)
        return gates

    def _call(self, operation: str, selected: _Selected, *tensors: Any) -> Call | None:
        """A call of which something is going to be decided, for compiled gates."""
        gates = self._compiled or self._select()
        if gates is None:
            return None
        return Call(gates.state, selected.number, operation, tensors)

    def _leave(self, call: Call | None) -> None:
        """Have compiled gates leave such calls to PyTorch."""
        if self._compiled is not None and call is not None:
            self._compiled.pass_on(call)

    def _take(self, call: Call | None, found: TensorProduct, **how: bool) -> None:
        """Have them do what a kernel computes; they are told once in each state of theirs."""
        if self._compiled is None or call is None:
            return
        state, number, operation, (_, _, *added) = call
        told = state, number, operation, *(each.shape for each in added)
        winner = found.winner(added=how.get("afterwards", False))
        if winner is not None and not winner.is_passing and found.told != told:
            found.told = told
            launch = found.recorded(winner)
            if launch is not None:
                self._compiled.take(call, launch, **how)


class _Switch:
    """Products that are selected now, in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selections: list[Selection] = []
        self._served = {device: _Served(device) for device in DEVICES}

    def add(self, selection: Selection) -> None:
        """Serve what is selected, too."""
        with self._lock:
            if not are_installed(selection.devices):
                for device in selection.devices:
                    compile_gates(device)
                self._install(selection.devices)
            self._selections.append(selection)
            self._change(selection.devices)

    def gates(self, device: str) -> CompiledGates | None:
        """The compiled gates of a device, once they are: before that nothing is installed."""
        compile_gates(device)
        if not are_ready(device):
            return None
        with self._lock:
            self._install(frozenset([device]))
            self._change([device])
            return gates_of(device)

    def _install(self, devices: frozenset[str]) -> None:
        install({device: self._served[device] for device in devices})

    def remove(self, selection: Selection) -> None:
        """Serve it no more, unless others select it."""
        with self._lock:
            self._selections.remove(selection)
            self._change(selection.devices)

    def _change(self, devices: Iterable[str]) -> None:
        selections = tuple(self._selections)
        for device in devices:
            self._served[device].select(_selected(selections, device) if selections else None)


@session.cached(most=64)
def _selected(selections: tuple[Selection, ...], device: str) -> _Selected | None:
    """The union of the selections of a device; None where there is none.

    It is the same for equal ones: products are remembered by it, also when the switch is turned
    on again and again.
    """
    there = [one for one in selections if device in one.devices]
    if not there:
        return None
    rounded = [one for one in there if one.rounded]
    return _Selected(_any_of(there), _any_of(rounded) if rounded else None, next(_NUMBERS))


_NUMBERS = itertools.count(1)


def _any_of(selections: list[Selection]) -> Accepts:
    latest = selections[::-1]
    return lambda problem: next((one.accuracy for one in latest if one.takes(problem)), None)


_SWITCH = _Switch()
_ENABLED: list[Selection] = []

Gates: TypeAlias = "tuple[Callable[[int], int], Callable[[], object], int]"
"""The ways of an operator's calls into compiled gates and out of them, and their number there; see
`CompiledGates`."""

_OWN: dict[tuple[str, str], Gates] = {}
_OWN_BY_NUMBER: dict[int, _Selected] = {}


def by_gates(
    caller: str, accuracy: str, function: Callable[..., Any], a: Any, b: Any, c: Any = None
) -> Any:
    """An operator's call by a function of PyTorch's whose products pass compiled gates.

    That is for tensors of PyTorch's own classes of which no gradients are wanted, where nobody
    sees what is called: what else there is to a tensor, PyTorch's products, which gates lie below,
    know.

    Args:
        caller: the operator.
        accuracy: the class that it is to have; empty is the usual one.
        function: of PyTorch's.
        a: A.
        b: B.
        c: what is added, or None.

    Returns:
        The result, or None where the call cannot pass gates.
    """
    if type(a) not in PLAIN or type(b) not in PLAIN or not (c is None or type(c) in PLAIN):
        return None
    wanted = a.requires_grad or b.requires_grad or (c is not None and c.requires_grad)
    if not _is_on_gpu(a) or (wanted and torch.is_grad_enabled()):
        return None
    gates = _OWN.get((caller, accuracy)) or _find_own(caller, accuracy)
    if gates is None:
        return None
    enter, leave, number = gates
    modes = enter(number)
    if not modes:
        return None
    try:
        if modes > 1 and sees_functions():
            return None
        return function(a, b) if c is None else function(a, b, c)
    finally:
        leave()


_is_on_gpu = operator.attrgetter("is_cuda")
"""In the memory of the host, kernels are Python's to call."""


def _find_own(caller: str, accuracy: str) -> Gates | None:
    gates = _SWITCH.gates("cuda")
    if gates is None:
        return None
    accepts = in_class(accuracy) if accuracy else None
    selected = _Selected(accepts, None, next(_NUMBERS), caller)
    _OWN_BY_NUMBER[selected.number] = selected
    own = gates.enter, gates.leave, selected.number
    return _OWN.setdefault((caller, accuracy), own)
