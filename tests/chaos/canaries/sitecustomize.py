"""Lets one seeded bug loose in every Python process that has this directory first on PYTHONPATH.

PENSTOCK_CANARY names it. Python imports this file by itself when it starts, before anything of
Penstock is there. The bugs are in canaries.py.
"""

import os

if "PENSTOCK_CANARY" in os.environ:
    from canaries import release

    release(os.environ["PENSTOCK_CANARY"])
