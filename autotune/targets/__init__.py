"""Where kernels run: a folder for each target, with all that is particular to it.

`Target` is all that the rest of the engine knows of one; `autotune.targets.registry` says which
there are, among them those of other packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.targets.base import Joined as Joined
    from autotune.targets.base import Option as Option
    from autotune.targets.base import Placement as Placement
    from autotune.targets.base import Target as Target
    from autotune.targets.base import Work as Work
    from autotune.targets.invocation import Invocation as Invocation
    from autotune.targets.kernel import FALLBACKS as FALLBACKS
    from autotune.targets.kernel import BoundKernel as BoundKernel
    from autotune.targets.kernel import Kernel as Kernel
    from autotune.targets.kernel import Request as Request
    from autotune.targets.loading import load_kernel as load_kernel
    from autotune.targets.lookup import MATCHES as MATCHES
    from autotune.targets.lookup import look_up as look_up
    from autotune.targets.lookup import qualities as qualities
    from autotune.targets.registry import all_options as all_options
    from autotune.targets.registry import home_of as home_of
    from autotune.targets.registry import make_target as make_target
    from autotune.targets.registry import target_class as target_class
    from autotune.targets.registry import target_classes as target_classes
    from autotune.targets.registry import target_names as target_names
    from autotune.targets.reports import Forecast as Forecast
    from autotune.targets.reports import Found as Found
    from autotune.targets.reports import HostCall as HostCall
    from autotune.targets.reports import HostCalls as HostCalls
    from autotune.targets.reports import Resources as Resources

_HOMES = {
    "BoundKernel": "kernel",
    "FALLBACKS": "kernel",
    "Forecast": "reports",
    "Found": "reports",
    "HostCall": "reports",
    "HostCalls": "reports",
    "Invocation": "invocation",
    "Joined": "base",
    "Kernel": "kernel",
    "MATCHES": "lookup",
    "Option": "base",
    "Placement": "base",
    "Request": "kernel",
    "Resources": "reports",
    "Target": "base",
    "Work": "base",
    "all_options": "registry",
    "home_of": "registry",
    "load_kernel": "loading",
    "look_up": "lookup",
    "make_target": "registry",
    "qualities": "lookup",
    "target_class": "registry",
    "target_classes": "registry",
    "target_names": "registry",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
