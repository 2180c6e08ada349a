from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.errors import CompileError, FamilyError
from autotune.core.paths import data_dir
from autotune.families.family import KernelFamily
from autotune.families.gpu.c_expression import c_text
from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.operations.problem import Gemm
from autotune.space import Expression, UndefinedError
from autotune.targets.families import read_family

TOML = """\
family = "tiny"
operation = "gemm"
target = "cuda"
template = "tiny.cu.j2"
accuracy = "ieee"
summary = "For tests"

[parameters]
sm = { values = [16, 32, 48], default = 32 }
ty = { values = [2, 3, 4], default = 4 }
order = { values = ["rows", "zigzag"], default = "rows" }
padded = { values = [true, false], default = true }

[derived]
rows = "sm / ty"
threads = "rows * 2"
per_thread = "threads / 4 / 2"
registers = "32"
late = "M / sm"
scaled = "sm * 0.5"
shared_bytes = "sm * itemsize * (1 + padded)"

[[restrictions]]
expr = "threads <= max_threads_per_multiprocessor"
reason = "about a limit"
[[restrictions]]
expr = "late >= 1"
reason = "about a size"
[[restrictions]]
expr = "order == 'rows' or ty > 2"
reason = "about text"
[[restrictions]]
expr = "scaled > 1 and sm / ty > 1"
reason = "about fractions"
[[restrictions]]
expr = "ty <= sm <= 32 * ty and (not padded or rows % 2 == 0)"
reason = 'a "quoted" reason'
[[restrictions]]
expr = "shared_bytes // itemsize in [32, 64] and ispow2(sm)"
reason = "sizes"

[launch]
grid = ["1", "1", "1"]
block = ["threads", "1", "1"]
shared_bytes = "0"
"""

TEMPLATE = """\
{% import "_lib/cuda_config.cuh.j2" as config %}
{{ config.opening(banner, ctype, itemsize) }}
// Rows of a tile.
constexpr int SM = {{ sm }};
constexpr int TY = {{ ty }};
constexpr bool PADDED = {{ padded | lower }};

constexpr int ROWS = SM / TY;
constexpr int THREADS = ROWS * 2;
constexpr int SHARED_BYTES = SM * ITEMSIZE * (1 + PADDED);

{{ config.asserts(static_asserts, assert_functions) }}
extern "C" __global__ void __launch_bounds__(THREADS) gemm({{ arguments }}) {
  c[0] = alpha * T(THREADS);
}
"""

CONFIGURATION = {"sm": 32, "ty": 4, "order": "rows", "padded": True}


def tiny(folder: Path, toml: str = TOML, template: str = TEMPLATE) -> KernelFamily:
    (folder / "tiny.toml").write_text(toml)
    (folder / "tiny.cu.j2").write_text(template)
    return read_family(folder / "tiny.toml", (folder, data_dir("templates")))


"""Parameters that do not fit the first line of the kernel lie below those that do."""


def joined(text: str) -> str:
    """Text with every break and the indentation after it as one space."""
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sm": 32, "ty": 3}, "whole number"),
        ({"sm": 16, "padded": False}, "sizes"),
        ({"sm": 16, "padded": True}, None),
    ],
)
def test_an_invalid_configuration_does_not_compile(
    tmp_path: Path, change: dict[str, int], message: str | None
) -> None:
    # Rendering refuses what is not whole, so the source of another one is edited.
    text = render(tiny(tmp_path), CONFIGURATION).text
    for name, value in change.items():
        value = str(value).lower()
        text = re.sub(rf"(constexpr \w+ {name.upper()} =) \w+;", rf"\1 {value};", text)
    if message is None:
        assert compile_cuda(text, "sm_80").kernels
        return
    with pytest.raises(CompileError, match=rf"static assertion failed with .*{message}"):
        compile_cuda(text, "sm_80")


def test_a_workspace_is_the_last_argument(tmp_path: Path) -> None:
    toml = TOML.replace('= "0"\n', '= "0"\nworkspace_bytes = "M * itemsize"\n')
    text = render(tiny(tmp_path, toml), CONFIGURATION).text
    assert "float* __restrict__ c, int ldc, float* __restrict__ workspace) {" in joined(text)


def test_parameters_at_the_call_are_arguments_and_no_constants(tmp_path: Path) -> None:
    toml = TOML.replace('= "0"\n', '= "0"\nworkspace_bytes = "parts * itemsize"\n').replace(
        "[derived]", "parts = { values = [1, 2, 3], default = 1, runtime = true }\n\n[derived]"
    )
    toml = toml.replace(
        "[launch]",
        """[[restrictions]]
expr = "parts < 3 or ty == 4"
reason = "about both"

[launch]""",
    )
    family = tiny(tmp_path, toml)
    one, three = (render(family, {**CONFIGURATION, "parts": parts}) for parts in (1, 3))
    assert one == three
    assert "int ldc, float* __restrict__ workspace, int parts) {" in joined(one.text)
    assert "about both" not in one.text
    problem, limits = Gemm(64, 64, 64), find_gpu("h200").limits
    planner = Planner(family, {**CONFIGURATION, "parts": 3}, problem.dtype, limits)
    plan = planner.plan(problem)
    assert (plan.runtime, plan.workspace_bytes) == ((3,), 12)


