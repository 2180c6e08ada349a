"""The public face of targets: all that a target of another package is written with.

`Target` is all that the rest of the engine knows of one, and its docstring is the place to begin.
`autotune.targets.registry` lists the targets, among them those of other packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.core.check import Check as Check
    from autotune.core.check import Status as Status
    from autotune.core.configuration import Candidate as Candidate
    from autotune.core.configuration import Configuration as Configuration
    from autotune.core.deadline import Deadline as Deadline
    from autotune.core.device import Device as Device
    from autotune.core.device import DeviceFingerprint as DeviceFingerprint
    from autotune.core.errors import AutotuneError as AutotuneError
    from autotune.core.errors import CompileError as CompileError
    from autotune.core.errors import InputError as InputError
    from autotune.core.errors import LaunchError as LaunchError
    from autotune.core.errors import MissingDependencyError as MissingDependencyError
    from autotune.core.errors import OperandError as OperandError
    from autotune.core.errors import UnknownNameError as UnknownNameError
    from autotune.core.measurement import Measurement as Measurement
    from autotune.core.measurement import Outcome as Outcome
    from autotune.core.measurement import Series as Series
    from autotune.core.objective import Objective as Objective
    from autotune.core.statistics import median_interval as median_interval
    from autotune.exporting.exportable import Exportable as Exportable
    from autotune.exporting.exportable import Exported as Exported
    from autotune.families.family import Delegate as Delegate
    from autotune.families.family import KernelFamily as KernelFamily
    from autotune.families.family import Language as Language
    from autotune.families.gpu.launch import Binary as Binary
    from autotune.families.modules import load_module as load_module
    from autotune.families.program_cache import ProgramCache as ProgramCache
    from autotune.families.python_source import check_module as check_module
    from autotune.families.rendering import Source as Source
    from autotune.families.rendering import render as render
    from autotune.measuring.backend import Backend as Backend
    from autotune.measuring.backend import Processes as Processes
    from autotune.measuring.backend import WorkerBackend as WorkerBackend
    from autotune.measuring.effort import Baseline as Baseline
    from autotune.measuring.effort import Effort as Effort
    from autotune.measuring.effort import Finals as Finals
    from autotune.measuring.effort import Report as Report
    from autotune.measuring.effort import Stage as Stage
    from autotune.measuring.effort import Work as Work
    from autotune.measuring.effort import silent as silent
    from autotune.measuring.evaluator import Evaluator as Evaluator
    from autotune.operations.operation import Problem as Problem
    from autotune.operations.problem import Gemm as Gemm
    from autotune.serving.background import Job as Job
    from autotune.serving.clock import Clock as Clock
    from autotune.serving.invocation import Invocation as Invocation
    from autotune.serving.kernel import FALLBACKS as FALLBACKS
    from autotune.serving.kernel import BoundKernel as BoundKernel
    from autotune.serving.kernel import Kernel as Kernel
    from autotune.serving.kernel import ProductKernel as ProductKernel
    from autotune.serving.kernel import Request as Request
    from autotune.serving.loading import serve as serve
    from autotune.serving.lookup import MATCHES as MATCHES
    from autotune.serving.lookup import look_up as look_up
    from autotune.serving.lookup import qualities as qualities
    from autotune.serving.reports import Doctor as Doctor
    from autotune.serving.reports import Estimates as Estimates
    from autotune.serving.reports import Exporter as Exporter
    from autotune.serving.reports import Forecast as Forecast
    from autotune.serving.reports import Found as Found
    from autotune.serving.reports import HostCall as HostCall
    from autotune.serving.reports import HostCalls as HostCalls
    from autotune.serving.reports import Resources as Resources
    from autotune.serving.target import Joined as Joined
    from autotune.serving.target import Option as Option
    from autotune.serving.target import Placement as Placement
    from autotune.serving.target import Target as Target
    from autotune.targets.registry import all_options as all_options
    from autotune.targets.registry import home_of as home_of
    from autotune.targets.registry import make_target as make_target
    from autotune.targets.registry import target_class as target_class
    from autotune.targets.registry import target_classes as target_classes
    from autotune.targets.registry import target_names as target_names

_NAMES = {
    "core.check": "Check Status",
    "core.configuration": "Candidate Configuration",
    "core.deadline": "Deadline",
    "core.device": "Device DeviceFingerprint",
    "core.errors": "AutotuneError CompileError InputError LaunchError MissingDependencyError "
    "OperandError UnknownNameError",
    "core.measurement": "Measurement Outcome Series",
    "core.objective": "Objective",
    "core.statistics": "median_interval",
    "exporting.exportable": "Exportable Exported",
    "families.family": "Delegate KernelFamily Language",
    "families.gpu.launch": "Binary",
    "families.modules": "load_module",
    "families.program_cache": "ProgramCache",
    "families.python_source": "check_module",
    "families.rendering": "Source render",
    "measuring.backend": "Backend Processes WorkerBackend",
    "measuring.effort": "Baseline Effort Finals Report Stage Work silent",
    "measuring.evaluator": "Evaluator",
    "operations.operation": "Problem",
    "operations.problem": "Gemm",
    "serving.background": "Job",
    "serving.clock": "Clock",
    "serving.invocation": "Invocation",
    "serving.kernel": "FALLBACKS BoundKernel Kernel ProductKernel Request",
    "serving.loading": "serve",
    "serving.lookup": "MATCHES look_up qualities",
    "serving.reports": "Doctor Estimates Exporter Forecast Found HostCall HostCalls Resources",
    "serving.target": "Joined Option Placement Target",
    "targets.registry": "all_options home_of make_target target_class target_classes target_names",
}
"""Names by the modules that they are from."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES, root="autotune")
