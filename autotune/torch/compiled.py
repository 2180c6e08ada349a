"""Gates without Python: ``gates.cpp``, compiled once a machine by its C++ compiler.

Where there is none, the gates in Python do all of it. What is known of a shape is put into the
table of the compiled gates, which lie above those: who computes, and the launch of a kernel.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import threading
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from autotune.core import session
from autotune.core.errors import AutotuneError, CompileError
from autotune.core.paths import CacheLocations
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source
from autotune.serving.background import (
    COMPILE_TIMEOUT_S,
    Job,
    Workers,
    background,
    is_wanted,
)
from autotune.serving.recorded import ATTRIBUTE_BYTES, WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from autotune.serving.recorded import RecordedAddress, RecordedLaunch

OPERATIONS = ("mm", "addmm", "bmm")
"""Of ``aten``, in the order of ``gates.cpp``."""

_OUT, _WORKSPACE = 3, 4
"""Operands of gates after A, B and what is added, as ``gates.cpp`` counts them."""

_TYPES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
"""``c10::ScalarType`` of what kernels take."""

_MOST = 4096
"""Entries of a table; a full one begins anew."""

_log = logging.getLogger(__name__)


class _Step(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("extents", ctypes.c_uint * 7),
        ("count", ctypes.c_uint),
        ("attributes", ctypes.c_ubyte * (2 * ATTRIBUTE_BYTES)),
    )


class _Address(ctypes.Structure):
    _fields_ = (
        ("offset", ctypes.c_int64),
        ("operand", ctypes.c_int64),
        ("displacement", ctypes.c_int64),
    )


_NUMBERS_OF_VIEW = (
    "size",
    "place_count",
    "step_count",
    "address_count",
    "map_count",
    "dimensions",
    "workspace_bytes",
    "zeroed_bytes",
    "is_strict",
    "adds_afterwards",
)


class _View(ctypes.Structure):
    _fields_ = (
        ("arguments", ctypes.c_char_p),
        ("places", ctypes.POINTER(ctypes.c_int64)),
        ("steps", ctypes.POINTER(_Step)),
        ("addresses", ctypes.POINTER(_Address)),
        ("maps", ctypes.POINTER(_Address)),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        *((name, ctypes.c_int64) for name in _NUMBERS_OF_VIEW),
    )


class Call(NamedTuple):
    """Calls of an operation on tensors that lie alike, of which something was decided.

    Attributes:
        state: of the gates, when that was.
        number: of what was selected then.
        operation: one of `OPERATIONS`.
        tensors: A, B and what is added.
    """

    state: int
    number: int
    operation: str
    tensors: tuple[Tensor, ...]


class CompiledGates:
    """The compiled gates of a kind of device, in place of those in Python.

    Args:
        library: the compiled file.
        device: the kind of device.

    Raises:
        CompileError: it cannot be loaded, or PyTorch refuses the gates.

    Attributes:
        state: a number that changes whenever anything that was decided may have.
        enter: ``enter(number)`` lets through, in this thread, what is known under that, whatever
            is selected. It gives how many modes see functions, and one more; or 0, and does
            nothing, where a mode of PyTorch's dispatcher or a transform sees what is called.
        leave: ``leave()`` ends that.
    """

    def __init__(self, library: Path, device: str) -> None:
        try:
            install = ctypes.CDLL(str(library)).gates_install
            self._library = ctypes.PyDLL(str(library))  # the others return at once
        except OSError as error:
            raise CompileError(f"the gates cannot be loaded: {error}") from error
        size = ctypes.c_int64
        self._library.gates_put.argtypes = [ctypes.c_void_p, size, ctypes.c_void_p, size]
        # Without a declared type ctypes passes a plain int, and faster.
        self.enter = self._library.gates_enter
        self.leave = self._library.gates_leave
        install.restype = ctypes.c_char_p
        self.state = 0
        self._driven = False
        self._lock = threading.Lock()
        failure = install(device.upper().encode())
        if failure is not None:
            raise CompileError(f"PyTorch refuses the gates: {failure.decode()}")

    def select(self, number: int) -> None:
        """Let through what is known under a number; 0 leaves all to PyTorch, and asks nobody."""
        self._library.gates_select(number)

    def owner(self) -> int:
        """The number that an operator's call is under in this thread; 0 outside of such."""
        return int(self._library.gates_owner())

    def clear(self) -> None:
        """Forget what was decided."""
        with self._lock:
            self.state += 1
            self._library.gates_clear()

    def forked(self) -> None:
        """Be of use in a child by fork."""
        self._library.gates_forked()

    def pass_on(self, call: Call) -> None:
        """Leave such calls to PyTorch."""
        self._tell(call, None)

    def take(
        self, call: Call, launch: RecordedLaunch, *, strict: bool = False, afterwards: bool = False
    ) -> None:
        """Compute such calls by a launch on A, B, what is added, and the result.

        Args:
            call: the calls.
            launch: computes them.
            strict: whether it computes only where PyTorch is not set to round float32.
            afterwards: whether the launch knows nothing of what is added, which is added to its
                result.
        """
        if not self._driven:
            functions = *launch.functions, _current_stream()
            self._library.gates_drive((ctypes.c_void_p * len(functions))(*functions))
            self._driven = True
        a, b, *added = call.tensors
        inputs = range(2 if afterwards else 2 + len(added))
        names = {**dict(enumerate([*inputs, _OUT])), WORKSPACE: _WORKSPACE}

        def addresses(given: Iterable[RecordedAddress]) -> Any:
            return _array(_Address, [(at, names[of], apart) for at, of, apart in given])

        steps = [
            (function, extents, len(attributes), tuple(b"".join(attributes)))
            for function, extents, attributes in launch.steps
        ]
        shape = (*a.shape[:-1], b.shape[-1])
        view = _View(
            launch.arguments,
            _array(ctypes.c_int64, launch.places),
            _array(_Step, steps),
            addresses(launch.addresses),
            addresses(launch.maps),
            _array(ctypes.c_int64, shape),
            len(launch.arguments),
            len(launch.places),
            len(steps),
            len(launch.addresses),
            len(launch.maps),
            len(shape),
            launch.workspace_bytes,
            launch.zeroed_bytes,
            strict,
            afterwards,
        )
        self._tell(call, ctypes.byref(view))

    def _tell(self, call: Call, view: Any) -> None:
        types = [_TYPES.get(each.dtype) for each in call.tensors]
        if None in types or types.count(types[0]) != len(types):
            return
        index = call.tensors[0].device.index
        numbers = [call.number, OPERATIONS.index(call.operation), -1 if index is None else index]
        numbers += types[:2]
        for each in call.tensors:
            numbers += (*each.shape, *each.stride())
        key = _array(ctypes.c_int64, numbers)
        with self._lock:
            if call.state == self.state:
                self._library.gates_put(key, len(numbers), view, _MOST)


