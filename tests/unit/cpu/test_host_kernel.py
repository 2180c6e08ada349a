"""Calls of CPU kernels: compiled checks and careful ones take and refuse the same operands."""

from __future__ import annotations

import fractions
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matmul_cases import NO_NUMBERS, NOT_REAL, TOO_LARGE
from suspect_family import suspect, write_suspects

from autotune.core.errors import OperandError
from autotune.cpu import CpuKernel, CpuProgram, load_kernel
from autotune.cpu import direct as direct_module
from autotune.cpu.call import HostKernel, HostProduct, numpy_kernel
from autotune.cpu.direct import direct_call, write_call
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from autotune.families.family import KernelFamily

PROBLEM = Gemm(4, 5, 6)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> KernelFamily:
    return write_suspects(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> ProgramCache:
    return ProgramCache(tmp_path_factory.mktemp("programs"))


class Loader:
    """Kernels for problems, called straight from arrays or never so."""

    def __init__(self, family: KernelFamily, programs: ProgramCache) -> None:
        self.family = family
        self.programs = programs

    def raw(self, problem: Gemm = PROBLEM, threads: int = 1) -> CpuKernel:
        configuration = suspect(threads=threads).configuration
        return load_kernel(self.family, configuration, problem, self.programs)

    def fast(self, problem: Gemm = PROBLEM, threads: int = 1) -> HostProduct:
        """A kernel that is carried out by the direct call, or fails the test."""
        raw = self.raw(problem, threads)
        direct = direct_call(raw, problem, self.programs)
        assert direct is not None
        return HostProduct(problem, unexpected, direct)

    def both(self, problem: Gemm) -> tuple[HostProduct, HostProduct]:
        """The kernel as it is loaded, and one that makes no direct calls."""
        raw = self.raw(problem)
        return (
            HostProduct(problem, raw, direct_call(raw, problem, self.programs)),
            HostProduct(problem, raw),
        )


@pytest.fixture(scope="module")
def loader(family: KernelFamily, programs: ProgramCache) -> Loader:
    return Loader(family, programs)


def unexpected(*operands: object) -> None:
    raise AssertionError("not called directly")


def operands(problem: Gemm, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    a, b, c = (
        rng.uniform(-1, 1, shape).astype(problem.dtype)
        for shape in (problem.a_shape, problem.b_shape, problem.c_shape)
    )
    return a, b, c


# --- what the usual call takes ---


def padded(array: NDArray[Any]) -> NDArray[Any]:
    wide = np.zeros((array.shape[0], array.shape[1] + 3), array.dtype)
    wide[:, 1:-2] = array
    return wide[:, 1:-2]


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array = array.copy()
    array.flags.writeable = False
    return array


def mapped(array: NDArray[Any], folder: Path) -> NDArray[Any]:
    place = np.memmap(folder / "operand", array.dtype, "w+", shape=array.shape)
    place[...] = array
    return place


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("arrange", [np.copy, padded, read_only], ids=lambda each: each.__name__)
def test_plain_operands_are_called_directly(
    arrange: Callable[..., NDArray[Any]], threads: int, dtype: str, loader: Loader
) -> None:
    problem = Gemm(4, 5, 6, dtype=dtype)
    a, b, c = operands(problem)
    kernel = loader.fast(problem, threads)
    product = a.astype(float) @ b
    np.testing.assert_allclose(kernel(arrange(a), arrange(b)), product, rtol=1e-5, atol=1e-6)
    out = c.copy()
    assert kernel(arrange(a), arrange(b), out, 2, -1) is out
    np.testing.assert_allclose(out, 2 * product - c, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 1), (5, 1, 1), (1, 1, 5)])
def test_strides_along_a_size_of_one_do_not_matter(
    shape: tuple[int, int, int], loader: Loader
) -> None:
    m, n, k = shape
    kernel = loader.fast(Gemm(m, n, k))
    a = np.ones((n, m), "f4").T if 1 in (m, n) else np.ones((m, n), "f4")
    b = np.ones((k, n), "f4").T if 1 in (n, k) else np.ones((n, k), "f4")
    assert (kernel(a, b) == n).all()


