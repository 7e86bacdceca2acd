"""What a device is asked for besides forwards: its memory bandwidth on the spot, its peak memory, and to wait."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from mmsmart.errors import ModelError


def bandwidth_gb_s(device: torch.device, megabytes: int) -> dict[str, float]:
    """Memory bandwidth on the spot: a large copy (read and write counted) and a large read (a sum)."""
    source = torch.ones(megabytes * 2**20 // 4, device=device)
    target = torch.empty_like(source)
    actions: dict[str, tuple[Callable[[], Any], int]] = {
        "copy": (lambda: target.copy_(source), 2 * source.nbytes),
        "read": (lambda: source.sum(), source.nbytes),
    }
    result = {}
    for name, (call, size) in actions.items():
        call()
        times = []
        for _ in range(5):
            wait(device)
            start = time.perf_counter()
            call()
            wait(device)
            times.append(time.perf_counter() - start)
        result[name] = round(size / statistics.median(times) / 1e9, 1)
    return result


def device_of(name: str) -> torch.device:
    """The device of this name.

    Raises:
        ModelError: There is no GPU.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("there is no GPU here; try the script with --device cpu --shapes tiny")
    return torch.device(name)


def wait(device: torch.device) -> None:
    """Waits for everything that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Counts the peak of memory anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gb(device: torch.device) -> float:
    """Most memory that torch held since, in GB; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else 0.0


def free() -> None:
    """Gives back what nothing holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