def _array(kind: Any, values: Sequence[Any]) -> Any:
    return (kind * len(values))(*values)


def _current_stream() -> int:
    """The address of the function that gives PyTorch's current stream of a GPU."""
    library = ctypes.CDLL(str(_folder() / "lib" / "libtorch_cuda.so"))
    return ctypes.cast(library.aoti_torch_get_current_cuda_stream, ctypes.c_void_p).value or 0


_GATES: dict[str, CompiledGates] = {}
_LOCK = threading.Lock()
_READY: dict[str, Path] = {}
"""Compiled gates that are not installed yet, by the kind of device."""


def changed() -> None:
    """Have all gates ask again: something that was decided may have changed."""
    for gates in [*_GATES.values()]:
        gates.clear()


def _go_on_in_child() -> None:
    for gates in _GATES.values():
        gates.forked()


session.on_forget(changed)
session.at_fork(child=_go_on_in_child)


def are_ready(device: str) -> bool:
    """True if the gates of a device are compiled, and may be installed or are."""
    return device in _READY or device in _GATES


def gates_of(device: str) -> CompiledGates | None:
    """The compiled gates of a kind of device, installed; None while there are none.

    PyTorch's tables of kernels are changed here, where the caller's thread multiplies itself.
    """
    found = _GATES.get(device)
    if found is None and device in _READY:
        with _LOCK:
            library = _READY.pop(device, None)
            if library is not None:
                try:
                    _GATES[device] = CompiledGates(library, device)
                except CompileError as error:
                    _stay_in_python(str(error))
        found = _GATES.get(device)
    return found


