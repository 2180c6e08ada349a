"""What is printed to tune and to load a problem, and what look-ups share."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import DEVICE, record
from tuned_suspect import PROBLEM, store, tuned

from autotune.cli import parse
from autotune.cli.problems import problems
from autotune.cli.scope import Scope, placed_target
from autotune.core.device import Device, DeviceFingerprint
from autotune.core.errors import NotTunedError
from autotune.core.paths import CacheLocations
from autotune.core.session import forget
from autotune.cpu import identity
from autotune.cpu.target import CpuTarget
from autotune.distributed.hybrid.target import HybridTarget
from autotune.distributed.mpi.evaluator import device_of
from autotune.distributed.mpi.messages import GpuSet, RankSet
from autotune.gpu.nvidia.target import CudaTarget
from autotune.operations.problem import Gemm, Product
from autotune.runtime.loading import load
from autotune.serving import resident
from autotune.serving.invocation import Invocation
from autotune.serving.lookup import Lookup, look_up
from autotune.store import MatchQuality, TuningCache, schema
from autotune.store.interchange import export_records
from autotune.targets.families import find_operation
from autotune.targets.registry import make_target, target_names

if TYPE_CHECKING:
    from pathlib import Path


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


def near(problem: Gemm, folder: Path) -> Any:
    return look_up(problem, CpuTarget(), match="nearest", extra_families=[folder])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often databases are opened or looked at, and the processor is read."""
    looks = (schema, "_connect"), (resident, "state_of"), (identity, "usable_threads")
    counted = {name: 0 for _, name in looks}
    for owner, name in looks:
        real = getattr(owner, name)

        def counting(*arguments: Any, name: str = name, real: Any = real) -> Any:
            counted[name] += 1
            return real(*arguments)

        monkeypatch.setattr(owner, name, counting)
    return counted


def test_a_new_shape_opens_nothing(
    tmp_path: Path, reads: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "LOOK_AGAIN_S", 3600.0)
    monkeypatch.setattr(resident, "OTHERS_S", 3600.0)
    store(tmp_path)
    load(Gemm(9, 8, 4), "cpu", match="nearest", extra_families=[tmp_path])
    assert min(reads.values()) > 0
    reads.update(dict.fromkeys(reads, 0))
    for m in range(10, 20):
        load(Gemm(m, 8, 4), "cpu", match="nearest", extra_families=[tmp_path])
    assert set(reads.values()) == {0}
    # Whoever wants it exact is told of this moment.
    load(PROBLEM, "cpu", extra_families=[tmp_path])
    assert min(reads["state_of"], reads["usable_threads"]) > 0


def test_an_exact_look_up_sees_what_has_just_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quality(problem: Gemm) -> MatchQuality | None:
        try:
            found = look_up(problem, CpuTarget(), match="exact", extra_families=[tmp_path])
        except NotTunedError:
            return None
        return found.match.quality

    layer = tmp_path / "layer"
    layer.mkdir(mode=0o755)
    monkeypatch.setenv("AUTOTUNE_RECORDS", str(layer))
    store(tmp_path)
    other, layered = Gemm(20, 8, 4), Gemm(20, 8, 5)
    assert quality(PROBLEM) is MatchQuality.EXACT
    assert quality(other) is quality(layered) is None
    TuningCache(CacheLocations.at().database).add(tuned(tmp_path, other))
    assert quality(other) is MatchQuality.EXACT
    made = tuned(tmp_path, layered)
    folder = layer / made.fingerprint.slug
    folder.mkdir()
    export_records([made], folder / "gemm.jsonl")
    assert quality(layered) is MatchQuality.EXACT
    again = look_up(PROBLEM, CpuTarget(), match="exact", extra_families=[tmp_path])
    assert look_up(PROBLEM, CpuTarget(), match="exact", extra_families=[tmp_path]) is again


