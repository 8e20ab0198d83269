"""What the process holds, by the operating system's count."""

from __future__ import annotations

from pathlib import Path


def rss_bytes() -> int:
    """Return the resident memory of this process. Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")
