"""Words that everything here is said in, and small tools.

Devices, configurations, measurements and errors as data; paths, deadlines, statistics. Nothing
here imports another package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate as Candidate
    from autotune.core.configuration import Configuration as Configuration
    from autotune.core.deadline import Deadline as Deadline
    from autotune.core.device import Device as Device
    from autotune.core.device import DeviceFingerprint as DeviceFingerprint
    from autotune.core.device import DeviceLimits as DeviceLimits
    from autotune.core.errors import AutotuneError as AutotuneError
    from autotune.core.measurement import Measurement as Measurement
    from autotune.core.measurement import Outcome as Outcome

_HOMES = {
    "AutotuneError": "errors",
    "Candidate": "configuration",
    "Configuration": "configuration",
    "Deadline": "deadline",
    "Device": "device",
    "DeviceFingerprint": "device",
    "DeviceLimits": "device",
    "Measurement": "measurement",
    "Outcome": "measurement",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
