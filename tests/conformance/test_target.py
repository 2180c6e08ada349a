"""What every target must do: a subclass of `TargetConformance` each, also for one from outside.

What touches no device is asked of all of them here; what runs kernels where they can run.
"""

from __future__ import annotations

import ast
import copy
import pickle
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune import NotTunedError, load, tune
from autotune.cli import parse
from autotune.cli.scope import Scope, placed_target
from autotune.core.configuration import Candidate
from autotune.core.device import Device
from autotune.core.errors import FamilyError, InputError, UnknownNameError
from autotune.core.measurement import Outcome
from autotune.cpu.target import CpuTarget
from autotune.distributed.hybrid.target import HybridTarget
from autotune.distributed.mpi.target import MpiTarget
from autotune.families.offers import default_family
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.nvidia.target import CudaTarget, NumbaCudaTarget
from autotune.measuring.effort import Effort
from autotune.operations.problem import Gemm
from autotune.store import MatchQuality
from autotune.targets import (
    Kernel,
    Target,
    Work,
    make_target,
    serve,
    target_class,
    target_names,
)
from autotune.targets.families import load_families
from autotune.targets.registry import rescan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.families.family import KernelFamily

sys.path.append(str(Path(__file__).parents[1] / "toy"))

from installed import install

BRIEF = Effort(budget_s=0.02, interval=0.5, finals_s=0.2)
PROBLEM = Gemm(48, 40, 32)


