"""A program's own list of shapes, tuned; what a survey of a processor measures."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from cpu_machines import AVX2, AVX512, SINGLE
from records import DEVICE

from autotune import Gemm
from autotune.cli import main
from autotune.core.configuration import Candidate
from autotune.core.errors import InputError
from autotune.core.limits import CpuLimits
from autotune.families.gpu.planning import Planner
from autotune.measuring.effort import Effort
from autotune.surveying import preset_run
from autotune.surveying.pool import worth_knowing
from autotune.surveying.preset_run import PresetStatus, run_preset
from autotune.surveying.presets import preset_of_shapes
from autotune.targets.families import load_families
from autotune.targets.registry import make_target


def listed(folder: Path, *lines: dict[str, object]) -> Path:
    path = folder / "shapes.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_time_goes_where_the_program_spends_its_own(tmp_path: Path) -> None:
    path = listed(
        tmp_path,
        {"shape": "64x64x64", "weight": 10, "target": "cpu"},
        {"shape": "512x512x512", "weight": 10, "target": "cpu"},
        {"shape": "64x64x65", "weight": 1000},
        {"shape": "512x512x512", "weight": 30},
        {"shape": "64x64x64", "target": "cuda"},
    )
    preset = preset_of_shapes(path, target="cpu", seconds=100)
    seconds = {each.problem: each.seconds for each in preset.problems}
    assert sum(seconds.values()) == pytest.approx(100) == pytest.approx(preset.seconds)
    assert list(seconds.values()) == sorted(seconds.values(), reverse=True)
    # A hundred times the weight is ten times the time; the sizes differ by one column.
    ratio = seconds[Gemm(64, 64, 65)] / seconds[Gemm(64, 64, 64)]
    assert ratio == pytest.approx(10, rel=0.02)
    assert seconds[Gemm(512, 512, 512)] > seconds[Gemm(64, 64, 65)]


def test_a_list_says_for_which_target_it_is(tmp_path: Path) -> None:
    one = listed(tmp_path, {"shape": "8x8x8", "target": "cuda"})
    assert preset_of_shapes(one).target == "cuda"
    both = listed(
        tmp_path, {"shape": "8x8x8", "target": "cuda"}, {"shape": "8x8x8", "target": "cpu"}
    )
    with pytest.raises(InputError, match="targets cpu and cuda: choose one with --target"):
        preset_of_shapes(both)
    assert len(preset_of_shapes(both, target="cpu").problems) == 1
    with pytest.raises(InputError, match="shapes of target cpu and cuda only, got --target mpi"):
        preset_of_shapes(both, target="mpi")


def test_a_list_that_grows_is_the_same_run(tmp_path: Path) -> None:
    shape: dict[str, object] = {"shape": "8x8x8"}
    first = preset_of_shapes(listed(tmp_path, shape))
    second = preset_of_shapes(listed(tmp_path, shape | {"weight": 7}, {"shape": "8x8x9"}))
    assert first.digest == second.digest


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("undisturbed")
def test_what_was_tuned_is_kept_when_shapes_are_added(
    tmp_path: Path, warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preset_run, "EFFORT", Effort(budget_s=0.01, finals_s=0.05))

    def statuses(*lines: dict[str, object]) -> dict[str, PresetStatus]:
        preset = preset_of_shapes(listed(tmp_path, *lines), target="cpu", seconds=120)
        results = run_preset(preset, cache=warm_cache, families=["loops"], workers=1, trials=2)
        return {each.problem.label: each.status for each in results}

    old = {"shape": "24x24x24", "layout": "nn", "weight": 3}
    assert statuses(old) == {"24x24x24-float32": PresetStatus.TUNED}
    assert statuses(old | {"weight": 9}, {"shape": "16x8x8"}) == {
        "24x24x24-float32": PresetStatus.KEPT,
        "16x8x8-float32": PresetStatus.TUNED,
    }


@pytest.mark.slow
def test_the_command_tunes_a_list(
    tmp_path: Path,
    warm_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preset_run, "EFFORT", Effort(budget_s=0.01, finals_s=0.05))
    path = listed(tmp_path, {"shape": "24x16x8", "target": "cpu", "dtype": "float64"})
    where = ["--cache", str(warm_cache), "--family", "loops", "--workers", "1"]
    command = ["tune", "--shapes", str(path), "--timeout", "60", "--trials", "2", *where]
    assert main([*command, "--json", "--quiet"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert (document["status"], document["target"]) == ("tuned", "cpu")
    assert document["problem"]["dtype"] == "float64"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--preset", "cpu"], "--preset cpu says itself what is tuned, got --shapes"),
        (["--shape", "8x8x8"], "says itself what is tuned, got --shape"),
        (["--dtype", "float64"], "says itself what is tuned, got --dtype float64"),
        (["--timeout", "0"], "timeout must be more than 0 seconds"),
    ],
)
def test_what_else_says_what_is_tuned_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    path = listed(tmp_path, {"shape": "8x8x8", "target": "cpu"})
    assert main(["tune", "--shapes", str(path), *more]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


FAMILIES = load_families(target="cpu", operation="gemm")
SIZES = (
    (1, 3000, 4000),
    (4000, 3000, 2),
    (9, 9, 9),
    (70, 80, 90),
    (2000, 2000, 2000),
    (900, 8, 900),
)


def pool(limits: CpuLimits, dtype: str = "float32") -> list[Candidate]:
    device = dataclasses.replace(DEVICE, limits=limits)
    problems = [Gemm(*sizes, dtype=dtype) for sizes in SIZES]
    return worth_knowing(problems, make_target("cpu"), device, FAMILIES, seed=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("limits", [AVX512, AVX2, SINGLE], ids=["avx512", "avx2", "single"])
def test_every_program_is_valid_for_a_problem(limits: CpuLimits, dtype: str) -> None:
    found = pool(limits, dtype)
    assert {each.family for each in found} == {"goto", "skinny", "unpacked"}
    for each in found:
        assert any(
            Planner(FAMILIES[each.family], each.configuration, dtype, limits).valid(problem)
            for problem in (Gemm(*sizes, dtype=dtype) for sizes in SIZES)
        )


def test_threads_that_presets_leave_open_are_those_there_are() -> None:
    shared = pool(AVX512)
    assert {each.configuration["threads"] for each in shared} == {1, 2}
    alone = pool(dataclasses.replace(AVX512, max_threads=1))
    assert {each.configuration["threads"] for each in alone} == {1}
    stated = {each for family in FAMILIES.values() for each in family.presets}
    assert len(alone) >= 15, stated
