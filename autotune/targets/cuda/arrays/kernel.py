"""A CUDA kernel bound to a problem, called on arrays of any library on the caller's stream."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core.dtypes import DTYPES
from autotune.core.errors import OperandError
from autotune.targets.cuda.arrays.libraries import library_of, stream_handle
from autotune.targets.cuda.arrays.operands import check_place, overlap

if TYPE_CHECKING:
    from autotune.operations.problem import Gemm
    from autotune.targets.cuda.arrays.libraries import Place, Reader
    from autotune.targets.cuda.arrays.operands import DeviceArray

Launch: TypeAlias = Callable[..., None]
"""``launch(a, lda, b, ldb, c, ldc, alpha, beta, stream)``: addresses, leading dimensions in
elements, and a stream's handle, all as integers."""


class DeviceKernel:
    """``kernel(a, b, out, alpha, beta, stream)``: checks operands and enqueues; never waits.

    May be called from several threads, and with operands on any device like the one it is for.

    Args:
        problem: what it computes.
        load_on: loads the kernel on a device, by the driver's number, and gives its launch.
            Raises OperandError for a device that the kernel is not for.
    """

    def __init__(self, problem: Gemm, load_on: Callable[[int], Launch]) -> None:
        self._a_shape = problem.a_shape
        self._b_shape = problem.b_shape
        self._c_shape = problem.c_shape
        self._dtype = problem.dtype
        self._itemsize = problem.itemsize
        self._scalars = DTYPES[problem.dtype].accumulation
        self._out_dtype = problem.result_dtype
        self._out_itemsize = DTYPES[problem.result_dtype].itemsize
        # For the end of an operand: the last row begins so many rows after the first.
        self._a_before_last, self._a_columns = problem.a_shape[0] - 1, problem.a_shape[1]
        self._b_before_last, self._b_columns = problem.b_shape[0] - 1, problem.b_shape[1]
        self._c_before_last, self._c_columns = problem.c_shape[0] - 1, problem.c_shape[1]
        self._readers: dict[type, tuple[Reader, Reader, Reader]] = {}
        self._load_on = load_on
        self._launches: dict[int, Launch] = {}
        self._lock = threading.Lock()
        self._retained: Any = None

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """See `autotune.targets.Kernel`.

        The usual call has plain operands of one library, on its current stream; it costs little.
        """
        kind = a.__class__
        if stream is None and b.__class__ is kind:
            read_a, read_b, read_c = self._readers.get(kind) or self._read(kind, a)
            at_a = read_a(a)
            at_b = read_b(b)
            if at_a is not None and at_b is not None:
                library = library_of(a)
                if out is None:
                    _check_beta(beta)
                    out = library.empty(a, self._c_shape, self._out_dtype, None)
                at_c = read_c(out) if out.__class__ is kind else None
                if at_c is not None and at_a[2] == at_b[2] == at_c[2]:
                    self._enqueue(at_a, at_b, at_c, alpha, beta, library.current_stream(a))
                    return out
        return self._call_carefully(a, b, out, alpha, beta, stream)

    def _read(self, kind: type, array: Any) -> tuple[Reader, Reader, Reader]:
        """What reads plain operands of one type."""
        library = library_of(array)
        a, b = (library.reader(shape, self._dtype) for shape in (self._a_shape, self._b_shape))
        c = library.reader(self._c_shape, self._out_dtype)
        self._readers[kind] = a, b, c
        return a, b, c

    def _call_carefully(
        self, a: Any, b: Any, out: Any, alpha: float, beta: float, stream: Any
    ) -> Any:
        """Any operands there may be: of several libraries, with work on streams of their own."""
        library = library_of(a)
        handle = library.current_stream(a) if stream is None else stream_handle(stream)
        described: list[tuple[Any, DeviceArray]] = []

        def look(name: str, array: Any, shape: tuple[int, int]) -> Place:
            found = library_of(array).describe(name, array, handle)
            described.append((array, found))
            written = name == "out"
            dtype = self._out_dtype if written else self._dtype
            return *check_place(name, found, shape, dtype, written=written), found.device

        at_a = look("a", a, self._a_shape)
        at_b = look("b", b, self._b_shape)
        if out is None:
            _check_beta(beta)
            own = None if stream is None else handle
            out = library.empty(a, self._c_shape, self._out_dtype, own)
        at_c = look("out", out, self._c_shape)
        if not at_a[2] == at_b[2] == at_c[2]:
            raise OperandError(
                "operands must be on one device, got a, b and out on devices "
                f"{at_a[2]}, {at_b[2]} and {at_c[2]}: move them together"
            )
        device = at_a[2]
        others = self._order(described, handle, device, explicit=stream is not None)
        self._enqueue(at_a, at_b, at_c, alpha, beta, handle)
        self._follow(described, others, handle, device)
        return out

    def _order(
        self,
        described: list[tuple[Any, DeviceArray]],
        handle: int,
        device: int,
        *,
        explicit: bool,
    ) -> list[int]:
        """Let the kernel wait for work on the operands' own streams.

        Where the caller gives the stream, the work of libraries with a current stream is the
        caller's to order, as everywhere; their memory is protected.

        Returns:
            The streams that the operands belong to, where those are not the kernel's.
        """
        others: list[int] = []
        for array, found in described:
            library = library_of(array)
            own = library.current_stream(array) if library.ordered else found.stream
            if own is None or own == handle:
                continue
            if explicit and library.ordered:
                library.lend(array, handle)
            elif own not in others:
                from autotune.targets.cuda.driver.streams import wait

                wait(device, handle, own)
                others.append(own)
        return others

    def _follow(
        self,
        described: list[tuple[Any, DeviceArray]],
        others: list[int],
        handle: int,
        device: int,
    ) -> None:
        """Let the operands' own streams wait for the kernel, and keep what must live till then."""
        if others:
            from autotune.targets.cuda.driver.streams import wait

            for other in others:
                wait(device, other, handle)
        kept = [pair for pair in described if not library_of(pair[0]).ordered]
        if kept:
            self._retain(device, handle, kept)

    def _retain(self, device: int, handle: int, kept: object) -> None:
        from autotune.targets.cuda.driver.streams import Retained

        with self._lock:
            self._retained = self._retained or Retained()
        self._retained.hold(device, handle, kept)

    def _enqueue(
        self, at_a: Place, at_b: Place, at_c: Place, alpha: float, beta: float, stream: int
    ) -> None:
        a, lda, device = at_a
        b, ldb, _ = at_b
        c, ldc, _ = at_c
        # Where the address ranges meet, a closer look tells whether the elements do.
        itemsize = self._itemsize
        end = c + (self._c_before_last * ldc + self._c_columns) * self._out_itemsize
        if end > a and a + (self._a_before_last * lda + self._a_columns) * itemsize > c:
            self._refuse_overlap("a", at_c, at_a, self._a_shape)
        if end > b and b + (self._b_before_last * ldb + self._b_columns) * itemsize > c:
            self._refuse_overlap("b", at_c, at_b, self._b_shape)
        launch = self._launches.get(device) or self._load(device)
        try:
            launch(a, lda, b, ldb, c, ldc, alpha, beta, stream)
        except (struct.error, OverflowError) as error:
            raise OperandError(
                f"alpha and beta must be numbers that {self._scalars} holds, and rows less than "
                f"2^31 elements apart, got {alpha!r:.40} and {beta!r:.40}: {error}"
            ) from error

    def _refuse_overlap(self, name: str, at_c: Place, at_x: Place, shape: tuple[int, int]) -> None:
        if self._out_itemsize != self._itemsize or overlap(
            at_c, self._c_shape, at_x, shape, self._itemsize
        ):
            raise OperandError(f"out overlaps {name} in memory: pass a separate array as out")

    def _load(self, device: int) -> Launch:
        with self._lock:
            if device not in self._launches:
                self._launches[device] = self._load_on(device)
            return self._launches[device]


def _check_beta(beta: float) -> None:
    if beta != 0:
        raise OperandError(f"beta = {beta} scales what out holds: pass out=, or use beta = 0")
