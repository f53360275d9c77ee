"""`penstock` with what it starts as forks: `python forked_children.py WORDS`, for `penstock WORDS`.

For commands of tests that start brokers and clients by themselves, as those of chaos do. Otherwise
each would pay for a dozen starts. A start that differs, as with a library between a broker and its
disk, is a true one here, too (forked_starts.py).
"""

from __future__ import annotations

import os
import runpy

from forked_starts import PENSTOCK, Forks


def main() -> None:
    forks = Forks()
    forks.install()
    # `make coverage` measures what is started
    forks.is_wanted = "COVERAGE_PROCESS_CONFIG" not in os.environ
    if forks.is_wanted:
        forks.begin()  # at once: a command may count what it has open before and after
    try:
        runpy.run_module(PENSTOCK, run_name="__main__", alter_sys=True)
    finally:
        forks.close()


if __name__ == "__main__":
    main()
