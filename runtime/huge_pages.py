"""Huge pages for weights: a decode step reads every weight once, and 4 KiB pages slow that down.

ONNX Runtime allocates packed weights with malloc, which most kernels back with 4 KiB pages; the
processor then spends part of each step on address translation. Asking the kernel to gather such
memory into 2 MiB pages made decode 7 % faster (SmolLM2-135M int8, 2 x86-64 cores, Linux 6.18).
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

HUGE = 2 << 20  # bytes
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25  # linux/mman.h; COLLAPSE acts at once, since Linux 6.1


def anonymous_regions() -> set[tuple[int, int]]:
    """(start, end) of this process's private writable memory that belongs to no file."""
    if sys.platform != "linux":
        return set()
    regions = set()
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    for line in lines:
        place, permissions, _, _, inode, *_ = line.split()
        if inode == "0" and permissions == "rw-p" and "[stack" not in line:
            start, end = (int(x, 16) for x in place.split("-"))
            regions.add((start, end))
    return regions


def gather(before: set[tuple[int, int]]) -> None:
    """Put memory allocated since ``before`` (from ``anonymous_regions``) into huge pages.

    Advice only: a kernel that cannot or may not simply keeps small pages.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, end in anonymous_regions() - before:
        first, last = -(-start // HUGE) * HUGE, end // HUGE * HUGE
        if first >= last:
            continue
        madvise(first, last - first, MADV_HUGEPAGE)
        for place in range(first, last, HUGE):  # one by one: a hole spoils only its own page
            madvise(place, HUGE, MADV_COLLAPSE)
