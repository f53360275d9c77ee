"""The script for spark-submit: `spark-submit SCRIPT JOB STORE` is `penstock spark JOB STORE`."""

from __future__ import annotations

import sys

from penstock.cli.main import main

if __name__ == "__main__":
    main(["spark", *sys.argv[1:]])