@session.cached()
def compile_gates(device: str) -> None:
    """Have the gates of a device compiled, in the background unless that is not wanted.

    It is for before those in Python are there: what they replace must be PyTorch's own kernels,
    which is what compiled gates call.
    """
    command = shlex.split(os.environ.get("CXX", "c++"))
    if not command or shutil.which(command[0]) is None or not _are_pytorchs(device.upper()):
        return
    try:
        library, job = _job(device, command)
        if library.exists():
            _READY[device] = library
            return
        wanted = is_wanted(None)
        if not wanted:
            job.compile(Workers())
    except AutotuneError as error:
        _stay_in_python(str(error))
        return

    def done(failure: str) -> None:
        if failure:
            _stay_in_python(failure)
        else:
            _READY[device] = library

    if wanted:
        background().submit(job, done)
    else:
        done("")


def _are_pytorchs(key: str) -> bool:
    """True if no other package has replaced the kernels of products."""
    for name in OPERATIONS:
        for overload in ("", ".out"):
            lines = torch._C._dispatch_dump(f"aten::{name}{overload}").splitlines()
            registered = next((each for each in lines if each.startswith(f"{key}: ")), "")
            if f"/Register{key}" not in registered:
                return False
    return True


def _stay_in_python(reason: str) -> None:
    _log.info("products pass gates in Python: %s", reason)


def _job(device: str, command: Sequence[str]) -> tuple[Path, Job]:
    """The compiled file of a device's gates, and the job that makes it.

    Raises:
        CacheError: the folder of programs cannot be written.
    """
    text = resources.files("autotune.torch").joinpath("gates.cpp").read_text()
    source = Source(text, "gates_install", (), "torch", ".cpp")
    programs = ProgramCache.of(CacheLocations.at())
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    libraries = ["-ltorch_cpu", "-lc10", *(["-ltorch_cuda"] if device == "cuda" else [])]
    flags = [*_FLAGS, f"-DDEVICE={device}", abi, f"-isystem{_folder() / 'include'}"]
    options = [*command, *flags, f"-L{_folder() / 'lib'}"]
    made_by = hashlib.sha256("\0".join([torch.__version__, *options]).encode()).hexdigest()[:16]
    path = programs.write(source, "gates")
    library = programs.binary(source, "gates", f"{made_by}.so")
    whole = ["sh", "-c", _COMPILE, str(library), *options, str(path), *libraries]

    def compile_all(workers: Workers) -> None:
        # A program that ends meanwhile leaves the compiler to its work, which is the next one's.
        try:
            made = subprocess.run(
                whole,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                timeout=COMPILE_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"{command[0]} does not compile the gates: {error}") from error
        if made.returncode:
            raise CompileError(f"{command[0]} refuses the gates: {_first_error(made.stdout)}")

    return library, Job(("gates", str(library)), f"gates of {device} for PyTorch", compile_all)


_FLAGS = ("-std=c++20", "-O2", "-shared", "-fPIC")

_COMPILE = '"$@" -o "$0.$$" && mv -f "$0.$$" "$0" || { rm -f "$0.$$"; exit 1; }'
"""The file appears whole or not at all, also where two processes make it."""


def _first_error(told: str) -> str:
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), (lines or ["no reason given"])[-1])


def _folder() -> Path:
    """PyTorch's."""
    return Path(torch.__file__).parent
