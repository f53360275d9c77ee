"""What the compiled module has; what each is for stands in its twin, `pure`."""

from array import array

from typing_extensions import Buffer

from penstock.maintenance.verify_loops.pure import Checked

INTERFACE: int

def check(
    window: memoryview,
    position: int,
    limit: int,
    checksums: int,
    levels_ms: array[int],
    queues: dict[bytes, int],
    keyed: bool,
) -> Checked: ...
def chain(items: Buffer, first: int, slots: array[int]) -> bytes: ...
