"""What `emit` says of a source beside its text: how it is launched, and what is wrong with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import main
from autotune.core.errors import FamilyError
from autotune.families.family import KernelFamily
from autotune.families.gpu.cuda_layout import WIDTH, laid_out
from autotune.families.gpu.cuda_source import kernels_of
from autotune.families.gpu.launch import kernel_layout
from autotune.families.gpu.launched import check_launches
from autotune.families.gpu.planning import Planner
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.launch.code import make_program
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import catalog, load_families

H200 = find_gpu("h200").limits
PROBLEM = Gemm(300, 200, 100)

TOML = """\
family = "halves"
operation = "gemm"
target = "cuda"
template = "halves.cu.j2"
accuracy = "ieee"
summary = "Zeros first, products in between, and halves of them last"

[parameters]
rows = { values = [1, 2, 4], default = 2 }
clear = { values = [0, 1], default = 0 }
splits = { values = [1, 2, 4], default = 1, runtime = true }

[derived]
threads = "32 * rows"
blocks = "ceildiv(M, rows)"
words = "itemsize / 4"
registers = "32 + words"
shared_bytes = "0"

[[restrictions]]
expr = "rows < 4 or M >= 1000"
reason = "tall blocks are for tall operands"

[[restrictions]]
expr = "min(rows, 4) * 8 <= 64"
reason = "SAID"

[launch]
grid = ["blocks", "1", "splits"]
block = ["32", "rows", "1"]
shared_bytes = "0"
workspace_bytes = "splits * M * itemsize"
zeroed_bytes = "4 * (splits > 1)"

[[launch.before]]
kernel = "clear_all"
when = "clear == 1"
grid = ["1", "1", "1"]
block = ["32", "1", "1"]

[[launch.after]]
kernel = "halve"
when = "splits == 2"
grid = ["blocks", "1", "1"]
block = ["64", "1", "1"]

[presets.tall]
summary = "four rows"
rows = 4
clear = 1
"""
TEMPLATE = """\
{% import "_lib/cuda_config.cuh.j2" as config %}
/*
 * {{ banner | replace("\\n", "\\n * ") }}
 */