def test_the_main_kernel_is_emitted(tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match="must emit a __global__ function 'gemm'"):
        render(tiny(tmp_path, template="void gemm() {}\n"), CONFIGURATION)
    with pytest.raises(FamilyError, match="must emit a __global__ function 'gemm'"):
        render(tiny(tmp_path, template="__global__ void gem() {}\n"), CONFIGURATION)


def test_numba_templates_get_no_c(tmp_path: Path) -> None:
    toml = TOML.replace('target = "cuda"', 'target = "numba-cuda"')
    template = '"""{{ banner }}"""\n\n\ndef gemm():\n    return {{ sm }}, "{{ dtype }}"\n'
    text = render(tiny(tmp_path, toml, template), CONFIGURATION).text
    assert text.endswith('return 32, "float32"\n')
    with pytest.raises(FamilyError, match="'ctype' is undefined"):
        render(tiny(tmp_path, toml, "{{ ctype }}\n"), CONFIGURATION)


# --- C++ says what the restriction language says ---

IDENTIFIERS = {"sm": "SM", "ty": "TY", "flag": "FLAG"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sm % ty == 0", "SM % TY == 0"),
        ("sm % (ty * 2) == 0", "SM % (TY * 2) == 0"),
        ("(sm + 1) % ty != 0", "modulo(SM + 1, TY) != 0"),
        ("sm // ty <= 8", "floordiv(SM, TY) <= 8"),
        ("sm - (ty - 1) > 0 or sm == 1", "SM - (TY - 1) > 0 || SM == 1"),
        ("(sm > 1 or ty > 1) and not flag", "(SM > 1 || TY > 1) && !FLAG"),
        ("not (sm > 1 and ty > 1)", "!(SM > 1 && TY > 1)"),
        ("sm in [1, -2]", "SM == 1 || SM == -2"),
        ("sm not in [1, 2]", "!(SM == 1 || SM == 2)"),
        ("ty < sm < 9", "TY < SM && SM < 9"),
        ("(ty < sm) == flag", "(TY < SM) == FLAG"),
        ("sm ** 2 <= ty", "SM * SM <= TY"),
        ("(sm + ty) ** 2 > -sm * 2", "(SM + TY) * (SM + TY) > -SM * 2"),
        ("min(sm, ty, 4) >= max(2, ceildiv(sm, 3))", None),
        ("ispow2(sm) and flag == True", "ispow2(SM) && FLAG == true"),
    ],
)
def test_the_text_of_c(text: str, expected: str | None) -> None:
    if expected is None:
        expected = "minimum(minimum(SM, TY), 4) >= maximum(2, ceildiv(SM, 3))"
    assert c_text(Expression.parse(text), IDENTIFIERS) == expected


def test_whole_divisions_are_plain_divisions() -> None:
    expression = Expression.parse("(sm / ty) * (sm / (ty * 2))", exact_division=True)
    assert c_text(expression, IDENTIFIERS) == "SM / TY * (SM / (TY * 2))"


@pytest.mark.parametrize(
    "text",
    [
        "sm / ty > 1",
        "sm > 1.5",
        "sm != 'rows'",
        "tx > 1",
        "2 ** sm > 1",
        "sm ** 9 > 1",
        "sm ** 0 == 1",
        f"sm < {2**31}",
    ],
)
def test_what_c_has_no_words_for(text: str) -> None:
    assert c_text(Expression.parse(text), IDENTIFIERS) is None


_LEAVES = st.sampled_from(["sm", "ty", "flag", "0", "1", "3", "-2"])


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operator = st.sampled_from(
        ["+", "-", "*", "//", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
    )
    return st.one_of(
        st.tuples(inner, operator, inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        st.tuples(st.sampled_from(["-", "not "]), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(st.sampled_from(["min", "max", "ceildiv"]), inner, inner).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        inner.map(lambda text: f"ispow2({text})"),
        inner.map(lambda text: f"({text}) in [0, 2, -3]"),
        inner.map(lambda text: f"({text}) ** 2"),
    )


def _value(text: str, names: Mapping[str, int]) -> int | None:
    try:
        value = Expression.parse(text).evaluate(names)
    except UndefinedError:
        return None
    return int(value) if abs(int(value)) < 2**31 else None


@settings(max_examples=15)
@given(
    texts=st.lists(st.recursive(_LEAVES, _wider, max_leaves=8), min_size=30, max_size=30),
    sm=st.integers(-20, 20),
    ty=st.integers(-5, 5),
    flag=st.booleans(),
)
def test_c_computes_the_same_values(texts: list[str], sm: int, ty: int, flag: bool) -> None:
    names = {"sm": sm, "ty": ty, "flag": flag}
    opening = (data_dir("templates") / "_lib" / "cuda_config.cuh.j2").read_text()
    functions = re.findall(r"^__device__ constexpr .*$", opening, re.MULTILINE)
    assert len(functions) == 6
    lines = [
        *functions,
        f"constexpr int SM = {sm}, TY = {ty}; constexpr bool FLAG = {str(flag).lower()};",
    ]
    for text in texts:
        value = _value(text, names)
        condition = c_text(Expression.parse(text), IDENTIFIERS)
        assert condition is not None
        if value is not None and "**" not in text:
            lines.append(f'static_assert(({condition}) == {value}, "{text}");')
    compile_cuda("\n".join(lines), "sm_90")
