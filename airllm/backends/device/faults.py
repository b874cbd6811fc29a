"""What goes wrong with a device while a model is on it: each error names the device and says what to do."""

from __future__ import annotations

MEMORY, LOST, COMPILE = "memory", "lost", "compile"  # the kinds of faults

_FOUND = {
    MEMORY: "{device} has no memory left: {reason}",
    LOST: "{device} was lost: {reason}",
    COMPILE: "{device} does not compile a kernel: {reason}",
}
_REMEDY = {
    MEMORY: "close what else uses the device, keep less there (device_memory=, gpu_layers=)",
    LOST: "open the model again, look at the driver's messages in the system's log",
    COMPILE: "update the device's driver, choose another backend (backend=)",
}


class DeviceFault(RuntimeError):
    """A device cannot go on with what it computes. `kind`: MEMORY, LOST or COMPILE; `device`: its line in
    messages; `reason`: what the driver says.
    """

    def __init__(self, kind: str, device: str, reason: str):
        self.kind, self.device, self.reason = kind, device, reason
        found = _FOUND[kind].format(device=device, reason=reason.rstrip(". "))
        super().__init__(f"{found}; {_REMEDY[kind]}, or let another backend go on (fallback_backends=)")
