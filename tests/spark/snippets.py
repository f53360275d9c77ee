"""Runs pieces of Python that use Spark one after the other: each as a program of its own, with a
session of its own, but in one process. So there is one virtual machine, which gets faster.

Each line of the input is a piece, as a string of JSON; for each there is a line of JSON: what it
has printed, and the error that it has ended by, or "".
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import redirect_stdout
from io import StringIO

from pyspark.sql import SparkSession


def run(code: str) -> tuple[str, str]:
    printed, error = StringIO(), ""
    with redirect_stdout(printed):
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException:
            error = traceback.format_exc()
        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()
    return printed.getvalue(), error


def main() -> None:
    # what Java prints is no answer
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(run(json.loads(line))), file=answers, flush=True)


main()