class TargetConformance:
    """Subclasses give the fixture `target`, and may say which device is asked for."""

    described: str | None = None
    """A device that is not here, for what is asked without running anything."""

    @pytest.fixture
    def target(self) -> Target:
        raise NotImplementedError

    @pytest.fixture
    def device(self, target: Target) -> Device:
        return target.device(PROBLEM, self.described)

    @pytest.fixture
    def families(self, target: Target) -> Mapping[str, KernelFamily]:
        return load_families(target=target.name)

    @pytest.fixture
    def default(
        self, target: Target, device: Device, families: Mapping[str, KernelFamily]
    ) -> Candidate:
        """The default configuration of the default family."""
        name = default_family(families, PROBLEM, device.limits)
        assert name is not None
        family = families[name]
        return Candidate(family.name, family.default(PROBLEM, device.limits))

    def test_is_found_by_its_name(self, target: Target) -> None:
        assert target.name in target_names()
        assert type(make_target(target.name)) is target_class(target.name)
        assert isinstance(target, target_class(target.name))
        assert make_target(target) is target

    def test_its_limits_are_the_names_of_its_language(
        self, target: Target, device: Device
    ) -> None:
        limits = device.limits.names()
        assert limits.keys() == target.language().limits
        assert all(isinstance(value, int) for value in limits.values())

    def test_a_device_is_the_same_read_again(self, target: Target, device: Device) -> None:
        again = target.device(PROBLEM, self.described)
        assert again.fingerprint == device.fingerprint
        assert again.limits == device.limits
        assert again.toolchain == device.toolchain
        assert device.fingerprint.slug.startswith(f"{device.fingerprint.kind}-")
        assert pickle.loads(pickle.dumps(device)) == device

    def test_a_device_is_asked_for_again_as_its_placement_says(
        self, target: Target, device: Device
    ) -> None:
        placement = target.placement(device.fingerprint)
        assert placement.options.keys() <= {option.name for option in target.OPTIONS}
        again = target.of(placement.options)
        assert again.names_devices or placement.device is None
        name = placement.device if self.described else None
        assert again.device(PROBLEM, name).fingerprint == device.fingerprint

    def test_only_some_have_devices_to_choose_from(self, target: Target) -> None:
        if target.names_devices:
            with pytest.raises((InputError, UnknownNameError)):
                target.device(PROBLEM, "no such device")
        else:
            with pytest.raises(InputError):
                target.device(PROBLEM, 0)

    def test_options_are_checked(self, target: Target) -> None:
        with pytest.raises(InputError, match="takes no 'colour'"):
            type(target).of({"colour": "red"})
        for option in target.OPTIONS:
            assert option.help
            assert option.name.isidentifier()
            for choice in option.choices:
                type(target).of({option.name: choice})
            if option.choices:
                with pytest.raises(InputError, match=f"{option.name} must be one of"):
                    type(target).of({option.name: "none of them"})

    def test_the_command_line_has_its_options(
        self, target: Target, device: Device, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            parse(["tune", "--help-all"])
        told = capsys.readouterr().out
        assert target.name in told
        options = target.placement(device.fingerprint).options
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        args = parse(["space", "--target", target.name, *words])
        assert Scope.of(args).target == target.name
        placed = placed_target(target.name, args)
        assert placed.device(PROBLEM, self.described).fingerprint == device.fingerprint
        for option in target.OPTIONS:
            assert option.decides or f"--{option.name.replace('_', '-')} " in told

    def test_a_target_is_data(self, target: Target, device: Device) -> None:
        for other in (copy.copy(target), pickle.loads(pickle.dumps(target))):
            assert other.device(PROBLEM, self.described).fingerprint == device.fingerprint

    def test_the_default_family_is_valid(
        self, default: Candidate, device: Device, families: Mapping[str, KernelFamily]
    ) -> None:
        space = families[default.family].space(PROBLEM, device.limits)
        assert space.rejection(default.configuration) is None

    def test_emitted_source_is_in_its_language(
        self,
        target: Target,
        default: Candidate,
        families: Mapping[str, KernelFamily],
        tmp_path: Path,
    ) -> None:
        family, language = families[default.family], target.language()
        source = render(family, default.configuration, dtype=PROBLEM.dtype)
        assert source.target == target.name
        language.check(family, source.text)
        for wrong in ("", "nothing of the kind"):
            with pytest.raises(FamilyError):
                language.check(family, wrong)
        path = ProgramCache(tmp_path / "programs").write(source, family.name)
        assert path.suffix == language.suffix
        assert (family.launch is not None) == language.launched

    def test_what_is_not_tuned_names_a_command_for_it(self, target: Target) -> None:
        with pytest.raises(NotTunedError) as caught:
            serve(target, self.request())
        told = str(caught.value)
        assert "\n" not in told
        words = shlex.split(told.split("`")[1])
        args = parse(words[words.index("autotune") + 1 :])
        assert Scope.of(args, args.family).target == target.name

    def request(self) -> Any:
        from autotune.targets import Request

        problem = Gemm(47, 39, 31, dtype="float64")
        return Request(problem, "exact", self.described, None, (), None)


class RunningConformance(TargetConformance):
    """Of a target whose devices are here."""

    def operands(self, problem: Gemm) -> tuple[Any, Any]:
        """A and B as the target's kernels take them, the same every time."""
        rng = np.random.default_rng(0)
        return tuple(
            rng.standard_normal(shape).astype(problem.dtype)
            for shape in (problem.a_shape, problem.b_shape)
        )

    def on_host(self, array: Any) -> np.ndarray[Any, Any]:
        """An array of the target as NumPy's."""
        return np.asarray(array)

    def check(self, kernel: Any, problem: Gemm = PROBLEM) -> None:
        a, b = self.operands(problem)
        expected = self.on_host(a).astype(np.float64) @ self.on_host(b).astype(np.float64)
        np.testing.assert_allclose(self.on_host(kernel(a, b)), expected, rtol=1e-3, atol=1e-4)

    def test_a_candidate_is_measured(
        self,
        target: Target,
        device: Device,
        default: Candidate,
        families: Mapping[str, KernelFamily],
        tmp_path: Path,
    ) -> None:
        programs = ProgramCache(tmp_path / "programs")
        with target.evaluator(Work(PROBLEM, families, device, programs, BRIEF)) as evaluator:
            measured = evaluator.evaluate(default, None)
            assert measured.outcome is Outcome.OK, measured
            assert evaluator.device == device

    def test_a_candidate_is_a_kernel(
        self,
        target: Target,
        device: Device,
        default: Candidate,
        families: Mapping[str, KernelFamily],
        tmp_path: Path,
    ) -> None:
        programs = ProgramCache(tmp_path / "programs")
        family = families[default.family]
        self.check(target.kernel(family, default, PROBLEM, device, programs))

    def test_the_library_computes_the_same(self, target: Target) -> None:
        def unused() -> Any:
            raise AssertionError("the library takes plain calls")

        library = target.library(PROBLEM, unused)
        if library is not None:
            self.check(library)

    def test_what_was_tuned_is_loaded(self, target: Target) -> None:
        result = tune(PROBLEM, target=target, trials=1, timeout=60, effort=BRIEF)
        assert result.target == target.name
        assert result.best.target == target.name
        loaded = load(PROBLEM, target)
        assert loaded.match is MatchQuality.EXACT
        assert loaded.record is not None
        assert loaded.record.id == result.serving.id
        for kernel in (loaded, result.kernel, pickle.loads(pickle.dumps(loaded))):
            assert isinstance(kernel, Kernel)
            assert kernel.target == target.name
            self.check(kernel)

    def test_untuned_problems_are_served_by_the_default(self, target: Target) -> None:
        problem = Gemm(19, 23, 29)
        self.check(load(problem, target, match="nearest"), problem)


class TestCpu(RunningConformance):
    @pytest.fixture
    def target(self) -> Target:
        return CpuTarget()

    def test_a_default_has_no_record(self, target: Target) -> None:
        kernel = load(Gemm(19, 23, 29), target, match="nearest")
        assert kernel.match is MatchQuality.DEFAULT
        assert kernel.record is None


class TestToy(RunningConformance):
    """A target that another package brings."""

    @pytest.fixture(autouse=True)
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        folder = tmp_path / "site"
        folder.mkdir()
        monkeypatch.syspath_prepend(str(install(folder)))
        monkeypatch.delitem(sys.modules, "toy_target", raising=False)
        rescan()
        yield
        monkeypatch.undo()
        rescan()

    @pytest.fixture
    def target(self) -> Target:
        return make_target("toy", {"order": "columns", "panel_limit": 32})


class TestDescribedCuda(TargetConformance):
    described = "h200"

    @pytest.fixture
    def target(self) -> Target:
        return CudaTarget()


class TestDescribedNumbaCuda(TestDescribedCuda):
    @pytest.fixture
    def target(self) -> Target:
        return NumbaCudaTarget()


class TestDescribedHybrid(TargetConformance):
    described = "h200"

    @pytest.fixture
    def target(self) -> Target:
        return HybridTarget(4, "blocks")


@pytest.mark.mpi
class TestMpi(TargetConformance):
    @pytest.fixture
    def target(self) -> Target:
        return MpiTarget(2, "distributed")

    def test_a_kernel_belongs_to_a_communicator(
        self, target: Target, device: Device, default: Candidate, tmp_path: Path
    ) -> None:
        families = load_families(target="mpi")
        programs = ProgramCache(tmp_path / "programs")
        with pytest.raises(InputError, match="comm=comm"):
            target.kernel(families[default.family], default, PROBLEM, device, programs)

    def test_what_was_tuned_is_found(self, target: Target) -> None:
        from autotune.targets import look_up

        result = tune(PROBLEM, target=target, trials=1, timeout=60, effort=BRIEF)
        found = look_up(PROBLEM, target, match="exact").match.record
        assert found is not None
        assert found.id == result.serving.id


def test_the_target_from_outside_imports_the_public_faces_alone() -> None:
    tree = ast.parse((Path(__file__).parents[1] / "toy" / "toy_target.py").read_text())
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
        if name is not None and name.partition(".")[0] == "autotune"
    }
    assert imported == {"autotune", "autotune.targets"}