def test_maps_of_files_are_called_carefully(loader: Loader, tmp_path: Path) -> None:
    """They are of a subclass, whose memory the direct call does not look at."""
    a, b, _ = operands(PROBLEM)
    kernel, _ = loader.both(PROBLEM)
    out = kernel(mapped(a, tmp_path), b)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "scalar",
    [2, True, np.float32(2), 2.0, np.float64(2)],
)
def test_scalars_of_the_usual_kinds_are_called_directly(scalar: Any, loader: Loader) -> None:
    a, b, c = operands(PROBLEM)
    expected = float(scalar) * (a.astype(float) @ b + c)
    np.testing.assert_allclose(
        loader.fast()(a, b, c, scalar, scalar), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "scalar", [np.float16(2), np.int8(2), np.longdouble(2), fractions.Fraction(2), np.array(2.0)]
)
def test_scalars_of_any_other_kind_are_what_they_stand_for(scalar: Any, loader: Loader) -> None:
    a, b, c = operands(PROBLEM)
    expected = float(scalar) * (a.astype(float) @ b + c)
    kernel, _ = loader.both(PROBLEM)
    np.testing.assert_allclose(kernel(a, b, c, scalar, scalar), expected, rtol=1e-5, atol=1e-6)


def test_several_threads_may_call_at_once(loader: Loader) -> None:
    a, b, _ = operands(PROBLEM)
    kernel = loader.fast()
    wrong: list[object] = []

    def use() -> None:
        for _ in range(200):
            if not np.allclose(kernel(a, b), a @ b, rtol=1e-5, atol=1e-6):
                wrong.append(1)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- the same operands are taken and refused, with the same words ---


def unaligned(array: NDArray[Any]) -> NDArray[Any]:
    place = np.zeros(array.nbytes + 1, "u1")[1:].view(array.dtype).reshape(array.shape)
    place[...] = array
    return place


ARRANGEMENTS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "contiguous": np.copy,
    "padded": padded,
    "read-only": read_only,
    "column-major": np.asfortranarray,
    "upside down": lambda array: array[::-1].copy()[::-1],
    "mirrored": lambda array: array[:, ::-1].copy()[:, ::-1],
    "every other column": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "broadcast": lambda array: np.broadcast_to(array[:1], array.shape),
    "unaligned": unaligned,
    "matrix": lambda array: array.view(np.matrix),
    "masked": np.ma.masked_array,
    "foreign byte order": lambda array: array.astype(array.dtype.newbyteorder()),
    "double": lambda array: array.astype("f8"),
    "single": lambda array: array.astype("f4"),
    "half": lambda array: array.astype("f2"),
    "integers": lambda array: array.astype("i4"),
    "complex": lambda array: array.astype("c8"),
    "objects": lambda array: array.astype(object),
    "transposed": lambda array: array.T.copy(),
    "flat": np.ravel,
    "stacked": lambda array: array[None],
    "one row more": lambda array: np.concatenate([array, array[:1]]),
    "one column less": lambda array: array[:, 1:],
    "list": np.ndarray.tolist,
    "number": lambda array: 1.0,
    "none": lambda array: None,
    "bytes": np.ndarray.tobytes,
}
SIZES = st.sampled_from([1, 2, 4, 5])
KINDS = st.sampled_from(["contiguous"] * 12 + list(ARRANGEMENTS))


def outcome(kernel: HostProduct, arguments: tuple[Any, ...]) -> str:
    """What a call gives: every bit of the result, or what is wrong."""
    try:
        result = kernel(*arguments)
    except OperandError as error:
        return str(error)
    assert arguments[2] is None or result is arguments[2]
    return repr((type(result), result.shape, result.strides, np.asarray(result).tobytes()))


