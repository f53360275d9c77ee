"""What a plan of files needs: Spark makes each with a new process, which imports it all again."""

from __future__ import annotations

import subprocess
import sys


def test_a_plan_of_files_imports_no_clients_and_no_functions_of_arrows() -> None:
    heavy = "{'zmq', 'pyarrow.compute', 'penstock.client.reading.consumer'}"
    ran = subprocess.run(
        [sys.executable, "-c"]
        + [f"import sys, penstock.spark.reading.task; print({heavy} & set(sys.modules))"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.stdout.strip() == "set()", ran.stderr
