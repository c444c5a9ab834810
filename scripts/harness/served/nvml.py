"""What NVML says of the GPU: its limits, the energy and the clock of a pass; nothing where NVML is not there."""

import statistics
import time
from collections.abc import Callable

import pynvml
import torch

READ_S = 0.8  # the counter moves a few times a second, and the reading begins and ends with a move
LOST_S = 5.0  # a counter that has not moved for so long does not count


def handle(device: str):
    """Of a CUDA device; None where NVML cannot be asked."""
    try:
        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # no library, no device of that name (in a container), or a CPU
        return None


def limits(gpu) -> dict[str, int]:
    """Power cap in W, and the highest clocks in MHz; what the GPU does not tell is left out."""
    asked = {
        "power_cap_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) // 1000,
        "max_sm_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "max_memory_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
    }
    found = {}
    for name, ask in asked.items() if gpu else ():
        try:
            found[name] = ask()
        except pynvml.NVMLError:
            continue
    return found


def nvlink_gb_s(gpu) -> float | None:
    """GB/s that the GPU's active NVLinks send together, by NVIDIA's data sheets; None without any."""
    count, version = 0, 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS if gpu else 0):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(gpu, link):
                count, version = count + 1, pynvml.nvmlDeviceGetNvLinkVersion(gpu, link)
        except pynvml.NVMLError:  # there is no such link
            continue
    # NVML counts versions: 7 is NVLink 5, of twice the rate of NVLink 2 to 4
    return count * (50.0 if version >= 7 else 25.0) or None


def energy(gpu, some_passes: Callable[[], int]) -> tuple[float, int] | None:
    """(joules a pass, median SM clock in MHz) of about READ_S seconds of passes; None where NVML does not tell.

    some_passes: runs passes, waits for their end and returns their number.
    """

    def joules() -> float:
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3

    try:
        begin, last, clocks = time.monotonic(), joules(), []
        first, passes, counted = None, 0, 0  # counted: passes up to the counter's last move
        while first is None or time.monotonic() - begin < READ_S or not counted:
            if time.monotonic() - begin > LOST_S:
                return None
            passes += some_passes()
            clocks.append(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))
            if (now := joules()) != last:
                last = now
                if first is None:
                    first, passes, begin = now, 0, time.monotonic()
                else:
                    counted = passes
        return (last - first) / counted, round(statistics.median(clocks))
    except pynvml.NVMLError:
        return None
