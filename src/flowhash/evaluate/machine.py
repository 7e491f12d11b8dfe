"""What a result was measured on, for people who compare it with theirs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

PACKAGES = ("numpy", "numba", "torch", "faiss-cpu")


def machine() -> str:
    """The processor, its cores and the versions of what ran on it."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(f"{package} {version.partition('+')[0]}")
    return f"{model}, {os.cpu_count()} cores; {', '.join(found)}"