@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    dtype=st.sampled_from(["float32", "float64"]),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    kinds=st.tuples(KINDS, KINDS, KINDS),
    beta=st.sampled_from([0.0, 0.0, -0.5]),
)
@settings(max_examples=400)
def test_both_ways_agree(
    sizes: tuple[int, int, int],
    dtype: str,
    layout: str,
    kinds: tuple[str, str, str],
    beta: float,
    loader: Loader,
) -> None:
    problem = Gemm(*sizes, dtype=dtype, layout=layout)

    def arguments() -> tuple[Any, ...]:
        arranged = (
            ARRANGEMENTS[kind](each) for kind, each in zip(kinds, operands(problem), strict=True)
        )
        return (*arranged, 2.0, beta)

    fast, careful = loader.both(problem)
    assert outcome(fast, arguments()) == outcome(careful, arguments())


@given(data=st.data())
@settings(max_examples=400)
def test_both_ways_find_the_same_overlaps(data: st.DataObject, loader: Loader) -> None:
    """Operands are parts of one buffer, side by side, interleaved, or one over the other."""
    problem = Gemm(3, 3, 3)
    rows = st.sampled_from([3, 4, 6, 7, 9])
    places = [(data.draw(st.integers(0, 40)), data.draw(rows)) for _ in range(3)]

    def arguments() -> tuple[Any, ...]:
        buffer = np.random.default_rng(1).uniform(-1, 1, 64).astype("f4")
        return tuple(
            np.lib.stride_tricks.as_strided(buffer[start:], (3, 3), (4 * row, 4))
            for start, row in places
        )

    fast, careful = loader.both(problem)
    assert outcome(fast, arguments()) == outcome(careful, arguments())


def test_every_reason_to_refuse_has_words(loader: Loader) -> None:
    a, b, c = operands(PROBLEM)
    kernel, _ = loader.both(PROBLEM)
    for arguments, words in (
        ((a, b, c, 1.0, 0.0, 7), "a cpu kernel takes no stream, got 7"),
        ((a, b, None, 1.0, 0.5), "beta = 0.5 scales what out holds: pass out=, or use beta = 0"),
        ((a, b, read_only(c)), "out is read-only: pass an array that may be written"),
        ((a, b.T, c), "b must have shape (5, 6), got (6, 5)"),
    ):
        with pytest.raises(OperandError) as caught:
            kernel(*arguments)
        assert str(caught.value) == words


class Metres(np.ndarray[Any, Any]):
    """Elements with a unit."""


@pytest.mark.parametrize("place", [0, 1, 2])
def test_arrays_that_mean_more_than_their_elements_are_refused(place: int, loader: Loader) -> None:
    name = ("a", "b", "out")[place]
    masks = np.ma.MaskedArray, f"pass {name}.filled(value), or {name}.view(numpy.ndarray)"
    for kind, remedy in (masks, (Metres, f"used: pass {name}.view(numpy.ndarray)")):
        given = list(operands(PROBLEM))
        given[place] = given[place].view(kind)
        for kernel in loader.both(PROBLEM):
            with pytest.raises(
                OperandError, match=f"^{name} must be a plain NumPy array"
            ) as caught:
                kernel(*given)
            assert str(caught.value).endswith(remedy)


