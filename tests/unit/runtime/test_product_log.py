"""``AUTOTUNE_LOG``: which product of `matmul` went where, once per shape."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from measured_shapes import SHAPES, measured_cache

from autotune import Gemm, NotTunedError, load, matmul
from autotune.runtime import product_log

if TYPE_CHECKING:
    from pathlib import Path

M, N, K = SHAPES[0]


own_cache = measured_cache()


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def test_each_way_is_told_once(own_cache: Path) -> None:
    for _ in range(3):
        matmul(ones(M, N), ones(N, K))
        matmul(ones(2, M, N)[1], ones(N, K))
        matmul(ones(3, 4), ones(4, 9))
        matmul(ones(M, N, dtype=int), ones(N, K, dtype=int))
    lines = own_cache.read_text().splitlines()
    assert [each for each in lines if f"matmul {M}x{N}x{K}" in each] == [
        f"autotune: matmul {M}x{N}x{K}-float32 on cpu: textbook: step=1, EXACT"
    ]
    (nearest,) = [each for each in lines if "matmul 3x4x9" in each]
    assert "on cpu: left to the library: no kernel is known to be faster (tuned for" in nearest
    (left,) = [each for each in lines if "int64" in each]
    assert left.endswith(
        f"({M}, {N}) and ({N}, {K}): the library, since no kernel has such operands"
    )


def test_programs_may_listen_themselves(own_cache: Path) -> None:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(product_log.NAME)
    logger.addHandler(handler)
    try:
        matmul(ones(M, K), ones(K, N))
    finally:
        logger.removeHandler(handler)
    assert heard == [f"matmul {M}x{K}x{N}-float32 on cpu: textbook: step=1, EXACT"]


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("stderr", f"autotune: matmul {M}x{N}x{K}-float32 on cpu: textbook: step=1, EXACT\n"),
        ("/missing/folder/log", "AUTOTUNE_LOG=/missing/folder/log cannot be written (No such"),
        ("/dev/full", "AUTOTUNE_LOG=/dev/full cannot be written (No space left on device)"),
        ("pipe", "AUTOTUNE_LOG=pipe cannot be written (No such device or address)"),
        ("", ""),
    ],
)
def test_where_it_is_told(
    log: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")  # which nobody reads
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(product_log.VARIABLE, log)
    script = (
        "import numpy, autotune\n"
        f"a, b = numpy.ones(({M}, {N}), 'f4'), numpy.ones(({N}, {K}), 'f4')\n"
        "for _ in range(3): autotune.matmul(a, b)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0
    assert said in done.stderr
    assert done.stderr.count("\n") == bool(said)


def test_what_a_model_may_choose_is_no_nearest_record() -> None:
    assert load(Gemm(M, N, K), "cpu", match="predicted").match.name == "EXACT"
    with pytest.raises(NotTunedError, match="autotune tune --shape 3x4x9 --target cpu"):
        load(Gemm(3, 4, 9), "cpu", match="predicted")