constexpr int ROWS = {{ rows }};
{% if assert_functions %}
// {{ assert_functions | join(" ") }}
{% endif %}
{{ config.asserts(static_asserts, assert_functions) }}
/* __global__ void not_a_kernel(int m) */
extern "C" __global__ void __launch_bounds__(32 * (ROWS + 1)) {{ entry }}({{ arguments }}) {}
{% if clear %}
extern "C" __global__ void clear_all({{ arguments }}) {}
{% endif %}
extern "C" __global__ void halve({{ arguments }}) {}
"""


def halves(folder: Path, toml: str = TOML, template: str = TEMPLATE) -> KernelFamily:
    folder.mkdir(exist_ok=True)
    (folder / "halves.toml").write_text(toml)
    (folder / "halves.cu.j2").write_text(template)
    return catalog("cuda", extra=[folder])["halves"]


def emitted(
    folder: Path, capsys: pytest.CaptureFixture[str], *more: str, code: int = 0
) -> tuple[dict[str, Any], str]:
    where = ["--target", "cuda", "--device", "h200", "--shape", "300x200x100"]
    given = ["emit", "halves", *where, "--families", str(folder), "--json", *more]
    assert main(given) == code
    out, err = capsys.readouterr()
    return json.loads(out) if out else {}, err


def test_a_launch_is_told_for_the_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    halves(tmp_path)
    document, err = emitted(tmp_path, capsys, "--set", "splits=2", "--set", "clear=1")
    steps = [
        ("clear_all", [1, 1, 1], [32, 1, 1]),
        ("gemm", [150, 1, 2], [32, 2, 1]),
        ("halve", [150, 1, 1], [64, 1, 1]),
    ]
    assert document["launch"] == {
        "kernels": [
            {
                "kernel": kernel,
                "grid": grid,
                "block": block,
                "dynamic_shared_bytes": 0,
                "cluster": [1, 1, 1],
            }
            for kernel, grid, block in steps
        ],
        "workspace_bytes": 2400,
        "zeroed_bytes": 4,
        "tensor_maps": [],
        "runtime": {"splits": 2},
    }
    assert "clear_all on 1 x 1 x 1 blocks of 32 x 1 x 1, then gemm on 150 x 1 x 2 blocks" in err
    assert "workspace of 2400 bytes, the first 4 zero; splits = 2 at the call" in err
    assert document["errors"] == []


def test_the_banner_tells_it_for_all_shapes(tmp_path: Path) -> None:
    family = halves(tmp_path)
    text = render(family, {"rows": 2, "clear": 1, "splits": 1}).text
    assert text == render(family, {"rows": 2, "clear": 1, "splits": 4}).text
    comment = text.partition("*/")[0].replace("\n *", "\n")
    told = " ".join(comment.split())
    for part in (
        "launch: grid (blocks, 1, splits), block (32, 2, 1), no dynamic shared memory",
        "workspace: splits * M * 4 bytes, of which the first 4 * (splits > 1) are zero",
        "before it: clear_all, grid (1, 1, 1), block (32, 1, 1)",
        "after it, where splits == 2: halve, grid (blocks, 1, 1), block (64, 1, 1)",
        "blocks = ceildiv(M, 2)",
    ):
        assert part in told
    assert "clear_all, grid" not in render(family, {"rows": 2, "clear": 0, "splits": 1}).text


def test_nothing_of_a_file_ends_the_comment(tmp_path: Path) -> None:
    toml = TOML.replace('"splits * M * itemsize"', "\"splits * M * 4 * (M == '*/')\"")
    text = render(halves(tmp_path, toml), {"rows": 2, "clear": 0, "splits": 1}).text
    assert "workspace: (see the family's file) bytes" in text.partition("*/")[0]


def test_configurations_in_banners_are_json() -> None:
    for family in load_families(target="cuda").values():
        problem = Gemm(512, 512, 512, family.dtypes[0])
        default = family.default(problem, H200)
        layout = kernel_layout(family, problem.layout)
        text = render(family, default, dtype=problem.dtype, layout=layout).text
        opening = text.partition("*/")[0]
        assert all(len(line) <= WIDTH for line in opening.splitlines())
        plain = re.sub(r"\n \* ?", "\n", opening)
        found, _ = json.JSONDecoder().raw_decode(plain.partition("configuration: ")[2])
        compiled = {n: v for n, v in default.items() if n not in family.runtime_parameters}
        assert found == compiled


def test_kernels_that_there_are_not_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = halves(tmp_path, TOML.replace('"halve"', '"havle"'))
    where = ["--target", "cuda", "--device", "h200", "--families", str(tmp_path)]
    assert main(["emit", "halves", *where, "--set", "splits=1"]) == 0
    assert main(["emit", "halves", *where, "--set", "splits=2"]) == 2
    message = "halves.toml: launch.after[1].kernel must be a kernel of the emitted source, got "
    told = capsys.readouterr().err
    assert f"{message}'havle'; there are gemm, halve; did you mean 'halve'?" in told
    with pytest.raises(FamilyError, match="got 'havle'; there are"):
        make_program(
            family, {"rows": 2, "clear": 0, "splits": 2}, PROBLEM, H200, ProgramCache(tmp_path)
        )


def test_what_follows_from_constants_is_known_when_it_is_rendered(tmp_path: Path) -> None:
    family = halves(tmp_path, TOML.replace('"clear_all"', '"not_a_kernel"'))
    render(family, {"rows": 1, "clear": 0, "splits": 1})
    with pytest.raises(FamilyError, match=r"launch.before\[1\].kernel must be .*; there are gemm"):
        render(family, {"rows": 1, "clear": 1, "splits": 1})


def test_every_kernel_of_the_shipped_families_is_there() -> None:
    for family in load_families(target="cuda").values():
        problem = replace(PROBLEM, dtype=family.dtypes[0], accuracy=family.accuracy)
        configuration = family.default(problem, H200)
        layout = kernel_layout(family, problem.layout)
        source = render(family, configuration, dtype=problem.dtype, layout=layout)
        kernels = kernels_of(source.text)
        assert "gemm" in kernels
        plan = Planner(family, configuration, problem.dtype, H200).plan(problem)
        check_launches(family, plan, kernels)


def test_a_preset_is_where_one_begins_or_near_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    halves(tmp_path)
    document, err = emitted(tmp_path, capsys, "--preset", "tall")
    assert document["configuration"] == {"rows": 2, "clear": 1, "splits": 1}
    assert "preset tall is not valid for 300x200x100-float32 here; the nearest has" in err
    assert "rows = 2 instead of 4" in err
    document, _ = emitted(tmp_path, capsys, "--preset", "tall", "--set", "rows=1")
    assert document["configuration"] == {"rows": 1, "clear": 1, "splits": 1}
    _, err = emitted(tmp_path, capsys, "--preset", "tall", "--set", "rows=4", code=2)
    assert "no valid configuration has" in err


@pytest.mark.slow
def test_a_source_that_does_not_compile_is_shown_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    halves(
        tmp_path,
        template=TEMPLATE.replace("{}\n{% if clear", "{ int x = no;\n  more; }\n{% if clear"),
    )
    document, err = emitted(tmp_path, capsys, code=1)
    first, second = document["errors"]
    assert first["message"] == 'identifier "no" is undefined'
    assert second["message"] == 'identifier "more" is undefined'
    lines = document["source"].split("\n")
    for error in (first, second):
        assert error["source"][str(error["line"])] == lines[error["line"] - 1]
    assert "  more; }" in second["source"].values()
    assert f">{second['line']:>6} |   more; }}" in err


def test_only_what_asserts_call_is_defined(tmp_path: Path) -> None:
    text = render(halves(tmp_path), {"rows": 1, "clear": 0, "splits": 1}).text
    assert "// minimum\n" in text
    assert 'static_assert(minimum(ROWS, 4) * 8 <= 64, "SAID");' in text
    assert "ITEMSIZE" not in text.partition("static_assert")[2]  # nothing of the estimate's words
    plain = TOML.replace("min(rows, 4)", "rows")
    text = render(halves(tmp_path, plain), {"rows": 1, "clear": 0, "splits": 1}).text
    assert "minimum" not in text


NAMES = st.text("abcdefgh_", min_size=1, max_size=30)


@given(st.lists(NAMES, min_size=1, max_size=20), st.integers(0, 90), NAMES)
def test_long_parameter_lists_are_wrapped_and_say_the_same(
    names: list[str], indent: int, kernel: str
) -> None:
    arguments = ", ".join(f"const float* {name}" for name in names)
    line = f"{'x' * indent} {kernel}({arguments}) {{"
    wrapped = laid_out(line, arguments)
    assert " ".join(wrapped.split()).replace("( ", "(") == " ".join(line.split())
    if indent + len(kernel) < 60:
        assert all(len(each) <= WIDTH for each in wrapped.split("\n"))
    column = wrapped.index("(") + 1
    for each in wrapped.split("\n")[1:]:
        assert len(each) - len(each.lstrip()) in (4, column)


@given(
    st.lists(st.sampled_from(["A % B == 0", "C <= 16", "VERY_LONG_NAME == OTHER"]), min_size=1),
    st.text("abc defg", min_size=1, max_size=300),
)
def test_long_asserts_are_wrapped_and_say_the_same(parts: list[str], reason: str) -> None:
    line = f'static_assert({" && ".join(parts)}, "{reason}");'
    wrapped = laid_out(line, "")
    joined = re.sub(r'"\n +"', "", wrapped)
    assert re.sub(r"\n +", " ", joined) == line
    if " " in reason.strip() or len(reason) < 60:
        assert all(len(each) <= WIDTH + 40 for each in wrapped.split("\n"))


def test_kernels_are_found_whatever_stands_around_them() -> None:
    text = """\
// __global__ void commented(int m)
template <int N> __global__ __launch_bounds__(N * (2 + 1), 1) void first(int m) {}
extern "C" __global__ void
    __maxnreg__(128)
second(
    float* a) {}
__device__ void helper(int);
extern "C" [[nodiscard]] __global__ void first(int m);
"""
    assert kernels_of(text) == ("first", "second")


def test_keys_that_there_are_not_are_listed_with_all_there_are(tmp_path: Path) -> None:
    for wrong, right in (("afters", "resident_blocks"), ("workspace", "zeroed_bytes")):
        toml = TOML.replace("[launch]\n", f'[launch]\n{wrong} = "1"\n')
        with pytest.raises(FamilyError, match=f"launch.{wrong} is not a key; .*{right}"):
            halves(tmp_path, toml)
