"""The verifier's own loops, which share no code with what they check: compiled, or in Python.

`pure` says what they do, and neither may import anything of shared/. PENSTOCK_PURE=1 chooses the
one in Python, as for the loops of brokers and clients.
"""

from __future__ import annotations

import os
from contextlib import suppress

from penstock.maintenance.verify_loops import pure
from penstock.shared.loops.active import VARIABLE

# Raise it with every change of what the two take or return: an editable install keeps using the
# module that it has compiled until it is installed again.
INTERFACE = 1

check, chain = pure.check, pure.chain
if os.environ.get(VARIABLE, "") in ("", "0"):
    with suppress(ImportError):
        from penstock.maintenance.verify_loops import compiled

        if compiled.INTERFACE == INTERFACE:
            check, chain = compiled.check, compiled.chain
