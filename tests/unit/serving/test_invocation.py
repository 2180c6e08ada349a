"""What is printed to tune and to load a problem means that problem and all it was given."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import DEVICE

from autotune.cli import parse
from autotune.cli.problems import problems
from autotune.cli.scope import Scope
from autotune.cli.targets import placed_target
from autotune.core.device import Device, DeviceFingerprint
from autotune.core.errors import NotTunedError
from autotune.distributed.hybrid.target import HybridTarget
from autotune.distributed.mpi.identity import device_of
from autotune.distributed.mpi.messages import GpuSet, RankSet
from autotune.gpu.nvidia.target import CudaTarget
from autotune.operations.problem import Gemm, Product
from autotune.runtime.loading import load
from autotune.serving.invocation import Invocation
from autotune.targets.families import find_operation
from autotune.targets.registry import make_target, target_names

TRIANGULAR = Path(__file__).parents[3] / "examples" / "triangular"
MPI = "mpi"
OPTIONS = ("ranks", "local", "gpus", "operands")

sizes = st.integers(1, 1 << 20)
# What a shell or Python would take for something else.
paths = st.text(st.sampled_from("ab c'\"\\$*é\n{"), min_size=1, max_size=8).map("/tmp/{}".format)


def ranks(count: int, nodes: int, *, distributed: bool, gpus: bool) -> DeviceFingerprint:
    """The identity of ranks that nobody has started."""
    described = RankSet(
        count,
        nodes,
        cores=8,
        library="MPICH",
        version="4.3",
        transport="ch4:ofi",
        gpus=GpuSet("NVIDIA H200", count, cuda_aware=False, nccl=False) if gpus else None,
    )
    return device_of(described, DEVICE, distributed=distributed).fingerprint


def h200() -> Device:
    return CudaTarget().device(None, "h200")


@st.composite
def invocations(draw: st.DrawFn) -> Invocation:
    """Lookups of every target, with any of its options."""
    target = draw(st.sampled_from(target_names()))
    device: int | str | None = None
    layout, accuracy, threads, out_dtype = "nn", "ieee", None, None
    dtype = draw(st.sampled_from(["float32", "float64"]))
    if target == MPI:
        gpus = draw(st.booleans())
        nodes = draw(st.integers(1, 3))
        fingerprint = ranks(
            draw(st.integers(1, 64)), nodes, distributed=draw(st.booleans()), gpus=gpus
        )
    elif target == "hybrid":
        placed = HybridTarget(
            draw(st.integers(1, 8)), draw(st.sampled_from(["host", "device", "blocks"]))
        )
        fingerprint = placed.device(None, "h200").fingerprint
        device = draw(st.sampled_from([None, "h200"]))
    else:
        layout = draw(st.sampled_from(["nn", "nt", "tn", "tt"]))
        fingerprint = DEVICE.fingerprint if target == "cpu" else h200().fingerprint
        if target == "cpu":
            accuracy = draw(st.sampled_from(["ieee", "strassen"]))
            threads = draw(st.none() | st.integers(1, 256))
        else:
            device = draw(st.sampled_from([None, 0, 3, "h200"]))
        if target == "cuda" and draw(st.booleans()):
            dtype = draw(st.sampled_from(["float16", "bfloat16"]))
            out_dtype = draw(st.sampled_from([None, "float32"]))
    problem = Gemm(
        draw(sizes),
        draw(sizes),
        draw(sizes),
        dtype=dtype,
        out_dtype=out_dtype,
        layout=layout,
        accuracy=accuracy,
        threads=threads,
    )
    return Invocation.of(
        problem,
        make_target(target),
        fingerprint,
        device=device,
        cache=draw(st.none() | paths),
        extra_families=draw(st.sampled_from([(), (str(TRIANGULAR),)])),
    )


@settings(max_examples=30)  # each reads the families
@given(invocations())
def test_the_command_parses_to_what_it_is_made_from(invocation: Invocation) -> None:
    words = shlex.split(invocation.command())
    launcher, told = [*invocation.placement.launcher], {**invocation.placement.options}
    if launcher:  # the ranks run already
        assert launcher == ["mpiexec", "-n", str(told.pop("ranks"))]
        words = words[len(launcher) :]
    assert words[0] == "autotune"
    args = parse(words[1:])
    assert args.command == "tune"
    scope = Scope.of(args, args.family)
    assert scope.target == invocation.target
    assert problems(args, scope) == [invocation.problem]
    assert args.device == (None if invocation.device is None else str(invocation.device))
    assert args.cache == invocation.cache
    assert tuple(map(str, args.families)) == invocation.families
    assert told == {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    assert placed_target(scope.target, args).name == invocation.target


def evaluated(lines: list[str]) -> tuple[Any, Mapping[str, Any]]:
    """The arguments with which the program would call `load`."""
    called: list[tuple[Any, Mapping[str, Any]]] = []
    names: dict[str, Any] = {"comm": "comm"}
    exec(lines[0], names)  # the names it imports are there
    names["load"] = lambda problem, **options: called.append((problem, options))
    exec("\n".join(lines[1:]), names)
    [call] = called
    return call


@given(invocations(), st.sampled_from([40, 90, 1000]))
def test_the_program_loads_what_it_is_made_from(invocation: Invocation, width: int) -> None:
    problem, options = evaluated(invocation.load_lines(width))
    told = invocation.placement.options
    assert problem == invocation.problem
    expected = {
        "target": invocation.target,
        "device": None if invocation.target == MPI else invocation.device,
        "comm": "comm" if invocation.target == MPI else None,
        **{name: told.get(name) for name in ("local", "gpus", "operands")},
        "cache": invocation.cache,
        "extra_families": [*invocation.families] or None,
    }
    assert options == {name: value for name, value in expected.items() if value is not None}


@given(invocations(), st.sampled_from([60, 90]))
def test_the_program_is_folded_between_arguments(invocation: Invocation, width: int) -> None:
    lines = invocation.load_lines(width)
    longest = max(map(len, invocation.load_lines(width=1)[1:]))
    assert all(len(line) <= max(width, longest) for line in lines)


def test_an_operation_of_ones_own_brings_its_folder() -> None:
    trmm = find_operation("trmm", [TRIANGULAR])
    problem = Product(40, 30, 20, dtype="float64", defined=trmm)
    invocation = Invocation.of(
        problem, make_target("cpu"), DEVICE.fingerprint, extra_families=[str(TRIANGULAR)]
    )
    args = parse(shlex.split(invocation.command())[1:])
    scope = Scope.of(args, args.family)
    assert (scope.target, scope.operation) == ("cpu", "trmm")
    assert problems(args, scope) == [problem]
    loaded, options = evaluated(invocation.load_lines(90))
    assert loaded == problem
    assert options == {"target": "cpu", "extra_families": [str(TRIANGULAR)]}


@pytest.mark.parametrize("named", [False, True], ids=["default cache", "a cache of its own"])
def test_nothing_tuned_names_the_command(tmp_path: Path, named: bool) -> None:
    cache = tmp_path / "my cache" if named else None
    problem = Gemm(33, 44, 55, dtype="float64", layout="tn", threads=1)
    with pytest.raises(NotTunedError) as caught:
        load(problem, "cpu", cache=cache, extra_families=[TRIANGULAR])
    command = str(caught.value).split("`")[1]
    args = parse(shlex.split(command)[1:])
    assert args.cache == (None if cache is None else str(cache))
    assert args.families == [TRIANGULAR]
    assert problems(args, Scope.of(args)) == [problem]


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Gemm(8, 8, 8, dtype="float16"), "dtype must be one of float32, float64"),
        (Gemm(8, 8, 8, accuracy="tf32"), "accuracy must be one of ieee, strassen"),
        (Gemm(8, 8, 8, out_dtype="float64"), "writes float32 results, not float64"),
    ],
)
def test_no_command_is_named_that_would_be_refused(problem: Gemm, reason: str) -> None:
    with pytest.raises(NotTunedError) as caught:
        load(problem, "cpu")
    told = str(caught.value)
    assert reason in told
    assert "autotune tune" not in told
    assert "\n" not in told