def test_arrays_of_autotune_are_plain(loader: Loader) -> None:
    from autotune.numpy import tuned

    a, b, _ = operands(PROBLEM)
    kernel, _ = loader.both(PROBLEM)
    np.testing.assert_allclose(kernel(tuned(a), b), a @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", [0, 1])
def test_scalars_that_are_no_numbers_are_named(place: int, loader: Loader) -> None:
    a, b, c = operands(PROBLEM)
    before = c.copy()
    raw = loader.raw(PROBLEM)
    of_any_operation = HostKernel(PROBLEM, raw, direct_call(raw, PROBLEM, loader.programs))
    name = ("alpha", "beta")[place]
    for scalar in (*NO_NUMBERS, *NOT_REAL, *TOO_LARGE):
        for kernel in (*loader.both(PROBLEM), of_any_operation):
            for out in (None, c):
                with pytest.raises(OperandError, match=f"^{name} must be a real number"):
                    kernel(a, b, out=out, **{name: scalar})
    np.testing.assert_array_equal(c, before)


def test_direct_calls_do_nothing_with_what_they_do_not_take(loader: Loader) -> None:
    raw = loader.raw()
    direct = direct_call(raw, PROBLEM, loader.programs)
    assert direct is not None
    a, b, c = operands(PROBLEM)
    before = c.copy()
    assert direct(a, b, c) is False
    assert direct(a, b, read_only(c), 1.0, 0.0) is False
    assert direct(a, b, c, "two", 0.0) is False
    assert direct(a, b, c, 1.0, None) is False
    assert direct(a, b, None, 1.0, 0.0) is False
    assert direct(PROBLEM, "b", c, 1.0, 0.0) is False
    np.testing.assert_array_equal(c, before)
    assert direct(a, b, c, 1.0, 0.0) is True
    with pytest.raises(TypeError):
        direct(a=a, b=b)


def test_direct_calls_keep_nothing(loader: Loader) -> None:
    direct = direct_call(loader.raw(), PROBLEM, loader.programs)
    assert direct is not None
    arguments: list[Any] = [*operands(PROBLEM), 2.5, 0.5]
    refused = [*arguments[:2], arguments[2].T, 2.5, 0.5]
    before = [sys.getrefcount(each) for each in (*arguments, direct)]
    for _ in range(100):
        direct(*arguments)
        direct(*refused)
    assert [sys.getrefcount(each) for each in (*arguments, direct)] == before


def written(folder: Path, text: str, threads: int = 1) -> CpuKernel:
    path = folder / "failing.py"
    path.write_text(text)
    return CpuKernel(CpuProgram(path, "gemm", "float32", "nn", "nn", (), threads))


WAITING = """\
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

@intrinsic
def now(typing_context, address):
    def codegen(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.load_atomic(place, "monotonic", 4)
    return types.int32(types.uint64), codegen

@njit("void(int64, int64, int64, float32, uintp, int64, uintp, int64, float32, uintp, int64)")
def gemm(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    for _ in range(2**31):
        if now(c) == 7:
            return
    raise MemoryError("nobody wrote to C")
"""


def test_other_threads_go_on_during_a_call(loader: Loader, tmp_path: Path) -> None:
    direct = direct_call(written(tmp_path, WAITING), PROBLEM, loader.programs)
    assert direct is not None
    a, b, c = operands(PROBLEM)
    writer = threading.Timer(0.05, c.view("i4").fill, (7,))
    writer.start()
    assert direct(a, b, c, 1.0, 0.0) is True
    writer.join()


# --- when there is no direct call, and when it fails ---

FAILING = """\
from numba import njit, prange
@njit(
    "void(int64, int64, int64, float32, uintp, int64, uintp, int64, float32, uintp, int64)",
    parallel=False,
)
def gemm(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    for i in prange(m):
        if alpha > 1:
            raise MemoryError("no room for strips")
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_kernel_raises_is_passed_on(threads: int, loader: Loader, tmp_path: Path) -> None:
    import numba

    loader.raw(threads=2)  # threads are started with the first kernel that has any
    direct = direct_call(written(tmp_path, FAILING, threads), PROBLEM, loader.programs)
    kernel = HostProduct(PROBLEM, unexpected, direct)
    a, b, c = operands(PROBLEM)
    before = numba.get_num_threads()
    with pytest.raises(MemoryError, match="no room for strips"):
        kernel(a, b, c, 2.0)
    assert numba.get_num_threads() == before
    assert kernel(a, b, c) is c


def test_a_module_of_calls_is_loaded_from_the_cache_before_any_kernel(loader: Loader) -> None:
    """As workers do that compile it; what it needs of Numba is there with its threads only."""
    program = loader.raw(threads=2).program
    path = write_call(program, loader.programs)
    load_module(path)
    program = "from autotune.cpu.kernel import load_module; from pathlib import Path; "
    program += f"print(load_module(Path({str(path)!r})).call.cache_hits)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("directly", [True, False])
def test_a_call_uses_no_more_threads_than_its_caller_allows(
    directly: bool, loader: Loader, tmp_path: Path
) -> None:
    """The kernel fails where it has more threads than alpha."""
    import numba

    loader.raw(threads=2)
    text = FAILING.replace("njit, prange", "get_num_threads, njit, prange", 1)
    raw = written(tmp_path, text.replace("alpha > 1", "get_num_threads() > alpha"), threads=2)
    direct = direct_call(raw, PROBLEM, loader.programs)
    kernel = HostProduct(PROBLEM, unexpected, direct) if directly else HostProduct(PROBLEM, raw)
    a, b, c = operands(PROBLEM)
    most = numba.config.NUMBA_NUM_THREADS
    assert numba.get_num_threads() == most
    kernel(a, b, c, 2.0)
    if most > 1:
        with pytest.raises(MemoryError):
            kernel(a, b, c, 1.0)
    numba.set_num_threads(1)
    try:
        kernel(a, b, c, 1.0)
        assert numba.get_num_threads() == 1
    finally:
        numba.set_num_threads(most)


@pytest.mark.parametrize(
    ("change", "by", "direct"),
    [
        ("", "", True),
        ("float32", "float64", False),
        ("void(", "int64(", False),
        ("uintp, int64)", "uintp, int32)", False),
        ("@njit(\n", "@(lambda *arguments, **options: lambda function: function)(\n", False),
    ],
    ids=["usual", "other dtype", "result", "other integers", "not compiled"],
)
def test_only_entries_of_the_usual_arguments_are_called_directly(
    change: str, by: str, direct: bool, loader: Loader, tmp_path: Path
) -> None:
    text = FAILING.replace(change, by)
    if by == "int64(":
        text += "    return 0\n"
    made = direct_call(written(tmp_path, text), PROBLEM, loader.programs)
    assert (made is not None) == direct


def test_arrays_that_lie_in_memory_otherwise_are_not_called_directly(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As objects of Python without the GIL do, which begin with more."""
    monkeypatch.setattr(direct_module, "_OBJECT_BYTES", 32)
    monkeypatch.setattr(direct_module, "_CALLERS", {})
    direct_module._arrays_are_legible.cache_clear()
    try:
        assert direct_call(loader.raw(), PROBLEM, loader.programs) is None
    finally:
        direct_module._arrays_are_legible.cache_clear()


def test_operands_that_are_copied_are_not_called_directly(loader: Loader) -> None:
    problem = replace(PROBLEM, layout="nt")
    assert direct_call(loader.raw(problem), problem, loader.programs) is None


def test_python_threads_that_take_turns_are_not_called_directly(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numba

    monkeypatch.setattr(numba, "threading_layer", lambda: "workqueue")
    in_turns = CpuKernel(loader.raw(threads=2).program)
    assert direct_call(in_turns, PROBLEM, loader.programs) is None
    assert direct_call(loader.raw(threads=1), PROBLEM, loader.programs) is not None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_gradients_are_not_dropped_without_a_word(place: int) -> None:
    torch: Any = pytest.importorskip("torch")
    shapes = (PROBLEM.a_shape, PROBLEM.b_shape, PROBLEM.c_shape)
    operands = [torch.ones(shape) for shape in shapes]
    operands[place].requires_grad_()
    kernel = numpy_kernel(PROBLEM)
    with pytest.raises(OperandError, match=r"require grad.* pass x.detach\(\), .*torch_operator"):
        kernel(*operands)
    with torch.no_grad():
        assert kernel(*operands) is operands[2]
    assert operands[2].eq(5).all()
