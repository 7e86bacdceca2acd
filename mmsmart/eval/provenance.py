"""Where numbers come from: the command, versions, commit, device and processes of a run."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from mmsmart.engine import Engine
from mmsmart.errors import InputError

_PACKAGES = ("mmsmart", "torch", "transformers", "accelerate", "tokenizers", "datasets", "numpy", "pillow")
_GIT_SECONDS = 10
_LAUNCHED = (  # as torchrun, Intel MPI, Open MPI and MVAPICH name a process's number, the count and the local number
    (("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"), 0),
    (("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"), 1),
    (("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"), 0),
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Process:
    """One of the processes that ``accelerate launch`` or ``torchrun`` started; alone without them.

    Attributes:
        number: From 0; process 0 merges the results.
        count: Of all machines.
        local_number: On this machine.
    """

    number: int = 0
    count: int = 1
    local_number: int = 0

    @classmethod
    def from_environment(cls) -> Process:
        """What the launcher's variables say.

        Raises:
            InputError: They are no numbers.
        """
        number, count, local = (_variable(names, default) for names, default in _LAUNCHED)
        if count == 1 and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
            logger.warning("the launcher started one process only; on CPUs: accelerate launch --multi_gpu, or torchrun")
        return cls(number, count, local) if number < count else cls()

    def device(self, asked: str) -> str:
        """The device of this process where the user leaves the choice open: a GPU of its own if there are enough."""
        if asked != "auto" or self.count == 1 or not torch.cuda.is_available():
            return asked
        return f"cuda:{self.local_number % torch.cuda.device_count()}"


def _variable(names: Sequence[str], default: int) -> int:
    name = next((name for name in names if os.environ.get(name)), None)
    if name is None:
        return default
    if not os.environ[name].isdecimal():
        raise InputError(f"the launcher's environment is not understood: {name}={os.environ[name]}")
    return int(os.environ[name])


def provenance(engine: Engine, arguments: Sequence[str]) -> dict[str, Any]:
    """The record of one process's run."""
    target = engine.target
    return {
        "command": " ".join(["python", "-m", "mmsmart.eval", *arguments]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **versions()},
        "git": git_state(),
        "platform": platform.platform(),
        "devices": devices(engine),
        "device_name": device_name(engine),
        "dtype": str(target.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that an answer or its time can depend on."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_state() -> str:
    """The commit of the checkout that the package runs from, ``-dirty`` where files differ; "" outside of one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    command = [
        "git",
        "--no-optional-locks",
        "-C",
        str(root),
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def device_name(engine: Engine) -> str:
    """The device's name for people."""
    device = engine.target.device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.machine()}, {os.cpu_count()} cores"


def devices(engine: Engine) -> list[str]:
    """Every device that the model lies on, told apart between machines."""
    placed = getattr(engine.target.model, "hf_device_map", None) or {"": engine.target.device}
    return sorted({_identity(torch.device(place)) for place in map(_device, placed.values())})


def _device(place: Any) -> str:
    return f"cuda:{place}" if isinstance(place, int) else str(place)


def _identity(device: torch.device) -> str:
    host = platform.node()
    if device.type != "cuda":
        return f"{host} {device.type}"
    number = torch.cuda.current_device() if device.index is None else device.index
    return f"{host} cuda {getattr(torch.cuda.get_device_properties(number), 'uuid', number)}"


def speed_claim(processes: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Whether the times of these processes may be claimed: only when no two of them share a device."""
    used = [device for process in processes for device in process]
    if len(used) == len(set(used)):
        words = "one process" if len(processes) == 1 else f"{len(processes)} processes on devices of their own"
        return {"claimed": True, "reason": words}
    return {
        "claimed": False,
        "reason": f"{len(processes)} processes shared a device ({', '.join(sorted(set(used)))}), so times say nothing",
    }
