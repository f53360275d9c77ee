"""Whether this machine's clock is right: by its time, and by what the kernel knows of NTP."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

from penstock.maintenance.machine.need import FINE, PROBLEM, WARNING, Check

# A clock that is before the release of this version of Penstock is wrong.
_BUILT_S = 1_767_225_600
# adjtimex(2): the state of a clock that is not synchronised, and the bit that says so
_TIME_ERROR, _STA_UNSYNC = 5, 0x40
# exists if systemd-timesyncd has set the clock since the boot
_TIMESYNC = Path("/run/systemd/timesync/synchronized")


class _Timex(ctypes.Structure):
    """The beginning of `struct timex`; with no `modes` the call only reads."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("most_error_us", ctypes.c_long),
        ("error_us", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def check_clock() -> Check:
    return clock(time.time(), is_synchronised())


def clock(now_s: float, synchronised: bool | None) -> Check:
    """Pure; `synchronised` is None if that is not known."""
    found = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    remedy = "set it (timedatectl set-ntp true): messages are stored with their time"
    if now_s < _BUILT_S:
        return Check("clock", PROBLEM, found, remedy)
    if synchronised is None:
        return Check("clock", FINE, f"{found}; whether NTP sets it is unknown")
    if synchronised:
        return Check("clock", FINE, f"{found}, set by NTP")
    remedy = "have NTP set it: timedatectl set-ntp true, or chronyd; messages have its time"
    return Check("clock", WARNING, f"{found}, which NTP does not set", remedy)


def is_synchronised() -> bool | None:
    """Whether the kernel says so; None where it does not tell."""
    found = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(found))
    except (AttributeError, OSError):  # another system, or another C library
        return None
    if state < 0:  # a container may forbid it
        return _TIMESYNC.exists() or None
    return state != _TIME_ERROR and not found.status & _STA_UNSYNC
