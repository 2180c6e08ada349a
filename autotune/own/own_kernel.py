"""A kernel of one's own as a callable: tunes for the shapes it is called with, then loads."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from autotune.arrays.host import on_host
from autotune.core import session
from autotune.core.arguments import is_on
from autotune.core.dtypes import dtype_name
from autotune.core.errors import InputError, NotTunedError, OperandError, TuningFailedError
from autotune.core.file_lock import alone
from autotune.core.interrupt import Interrupt
from autotune.families.operation_file import OPERATION_FILE
from autotune.families.rendering import render
from autotune.operations.fields import positive
from autotune.operations.operation import Operation, Problem
from autotune.own.call_sizes import sizes_of_call
from autotune.own.definition import write_folder
from autotune.own.description import element_types
from autotune.own.trying import try_functions
from autotune.runtime.loading import load
from autotune.runtime.product_log import log_product, summary
from autotune.targets.families import catalog, find_operation
from autotune.targets.registry import LANGUAGES, make_target

if TYPE_CHECKING:
    from autotune.own.definition import Definition
    from autotune.serving.kernel import Kernel
    from autotune.tuning.tuner import TuneResult


_log = logging.getLogger(__name__)

VARIABLE = "AUTOTUNE_TUNE"
"""The environment variable that, set to 0, keeps every kernel from tuning at a call."""


class OwnKernel:
    """A kernel of one's own: ``kernel(*inputs, out=None, stream=None, **scalars)``.

    The first call with operands of some shapes and type loads what was tuned for them on this
    device, or tunes now and stores the winner; further calls look the kernel up in a dictionary.
    Any thread may call it: one tunes, the others wait. So do other processes.

    Args:
        definition: what it computes, and what is tuned.
        files: the files of its family.
        options: for `autotune.tune`, where it is called for the first time.
        may_tune: whether a call may tune.
        device: which one; None takes that of the operands.
        cache: the user's cache; None takes the default place.
    """

    def __init__(
        self,
        definition: Definition,
        files: Callable[[], Mapping[str, str]],
        *,
        options: Mapping[str, Any],
        may_tune: bool,
        device: int | str | None,
        cache: str | Path | None,
    ) -> None:
        self._definition = definition
        self._files = files
        self._options = dict(options)
        self._may_tune = may_tune
        self._device = device
        self._cache = cache
        self._kernels: dict[Any, Kernel] = {}
        self._lock = threading.RLock()
        own = [each.dtype for each in definition.operation.inputs]
        self._typed = own.index("") if "" in own else None
        said = definition.operation.solve(
            [(each.shape, None) for each in definition.operation.inputs], {}
        )
        self._unsaid = [each for each in definition.operation.sizes if each not in said]
        self.__name__ = self.__qualname__ = definition.name
        self.__doc__ = definition.operation.summary
        _ALL.add(self)

    def __repr__(self) -> str:
        return f"<autotune kernel {self.name} on {self.target}>"

    def __reduce__(self) -> str:
        """A decorated function is pickled by its name, as functions are."""
        if "__wrapped__" not in vars(self):
            raise InputError(
                f"kernel {self.name} has no function to be pickled by: make it in every process"
            )
        return self.__qualname__

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Compute; tune first where nothing was tuned for these shapes.

        Args:
            inputs: the operands that are not written, in the order of the definition.
            options: `out`, `stream` and scalars by name, as for `autotune.Kernel`, and sizes that
                are dimensions of outputs alone.

        Returns:
            The output.

        Raises:
            OperandError: an operand does not fit; the message names it and what it takes.
            NotTunedError: nothing is tuned for these shapes, and tuning is forbidden.
            TuningFailedError: tuning found no kernel that is right.
        """
        sizes = {}
        if self._unsaid:
            named = [name for name in self._unsaid if name in options]
            sizes = {name: positive(name, options.pop(name)) for name in named}
        kernel = self._kernels.get(_key(inputs, options.get("out"), self._typed, sizes))
        if kernel is None:
            kernel = self._first(inputs, options, sizes)
        return kernel(*inputs, **options)

    @property
    def name(self) -> str:
        """The name, on the command line too."""
        return self._definition.name

    @property
    def target(self) -> str:
        """Where it runs."""
        return self._definition.target

    @functools.cached_property
    def folder(self) -> Path:
        """The folder with its family, for ``--families`` and `extra_families`; written if need be.

        Raises:
            CacheError: it cannot be written.
            InputError: the source uses what cannot be taken along.
        """
        return write_folder(self.name, self._files(), self._cache)

    @functools.cached_property
    def operation(self) -> Operation:
        """The operation, as its folder says it."""
        return find_operation(self.name, [self.folder], self.target)

    def problem(self, **fields: Any) -> Any:
        """A problem of it: sizes by name, and dtype, accuracy or threads.

        Raises:
            ProblemError: a size is missing, or a field is unknown or out of range.
        """
        fields.setdefault("dtype", self._definition.dtypes[0])
        return self.operation.problem(**fields)

    def tune(self, *given: Any, **fields: Any) -> TuneResult:
        """Tune for some sizes now.

        Args:
            given: a problem, or the operands of a call, which the kernel is then timed on; none
                takes `fields`.
            fields: those of a problem, and options of `autotune.tune`, as in
                ``gemv.tune(M=4096, N=4096, timeout=30)``.

        Raises:
            TuningFailedError: no candidate compiled, ran and was right.
            OperandError: operands do not fit.
            InputError: something cannot be used.
        """
        from autotune.tuning.tuner import tune  # late: a program that only loads does not search

        options = {**self._options, "device": self._device}
        known = {*self.operation.sizes, "dtype", "out_dtype", "accuracy", "threads"}
        asked = {key: fields.pop(key) for key in [*fields] if key in known}
        if given and not isinstance(given[0], Problem):
            said = {name: asked[name] for name in self.operation.sizes if name in asked}
            asked |= sizes_of_call(self.operation, given, None, said)
            asked["dtype"] = self._dtype(given)
            named = zip(self.operation.inputs, given, strict=True)
            arrays = {operand.name: on_host(array) for operand, array in named}
            with tempfile.TemporaryDirectory() as folder:
                np.savez(Path(folder) / "operands.npz", allow_pickle=False, **arrays)
                held = replace(self.operation, given=str(Path(folder) / "operands.npz"))
                return self.tune(held.problem(**asked), **fields)
        problem = given[0] if given else self.problem(**asked)
        try_functions(problem, self._definition.functions)
        result = tune(
            problem,
            target=self.target,
            cache=self._cache,
            extra_families=[self.folder],
            **{**options, **fields},
        )
        with self._lock:
            self._kernels.clear()
        return result

    def load(self, problem: Any = None, *, match: str = "exact", **fields: Any) -> Kernel:
        """Load the tuned kernel for some sizes from the cache.

        Args:
            problem: what for; None takes `fields`.
            match: as for `autotune.load`.
            fields: those of a problem.

        Raises:
            NotTunedError: nothing good enough; the message names the command that would tune it.
        """
        return load(
            self.problem(**fields) if problem is None else problem,
            self.target,
            match=match,
            device=self._device,
            cache=self._cache,
            extra_families=[self.folder],
        )

    def emit(self, dtype: Any = None, **values: Any) -> str:
        """The source that is generated for some values of the parameters.

        Args:
            dtype: element type; None takes the first that the kernel is for.
            values: of parameters; those left out have their defaults, or their first values.

        Raises:
            SpaceError: a value is none of a parameter's.
        """
        families = catalog(self.target, self.name, [self.folder])
        family = families[self.name]
        chosen = {
            each.name: each.values[0] if each.default is None else each.default
            for each in family.parameters
        }
        wanted = self._definition.dtypes[0] if dtype is None else _dtype_of(dtype)
        return render(family, chosen | self._definition.spelled(values), dtype=wanted).text

    def torch_operator(self) -> Any:
        """The kernel as an operator of PyTorch; see `autotune.own.torch_operator`."""
        from autotune.own.torch_operator import torch_operator

        return torch_operator(self, self.operation, self.folder.name)

    def _first(
        self, inputs: tuple[Any, ...], options: Mapping[str, Any], said: Mapping[str, int]
    ) -> Kernel:
        """The kernel for operands of these shapes, of which there was none in this process."""
        out = options.get("out")
        sizes = sizes_of_call(self._definition.operation, inputs, out, said)
        problem = self.problem(**sizes, dtype=self._dtype(inputs))
        device = self._device_of(inputs[0])
        make_target(self.target).checker(problem)(*inputs, **options)
        key = _key(inputs, out, self._typed, said)
        with self._lock:
            kernel = self._kernels.get(key)
            if kernel is None:
                kernel = self._kernels[key] = self._made(problem, device)
        return kernel

    def _dtype(self, inputs: Sequence[Any]) -> str:
        """The element type that operands of a call have in common.

        Raises:
            OperandError: the kernel is not for it.
        """
        (dtype, *_) = self._definition.dtypes
        if self._typed is not None:
            dtype = _dtype_of(inputs[self._typed].dtype)
        if dtype not in self._definition.dtypes:
            known = element_types(self.target)
            raise OperandError(
                f"{self.name} takes {' or '.join(self._definition.dtypes)}, got {dtype}: convert "
                + (
                    "the operands, or name the type in dtypes"
                    if dtype in known
                    else f"the operands (elements may be {', '.join(known)})"
                )
            )
        return dtype

    def _device_of(self, operand: Any) -> int | str | None:
        """The device of an operand, where it says so."""
        if self._device is not None or not LANGUAGES[self.target].launched:
            return self._device
        return _ordinal(getattr(operand, "device", None))

    def _made(self, problem: Any, device: int | str | None) -> Kernel:
        """The tuned kernel of a problem; tuned now if there is none, by one process at a time."""
        kernel = self._found(problem, device)
        if kernel is None:
            with alone(self.folder / OPERATION_FILE):
                kernel = self._found(problem, device) or self._tuned(problem, device)
        log_product(self.name, problem, self.target, summary(kernel))
        return kernel

    def _found(self, problem: Any, device: int | str | None) -> Kernel | None:
        """The kernel in the cache; None where it is to be tuned."""
        try:
            return load(
                problem,
                self.target,
                device=device,
                cache=self._cache,
                extra_families=[self.folder],
            )
        except NotTunedError as error:
            reason = str(error)
        if self._may_tune and is_on(VARIABLE):
            return None
        raise NotTunedError(f"{reason}; tuning at a call is forbidden here")

    def _tuned(self, problem: Any, device: int | str | None) -> Kernel:
        log_product(self.name, problem, self.target, "not tuned yet: tuning now")
        what = f"tuning {self.name} for {problem.label}"
        result, failure = None, None
        with Interrupt() as asked, self._shown(problem) as shown:
            try:
                result = self.tune(problem, device=device, **shown)
            except TuningFailedError as error:
                failure = error
        if asked.requested:
            kept = "the best so far is stored, and the next call takes it"
            raise KeyboardInterrupt(
                f"{what} was stopped: {'nothing was found yet' if result is None else kept}"
            )
        if result is None:
            raise TuningFailedError(f"{self.name}: {failure}")
        return result.kernel

    @contextlib.contextmanager
    def _shown(self, problem: Any) -> Iterator[dict[str, Any]]:
        """Tell that a call tunes: on a terminal with a line of its progress, else in the log.

        Yields:
            The option of `autotune.tune` that shows the progress; none where the user has one.
        """
        timeout = self._options["timeout"]
        title = f"{self.name}: tuning for {problem.label}, up to {timeout:g} s"
        _log.info("%s", title)
        if self._options.get("progress") is not None or not _is_terminal(sys.stderr):
            yield {}
            return
        from autotune.tuning.progress import ProgressLine  # late, as what it shows

        line = ProgressLine(title)
        try:
            yield {"progress": line}
        finally:
            line.end()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def _key(inputs: tuple[Any, ...], out: Any, typed: int | None, sizes: Mapping[str, int]) -> Any:
    """The key of operands that one kernel serves: type, shapes, device.

    Args:
        inputs: the inputs.
        out: the output, or several.
        typed: which input has the type that operands have in common; None where none has.
        sizes: those that the call says by name.
    """
    try:
        device = getattr(inputs[0], "device", None)
        if out is not None:
            several = isinstance(out, (list, tuple))
            out = tuple([each.shape for each in out]) if several else out.shape
        return (
            None if typed is None else inputs[typed].dtype,
            device if device == "cpu" else _ordinal(device),
            tuple([each.shape for each in inputs]),
            out,
            tuple(sizes.items()) if sizes else None,
        )
    except (AttributeError, IndexError, TypeError):
        return None


def _ordinal(device: Any) -> int | None:
    """The number of a device of PyTorch or CuPy; None where it has none."""
    number = getattr(device, "index", None)
    if not isinstance(number, int):  # a text's is a function
        number = getattr(device, "id", None)
    return number if isinstance(number, int) else None


def _dtype_of(dtype: Any) -> str:
    """The name of a dtype of any library: ``torch.float32`` is float32."""
    text = str(dtype if isinstance(dtype, str) else getattr(dtype, "name", dtype))
    name = dtype_name(getattr(dtype, "__name__", text) if isinstance(dtype, type) else text)
    return name.rpartition(".")[2]


_ALL: weakref.WeakSet[OwnKernel] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Another thread of the parent may have held a lock, and there is none to release it here."""
    for each in list(_ALL):
        each._lock = threading.RLock()


session.at_fork(child=_after_fork_in_child)
