"""The public face of targets: what a target of another package is written with.

`Target` is all that the rest of the engine knows of one; `autotune.targets.registry` says which
there are, among them those of other packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.serving.invocation import Invocation as Invocation
    from autotune.serving.kernel import FALLBACKS as FALLBACKS
    from autotune.serving.kernel import BoundKernel as BoundKernel
    from autotune.serving.kernel import Kernel as Kernel
    from autotune.serving.kernel import Request as Request
    from autotune.serving.loading import load_kernel as load_kernel
    from autotune.serving.lookup import MATCHES as MATCHES
    from autotune.serving.lookup import look_up as look_up
    from autotune.serving.lookup import qualities as qualities
    from autotune.serving.reports import Forecast as Forecast
    from autotune.serving.reports import Found as Found
    from autotune.serving.reports import HostCall as HostCall
    from autotune.serving.reports import HostCalls as HostCalls
    from autotune.serving.reports import Resources as Resources
    from autotune.serving.target import Joined as Joined
    from autotune.serving.target import Option as Option
    from autotune.serving.target import Placement as Placement
    from autotune.serving.target import Target as Target
    from autotune.serving.target import Work as Work
    from autotune.targets.registry import all_options as all_options
    from autotune.targets.registry import home_of as home_of
    from autotune.targets.registry import make_target as make_target
    from autotune.targets.registry import target_class as target_class
    from autotune.targets.registry import target_classes as target_classes
    from autotune.targets.registry import target_names as target_names

_HOMES = {
    "BoundKernel": "serving.kernel",
    "FALLBACKS": "serving.kernel",
    "Forecast": "serving.reports",
    "Found": "serving.reports",
    "HostCall": "serving.reports",
    "HostCalls": "serving.reports",
    "Invocation": "serving.invocation",
    "Joined": "serving.target",
    "Kernel": "serving.kernel",
    "MATCHES": "serving.lookup",
    "Option": "serving.target",
    "Placement": "serving.target",
    "Request": "serving.kernel",
    "Resources": "serving.reports",
    "Target": "serving.target",
    "Work": "serving.target",
    "all_options": "targets.registry",
    "home_of": "targets.registry",
    "load_kernel": "serving.loading",
    "look_up": "serving.lookup",
    "make_target": "targets.registry",
    "qualities": "serving.lookup",
    "target_class": "targets.registry",
    "target_classes": "targets.registry",
    "target_names": "targets.registry",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES, root="autotune")
