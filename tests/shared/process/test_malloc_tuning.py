"""What the C library keeps: enough for the next frames, and not a flood's."""

from __future__ import annotations

import subprocess
import sys

BEHIND_A_FLOOD = """
import os
from penstock.shared.process.malloc_tuning import Heaps, keep_large_blocks

def own_mib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

keep_large_blocks()
heaps = Heaps(64 << 20)
assert not heaps.give_back()
before = own_mib()
for flood in range(2):
    flood = [bytearray(200_000) for _ in range(2000)]
    assert not heaps.give_back(), "it is in use"
    kept = flood[::100]  # here and there somebody still has a piece
    del flood
    if own_mib() - before > 200:  # elsewhere the library gives it back by itself
        assert heaps.give_back() and own_mib() - before < 40, own_mib() - before
    assert not heaps.give_back(), "once is enough"
"""

AMID_A_FLOOD = """
import os
from penstock.shared.process.malloc_tuning import Heaps, keep_large_blocks

def own_mib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

keep_large_blocks()
heaps = Heaps(64 << 20)
before = own_mib()
flood = [bytearray(200_000) for _ in range(2000)]
kept = flood[::100]
del flood[::2]
if own_mib() - before > 300:  # elsewhere the library gives it back by itself
    assert heaps.give_back() and 150 < own_mib() - before < 250, own_mib() - before
    del flood
    assert heaps.give_back() and own_mib() - before < 40, own_mib() - before
"""

IN_TWO_THREADS = """
import os, threading
from penstock.shared.process.malloc_tuning import Heaps, keep_large_blocks

def own_mib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def flood():
    return len([bytearray(200_000) for _ in range(300)])

keep_large_blocks()
heaps = Heaps(64 << 20)
before = own_mib()
# The library trims no end of another thread's heap: up to 64 MiB stay, whoever asks.
other = threading.Thread(target=flood)
other.start()
other.join()
heaps.give_back()
stays = own_mib() - before
for _ in range(3):
    flood()
    heaps.give_back()
    assert own_mib() - before <= max(64, stays + 16) + 8, (stays, own_mib() - before)
assert not heaps.give_back(), "what stays is not asked for again and again"
"""


def test_behind_a_flood_memory_is_given_back() -> None:
    _run(BEHIND_A_FLOOD)


def test_memory_given_back_amid_a_flood_is_given_back_behind_it() -> None:
    _run(AMID_A_FLOOD)


def test_what_cannot_be_given_back_is_no_leave_to_keep_as_much_again() -> None:
    _run(IN_TWO_THREADS)


def _run(script: str) -> None:
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
