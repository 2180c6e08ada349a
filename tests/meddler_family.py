"""A kernel family of plain Python whose kernels compute, and do something else besides.

Nothing is compiled, so that a test of one costs no more than its worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.configuration import Candidate, Configuration
from autotune.targets.families import read_family

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.families.family import KernelFamily

FAMILY = """\
family = "meddler"
operation = "gemm"
target = "cpu"
template = "meddler.py.j2"
accuracy = "ieee"
summary = "NumPy's product, and something else"

[parameters]
deed = { values = ["none", "remembers", "stops", "puts_back", "errs", "errs_when_fresh",
    "rounds_up", "leaves_child",
    "leaves_daemon", "computes_on", "at_import", "forges", "dies_later"], default = "none" }
period = { values = [1, 2, 7], default = 1, summary = "one call of so many errs" }
"""

TEMPLATE = '''\
"""{{ banner }}"""

import ctypes
import hashlib
import os
import struct
import sys
import threading
import time

import numpy as np

LARGE = 1000  # elements of C from which on a kernel does what it does
calls = {}
results = {}
contents = {}
{% if deed == "at_import" %}
os.chdir("/")
{% endif %}


def matrix(address, rows, columns, stride):
    kind = ctypes.c_float * (rows * stride)
    flat = np.frombuffer(kind.from_address(address), "float32")
    return flat.reshape(rows, stride)[:, :columns]


def compute():
    while True:
        hashlib.sha256(bytes(50_000_000))  # lets other threads run meanwhile


def forge(content):
    """Write a message to every socket of the process."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                os.write(int(entry), struct.pack("!Q", len(content)) + content)
        except OSError:
            pass


def die_with_another(mark):
    """Corrupt the heap, once, in a way that shows when another kernel is loaded."""
    own = [name for name in sys.modules if name.startswith("autotune_program_")]
    while not [name for name in sys.modules if name.startswith("autotune_program_meddler_")
               and name not in own]:
        time.sleep(0.005)
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.abort()


def gemm({{ arguments }}):
    a, b = matrix(a_address, m, n, lda), matrix(b_address, n, k, ldb)
    c = matrix(c_address, m, k, ldc)
    key = a_address, b_address, c_address
    calls[key] = calls.get(key, 0) + 1
    large = m * k >= LARGE
{% if deed == "remembers" %}
    if large and key in results:
        c[...] = results[key]
        return
{% elif deed == "stops" %}
    if large and calls[key] > 20:
        return
{% elif deed == "puts_back" %}
    if large:
        before = a[0, 0]
        a[0, 0] = 7
        a[0, 0] = before
{% endif %}
    c[...] = alpha * (a @ b) + (beta * c if beta else 0)
    results[key] = c.copy()
{% if deed == "errs" %}
    if large and calls[key] % {{ period }} == 0:
        c[m // 2, k // 2] += 1
{% elif deed == "errs_when_fresh" %}
    contents.setdefault(key, set()).add(float(a[0, 0]))
    if large and len(contents[key]) > 2:
        c[m // 2, k // 2] += 1
{% elif deed == "computes_on" %}
    if large:
        threading.Thread(target=compute, daemon=True).start()
{% elif deed == "forges" %}
    if large:
        forge(b"0123456789abcdef"
              b'{"Evaluated": {"measurement": {"Measurement": {"outcome": "ok", "median_s": 1e-6, '
              b'"interval_s": [1e-6, 1e-6], "repeats": 9, "error": 0.1, "reason": "", '
              b'"details": {}}}, "lost": false, "blameless": false}}\\n')
{% elif deed == "dies_later" %}
    if large and calls[key] == 1:
        threading.Thread(target=die_with_another, args=(__file__ + ".died",), daemon=True).start()
{% elif deed == "rounds_up" %}
    if large:
        ctypes.CDLL(None).fesetround({"x86_64": 0x800, "aarch64": 0x400000}[os.uname().machine])
{% elif deed in ("leaves_child", "leaves_daemon") %}
    if large and not os.fork():
{% if deed == "leaves_daemon" %}
        os.setsid()
        if os.fork():
            os._exit(0)
{% endif %}
        time.sleep(1000)
        os._exit(0)
{% endif %}
'''


def write_meddlers(folder: Path) -> KernelFamily:
    """The family, in files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meddler.toml").write_text(FAMILY)
    (folder / "meddler.py.j2").write_text(TEMPLATE)
    return read_family(folder / "meddler.toml", (folder,))


def meddler(deed: str = "none", period: int = 1) -> Candidate:
    """One of its candidates."""
    return Candidate("meddler", Configuration({"deed": deed, "period": period}))