def passed(kept: resident.Resident, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the time pass that the device and the families are taken to be as they were."""
    for name in ("_until", "_again"):
        monkeypatch.setattr(kept, name, 0.0)


def test_what_another_process_stores_is_seen(tmp_path: Path) -> None:
    store(tmp_path)
    other = Gemm(20, 8, 4)
    assert near(other, tmp_path).match.quality is MatchQuality.NEAREST
    path = tmp_path / "more.jsonl"
    script = (
        "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path\n"
        "from tuned_suspect import *\n"
        "store(Path(sys.argv[1]), tuned(Path(sys.argv[1]), Gemm(20, 8, 4)))"
    )
    command = [sys.executable, "-c", script, str(tmp_path), *sys.path]
    subprocess.run(command, check=True, cwd=path.parent)
    time.sleep(resident.OTHERS_S)
    assert near(other, tmp_path).match.quality is MatchQuality.EXACT


def test_what_the_process_itself_stores_is_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "OTHERS_S", 3600.0)
    store(tmp_path)
    other = Gemm(20, 8, 4)
    assert near(other, tmp_path).match.quality is MatchQuality.NEAREST
    store(tmp_path, tuned(tmp_path, other))
    found = near(other, tmp_path)
    assert found.match.quality is MatchQuality.EXACT
    # What is stored elsewhere is no change.
    TuningCache(tmp_path / "elsewhere.sqlite").check_writable()
    assert near(other, tmp_path).shared is found.shared


def test_a_record_of_the_problem_comes_before_the_model() -> None:
    def look(problem: Gemm) -> Lookup:
        return look_up(problem, make_target("cuda"), match="nearest", device="NVIDIA H200")

    problem = Gemm(100, 200, 300)
    other = replace(problem, layout="nt")  # of the same sizes
    chosen = look(problem)
    assert chosen.match.quality is MatchQuality.PREDICTED
    own = record(
        problem=problem,
        target="cuda",
        fingerprint=chosen.device.fingerprint,
        candidate=chosen.candidate,
        family_digest=chosen.family.digest,
    )
    before = look(other)
    TuningCache(CacheLocations.at(None).database).add(own)
    assert look(problem).match.record == own
    after = look(other)
    assert after.match == before.match
    assert after.prediction is not None
    lack = f"no record fits {other.label} on NVIDIA H200"
    assert after.match.reason == f"{after.prediction.reason}; {lack}"
    assert after.prediction == before.prediction


def test_reading_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "OTHERS_S", 0.0)  # it is looked at every time
    store(tmp_path)
    first = near(Gemm(9, 8, 4), tmp_path).shared
    TuningCache(CacheLocations.at(None).database).records()
    assert near(Gemm(10, 8, 4), tmp_path).shared is first


@pytest.mark.parametrize("told", [True, False])
def test_an_edited_family_is_seen(
    tmp_path: Path, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path)
    assert near(PROBLEM, tmp_path).match.quality is MatchQuality.EXACT
    template = tmp_path / "suspect.py.j2"
    template.write_text(template.read_text() + "# edited\n")
    if told:
        forget()
    else:
        (kept,) = (each for each in resident._RESIDENT.values() if each._extra == (tmp_path,))
        passed(kept, monkeypatch)
    found = near(PROBLEM, tmp_path)
    assert found.match.quality is MatchQuality.STALE
    # And is not looked at again before its time.
    assert near(PROBLEM, tmp_path).shared is found.shared


def test_fewer_threads_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "usable_threads", lambda *arguments: 4)
    store(tmp_path, tuned(tmp_path, threads=2))
    first = near(PROBLEM, tmp_path).shared
    assert first.device.limits.max_threads == 4
    monkeypatch.setattr(identity, "usable_threads", lambda *arguments: 1)
    passed(first, monkeypatch)
    assert near(PROBLEM, tmp_path).shared.device.limits.max_threads == 1


def test_caps_of_a_problem_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "usable_threads", lambda *arguments: 4)
    store(tmp_path)
    capped = near(replace(PROBLEM, threads=1), tmp_path).shared
    assert capped.device.limits.max_threads == 1
    assert near(PROBLEM, tmp_path).shared.device.limits.max_threads == 4


def test_another_cache_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path)
    assert near(PROBLEM, tmp_path).match.quality is MatchQuality.EXACT
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "other"))
    assert near(PROBLEM, tmp_path).match.quality is MatchQuality.DEFAULT


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_reads_for_itself(tmp_path: Path) -> None:
    store(tmp_path)
    near(PROBLEM, tmp_path)
    child = os.fork()
    if child == 0:
        fresh = not resident._RESIDENT
        found = near(PROBLEM, tmp_path).match.quality is MatchQuality.EXACT
        os._exit(0 if fresh and found else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
