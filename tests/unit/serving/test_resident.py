"""What look-ups share: read once a process, and again when it has changed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from records import record
from tuned_suspect import PROBLEM, store, tuned

from autotune.core.errors import NotTunedError
from autotune.core.paths import CacheLocations
from autotune.core.session import forget
from autotune.cpu import identity
from autotune.cpu.target import CpuTarget
from autotune.operations.problem import Gemm
from autotune.runtime.loading import load
from autotune.serving import resident
from autotune.serving.lookup import Lookup, look_up
from autotune.store import MatchQuality, TuningCache, schema
from autotune.store.interchange import export_records
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from pathlib import Path


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
