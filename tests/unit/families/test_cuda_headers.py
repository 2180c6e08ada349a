"""Headers of CUDA sources: where they are looked for, and what they are part of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.core.errors import CompileError, FamilyError
from autotune.families.family import KernelFamily
from autotune.families.headers import with_headers
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.compiling import CompileRequest, Refused, compile_kept
from autotune.gpu.nvidia import cuda_headers, nvrtc
from autotune.gpu.nvidia.nvrtc import compile_cuda, nvrtc_label
from autotune.targets.families import catalog

EMPTY = '\nextern "C" __global__ void f(float* y) { y[0] = 1; }\n'
TWICE = """#include "factor.cuh"
__global__ void twice(const T* x, T* y, int N) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) y[i] = FACTOR * x[i];
}
"""


def twice(folder: Path, **given: Any) -> Any:
    return autotune.kernel(
        operands={"x": "N"},
        out={"y": "N"},
        reference="2 * x",
        parameters={"U": [1]},
        grid=["ceildiv(N, 32)"],
        block=["32"],
        cache=folder / "cache",
        **given,
    )


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".cuh")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def kept(family: KernelFamily, programs: Path) -> bytes:
    source = render(family, {"U": 1}, dtype="float32")
    reply = compile_kept(ProgramCache(programs), CompileRequest(source, "twice", "sm_90"))
    assert not isinstance(reply, Refused), reply
    return reply.cubin


def test_headers_beside_a_source_are_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(TWICE)
    write(tmp_path, factor='#include "parts/value.cuh"\n#define FACTOR VALUE\n')
    write(tmp_path, parts__value="#pragma once\n#define VALUE 2\n")
    first = twice(tmp_path, source=path)
    before = first.folder.name, kept(catalog("cuda", "twice", [first.folder])["twice"], tmp_path)
    assert "#define VALUE 2" in first.emit(U=1)
    assert "#include" not in first.emit(U=1)
    write(tmp_path, parts__value="#pragma once\n#define VALUE 3\n")
    second = twice(tmp_path, source=path)
    after = second.folder.name, kept(catalog("cuda", "twice", [second.folder])["twice"], tmp_path)
    assert all(one != two for one, two in zip(before, after, strict=True))
    # As it was when the kernel was made, whenever its folder is written.
    assert "#define VALUE 3" in second.emit(U=1)


def test_headers_beside_a_template_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "twice.cu.j2"
    path.write_text(
        "using T = {{ ctype }};\n" + TWICE.replace("__global__", 'extern "C" __global__')
    )
    write(tmp_path, factor="constexpr int PAIRS[1][1] = {{2}};\n#define FACTOR PAIRS[0][0]\n")
    text = twice(tmp_path, template=path, name="twice").emit(U=1)
    assert "{{2}}" in text
    assert compile_cuda(text, "sm_90").kernels


def test_headers_of_a_family_are_in_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(TWICE.replace('#include "factor.cuh"', "#define FACTOR 2"))
    folder = twice(tmp_path, source=path).folder
    family_folder = tmp_path / "family"
    family_folder.mkdir()
    for each in folder.iterdir():
        text = each.read_text().replace("#define FACTOR 2", '#include "factor.cuh"')
        (family_folder / each.name).write_text(text)

    def read() -> KernelFamily:
        return catalog("cuda", "twice", [family_folder])["twice"]

    with pytest.raises(FamilyError, match=r"cu.j2:\d+: a header in quotes must be in .*<\.\.\.>"):
        read()
    write(family_folder, factor="#define FACTOR 2\n")
    first = read()
    binary = kept(first, tmp_path)
    write(family_folder, factor="#define FACTOR 13\n")
    second = read()
    assert first.digest != second.digest
    assert kept(second, tmp_path) != binary


def test_headers_are_looked_for_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, factor="#define FACTOR 2\n")
    for text in ('#include "factor.cuh"', "#include <factor.cuh>"):
        with pytest.raises(
            CompileError, match=r"factor\.cuh.*neither CUDA has .* beside the source"
        ):
            compile_cuda(text + EMPTY, "sm_90")
    text = twice(tmp_path, source=TWICE).emit(U=1)  # a text has no folder
    assert "#include <factor.cuh>" in text


def test_what_is_included_once_and_what_more_often(tmp_path: Path) -> None:
    write(tmp_path, one='#pragma once\n#include "two.cuh"\nONE\n', two='#include "one.cuh"\nTWO\n')
    found = with_headers(
        '#include "one.cuh"\n#include "one.cuh"\n#include "two.cuh"\n', [tmp_path]
    )
    words = [line for line in found.text.splitlines() if not line.startswith("//")]
    assert words == ["TWO", "ONE", "TWO"]
    assert sorted(path.name for path in found.files) == ["one.cuh", "two.cuh"]
    unused = '// #include "one.cuh"\n/*\n#include "one.cuh"\n*/\n'
    assert with_headers(unused, [tmp_path]).text == unused
    assert with_headers('\n#include "three.cuh"\n', [tmp_path]).missing == ((2, "three.cuh"),)


@pytest.mark.parametrize(
    "line",
    [
        "#include <cuda_fp16.h>",
        '#include "cuda_fp16.h"',
        "# include <cuda_fp16.h>",
        "  #include <cuda_fp16.h>",
        "#include <vector_types.h>",
        '  #  include "math_constants.h"',
    ],
)
def test_headers_of_cuda_are_found_however_the_line_is_written(line: str) -> None:
    assert compile_cuda(line + EMPTY, "sm_90").kernels


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("nv/target", "pip install nvidia-cuda-cccl"),
        ("crt/mma.h", "pip install nvidia-cuda-crt"),
        ("curand_kernel.h", "pip install nvidia-curand"),
    ],
)
def test_headers_of_further_packages_name_them(name: str, remedy: str) -> None:
    message = f'kernel.cu(1): catastrophic error: could not open source file "{name}"'
    assert cuda_headers.missing_header(message, 13) == f": {remedy}"
    assert cuda_headers.missing_header(message, 12) == f": {remedy}-cu12"
    assert cuda_headers.missing_header("kernel.cu(1): error: no", 13) == ""


def test_binaries_are_kept_apart_by_all_that_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "outer.h").write_text('#include "inner/inner.h"\n')
    (tmp_path / "inner" / "inner.h").write_text("#define ONE 1\n")
    monkeypatch.setattr(cuda_headers, "_folders", lambda: (str(tmp_path),))
    cuda_headers._digest.cache_clear()
    plain, included = nvrtc_label(EMPTY), nvrtc_label("#include <outer.h>" + EMPTY)
    assert plain != included
    (tmp_path / "inner" / "inner.h").write_text("#define ONE 2\n")
    cuda_headers._digest.cache_clear()
    assert nvrtc_label("#include <outer.h>" + EMPTY) != included
    assert nvrtc_label(EMPTY) == plain
    monkeypatch.setattr(nvrtc, "_library_bytes", lambda: 1)
    assert nvrtc_label(EMPTY) != plain
    cuda_headers._digest.cache_clear()
