"""Options of the compiler, values that are None or tuples, and launches of many blocks at once."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_kernels import BRIEF, TOTAL, total

import autotune
from autotune.core.configuration import Configuration
from autotune.core.errors import InputError
from autotune.families.family import KernelFamily
from autotune.families.gpu.planning import planner_of
from autotune.gpu.compiling import check_resources
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.own.words import in_words, words_of
from autotune.space import Expression
from autotune.targets.families import catalog

LIMITS = find_gpu("h100").limits

SCALED = """
__global__ void scaled(const T* x, T* y, int N) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= N) return;
#ifdef EXTRA
  y[i] = EXTRA * __sinf(x[i]) / 3;
#else
  y[i] = x[i] * (TILE_0 + TILE_1);
#endif
}
"""


def scaled(source: str | Path = SCALED, **changed: Any) -> Any:
    """A kernel with parameters of every kind."""
    said: dict[str, Any] = {
        "operands": {"x": "N"},
        "out": {"y": "N"},
        "reference": lambda x: x * 3,
        "parameters": {
            "THREADS": [64, 128],
            "REGISTERS": [32, 64],
            "EXTRA": [None, 2, 8],
            "TILE": [(1, 2), (4, 8)],
        },
        "grid": ["ceildiv(N, THREADS)"],
        "block": ["THREADS"],
    }
    return autotune.kernel(source=source, **{**said, **changed})


def family(kernel: Any) -> KernelFamily:
    return catalog("cuda", kernel.name, [kernel.folder])[kernel.name]


def line(kernel: Any, **values: Any) -> str:
    """The options in an emitted source."""
    found = re.findall(r"^// nvrtc: (.*)$", kernel.emit(**values), re.MULTILINE)
    return found[0] if found else ""


# ---- Options of the compiler


def test_options_are_a_line_of_the_source(tmp_path: Path) -> None:
    told = ["--maxrregcount={REGISTERS}", "--use_fast_math", "-DEXACT={EXTRA}"]
    kernel = scaled(cache=tmp_path, compiler_options=told)
    for registers, extra in itertools.product([32, 64], [None, 2]):
        assert line(kernel, REGISTERS=registers, EXTRA=extra) == (
            f"--maxrregcount={registers} --use_fast_math -DEXACT={extra}"
        )
    plain = scaled(cache=tmp_path)
    assert line(plain) == ""
    assert kernel.folder != plain.folder


def test_a_function_says_the_options(tmp_path: Path) -> None:
    def of_all(p: Any) -> list[str]:
        fast = ["--use_fast_math"] if p["EXTRA"] is None else []
        return [*fast, f"--maxrregcount={p['REGISTERS']}"]

    by_name = scaled(cache=tmp_path, compiler_options=lambda REGISTERS: [f"-DR={REGISTERS}"])
    assert line(by_name, REGISTERS=64) == "-DR=64"
    kernel = scaled(cache=tmp_path, compiler_options=of_all)
    assert line(kernel, EXTRA=None, REGISTERS=32) == "--use_fast_math --maxrregcount=32"
    assert line(kernel, EXTRA=8, REGISTERS=64) == "--maxrregcount=64"


def test_the_compiler_is_given_its_options(tmp_path: Path) -> None:
    text = scaled(cache=tmp_path).emit(EXTRA=2, dtype="float32")
    plain, fast = (compile_cuda(each, "sm_90") for each in (text, f"// nvrtc: -DTWO\n{text}"))
    assert plain.cubin == fast.cubin
    fast = compile_cuda(f"// nvrtc: --use_fast_math\n{text}", "sm_90")
    assert plain.cubin != fast.cubin
    many = 'extern "C" __global__ void f(float* a) {\n  float s[64];\n' + "".join(
        f"  for (int i = 0; i < 64; ++i) s[i] = a[i * threadIdx.x + {step}] {sign} s[63 - i];\n"
        for step, sign in [(0, "+ 0 *"), *zip(range(1, 6), "+*-/+", strict=True)]
    )
    many += "  for (int i = 0; i < 64; ++i) a[i] += s[i];\n}\n"
    few = compile_cuda(f"// nvrtc: --maxrregcount=32 --std=c++20\n{many}", "sm_90")
    assert few.kernels["f"].registers <= 32 < compile_cuda(many, "sm_90").kernels["f"].registers


def test_headers_of_a_folder_become_part_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    header = tmp_path / "include" / "factor.cuh"
    folders = []
    for factor in (3, 5):
        header.write_text(f"#define FACTOR {factor}\n")
        text = f'#include "factor.cuh"\n{SCALED}'.replace("/ 3", "/ FACTOR")
        options = [f"-I{tmp_path / 'include'}", "--fmad=false"]
        kernel = scaled(text, cache=tmp_path, compiler_options=options)
        assert f"#define FACTOR {factor}" in kernel.emit()
        assert line(kernel) == "--fmad=false"
        assert compile_cuda(kernel.emit(EXTRA=2), "sm_90")
        folders.append(kernel.folder)
    assert folders[0] != folders[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--use_fast_math", "must be a list like"),
        (["use_fast_math"], "must be like --use_fast_math, .* got 'use_fast_math'"),
        (["-DA={}"], r"must be of THREADS, REGISTERS, EXTRA, TILE: (IndexError|ValueError)"),
        (["-DA={REGISTER}"], "must be of THREADS, .*KeyError: 'REGISTER'"),
        (lambda p: ["-Ihere"], "folders of headers follow from no parameter"),
        (lambda p, q: [], "must take parameters by name"),
    ],
)
def test_options_that_are_none_are_one_line(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        scaled(cache=tmp_path, compiler_options=options)


def test_a_template_has_its_options_itself(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"compiler_options .* in a line like // nvrtc:"):
        scaled(None, template="{{ x }}\n", name="f", compiler_options=["-DA"], cache=tmp_path)


# ---- None and tuples


def test_none_and_tuples_are_macros(tmp_path: Path) -> None:
    kernel = scaled(cache=tmp_path)
    text = kernel.emit(EXTRA=None, TILE=(4, 8))
    assert "#define TILE_0 4\n#define TILE_1 8\n" in text
    assert "#define EXTRA" not in text
    assert "#define EXTRA 8\n" in kernel.emit(EXTRA=8)
    for extra in (None, 2):
        assert compile_cuda(kernel.emit(EXTRA=extra), "sm_90")


CONDITIONS: list[Any] = [
    lambda p: p["EXTRA"] is None or p["EXTRA"] <= 2,
    lambda EXTRA, TILE, THREADS: THREADS * TILE[1] <= 512 or EXTRA,
    lambda TILE, N: sum(TILE) <= N,
    "EXTRA is None or TILE[0] * TILE[1] <= 2",
    "EXTRA is not None and THREADS * TILE[1] <= 256",
    "TILE == (4, 8) or EXTRA in [None, 8]",
    "EXTRA is None or EXTRA <= 2",
    "TILE not in [(1, 2)]",
    "TILE[0] <= N",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_restrictions_may_speak_of_none_and_tuples(condition: Any, tmp_path: Path) -> None:
    kernel = scaled(cache=tmp_path, restrictions=[condition])
    *_, restriction = family(kernel).restrictions
    values = {"THREADS": [64, 128], "EXTRA": [None, 2, 8], "TILE": [(1, 2), (4, 8)], "N": [3, 9]}
    for row in itertools.product(*values.values()):
        point = dict(zip(values, row, strict=True))
        if isinstance(condition, str):
            wanted = eval(condition, {}, point)
        else:
            names = condition.__code__.co_varnames
            given = [point] if names[0] == "p" else [point[name] for name in names]
            wanted = condition(*given)
        known = kernel._definition.spelled(point)
        assert restriction.expression.holds(known) == bool(wanted), point


def test_launches_may_speak_of_tuples(tmp_path: Path) -> None:
    for grid in (
        lambda p: -(-p["N"] // (p["THREADS"] * p["TILE"][0])),
        "ceildiv(N, 64 * TILE[0])",
    ):
        kernel = scaled(cache=tmp_path, grid=[grid], shared_bytes="TILE[0] * TILE[1]")
        chosen = {"THREADS": 64, "REGISTERS": 32, "EXTRA": "None", "TILE": "TILE-4-8"}
        planner = planner_of(family(kernel), Configuration(chosen), "float32", LIMITS)
        (step,) = planner.plan(kernel.problem(N=1000)).steps
        assert (step.grid, step.shared_bytes) == ((4, 1, 1), 32)


def test_a_function_gets_none_and_tuples(tmp_path: Path) -> None:
    @autotune.kernel(
        operands={"x": "N"},
        out={"y": "N"},
        reference="3 * x",
        parameters={"parts": [(1, 2), (2, 1)], "extra": [None, 4]},
        restrictions=lambda parts, extra: extra is None or parts[0] == 1,
        cache=tmp_path,
        **BRIEF,
    )
    def tripled(x, y, parts, extra):  # type: ignore[no-untyped-def]
        for i in range(len(x)):
            y[i] = (parts[0] + parts[1]) * x[i] if extra is None else 3 * x[i]

    assert "parts = (2, 1)\nextra = None\n" in tripled.emit(parts=(2, 1), extra=None)
    x = np.arange(9.0)
    np.testing.assert_array_equal(tripled(x), 3 * x)


@pytest.mark.parametrize("values", [[(1, 2), (3,)], [None, -1], [(0.5, 1)], [None, (1, [2])]])
def test_values_without_a_word_are_one_line(values: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"values must be|must have whole numbers"):
        scaled(cache=tmp_path, parameters={"THREADS": [64], "TILE": values})


def test_words_are_told_apart_by_values() -> None:
    words = {"t": words_of("t", [None, (2, 3), ("a", True)])}
    assert in_words("t[0] + other", words) == "(2 if t == 't-2-3' else 'a') + other"
    assert Expression.parse(str(in_words("t is None", words))).holds({"t": "None"})


# ---- Blocks that wait for each other, and clusters


def test_blocks_that_wait_must_fit_the_device_at_once(tmp_path: Path) -> None:
    kernel = total(cache=tmp_path)
    found = family(kernel)
    problem = kernel.problem(N=100_000)
    for blocks, fits in ((1, True), (132, True), (2112, True), (2244, False)):
        chosen = {"THREADS": 128, "BLOCKS": blocks, "CLUSTER": 1}
        planner = planner_of(found, Configuration(chosen), "float32", LIMITS)
        assert planner.valid(problem) is fits
        assert planner.resident_blocks(problem) == -(-blocks // LIMITS.multiprocessor_count)
        assert planner.plan(problem).blocks_at_once == blocks
    # What the binary needs decides: 16 blocks of 128 threads fit with 32 registers, not with more.
    compiled = compile_cuda(kernel.emit(BLOCKS=2112), "sm_90")
    needed = {"threads": 128, "dynamic_shared_bytes": 0, "kernel": "total"}
    assert check_resources(compiled, LIMITS, **needed, resident_blocks=16) is None  # type: ignore
    refused = check_resources(compiled, LIMITS, **needed, resident_blocks=17)  # type: ignore
    assert refused is not None
    assert "resident at once" in refused.reason


def test_clusters_are_said_in_the_source(tmp_path: Path) -> None:
    kernel = total(cache=tmp_path)
    text = kernel.emit(CLUSTER=2, BLOCKS=132)
    assert '"C" __cluster_dims__(CLUSTER, 1, 1) __global__ void total' in text
    assert compile_cuda(text, "sm_90")
    assert any(each.text == "BLOCKS % CLUSTER == 0" for each in family(kernel).restrictions)
    own = TOTAL.replace("__global__ void", "__global__ void __cluster_dims__(2, 1, 1)")
    assert total(source=own, cache=tmp_path).emit().count("__cluster_dims__") == 1
    with pytest.raises(InputError, match="cluster must be arithmetic of THREADS, BLOCKS, CLUSTER"):
        total(cache=tmp_path, launch={"cluster": ["N"]})
    with pytest.raises(InputError, match="cooperative must be True or False"):
        total(cache=tmp_path, launch={"cooperative": "yes"})
