"""Memory that is read into again and again: never while somebody looks at it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.log_files import KEPT, LEAST_BYTES, ReadBuffers

# The bodies of a batch, again and again: how often the kernel had to hand out a page for one.
_BODIES = """
import resource
from penstock.client.core.log_files import ReadBuffers

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

buffers, each = ReadBuffers(), []
for _ in range(20):
    before, view = faults(), buffers.take(2 << 20)
    bodies = [bytes(view[at : at + 1024]) for at in range(0, len(view), 1024)]
    del bodies, view
    each.append(faults() - before)
print(*each)
"""

SIZES = st.sampled_from([1, LEAST_BYTES - 1, LEAST_BYTES, LEAST_BYTES + 1, 3 * LEAST_BYTES])


def place(view: memoryview) -> int:
    """Whose memory it is."""
    assert view.obj is not None
    return id(view.obj)


@given(st.lists(st.tuples(SIZES, st.integers(0, 5)), max_size=20))
def test_what_somebody_looks_at_stays_as_it_is(steps: list[tuple[int, int]]) -> None:
    buffers, held = ReadBuffers(), list[tuple[int, memoryview]]()
    for number, (size, released) in enumerate(steps):
        view = buffers.take(size)
        assert len(view) == size
        view[:1], view[-1:] = bytes([number]), bytes([number])
        # as a message does: a part of it, and not the whole
        held.append((number, view[-1:]))
        del view
        del held[released : released + 2]
        assert all(part[0] == wrote for wrote, part in held)


def test_memory_is_used_again_when_nobody_looks_at_it_any_more() -> None:
    buffers = ReadBuffers()
    first = buffers.take(LEAST_BYTES + 5)
    second = buffers.take(LEAST_BYTES)
    places = [place(first), place(second)]
    assert places[0] != places[1]
    part = first[3:4]
    del first, second
    third = buffers.take(LEAST_BYTES)
    assert place(third) == places[1]
    del part
    assert place(buffers.take(LEAST_BYTES * 2)) == places[0], "a power of two is long enough"


def test_a_longer_answer_gets_memory_of_its_own() -> None:
    buffers = ReadBuffers()
    for size in (LEAST_BYTES, LEAST_BYTES + 1, 5 * LEAST_BYTES):
        assert len(buffers.take(size)) == size


def test_only_a_few_are_kept_and_none_for_a_consumer_that_has_caught_up() -> None:
    buffers = ReadBuffers()
    views = [buffers.take(LEAST_BYTES) for _ in range(2 * KEPT)]
    places = [place(view) for view in views]
    views.clear()
    again = [buffers.take(LEAST_BYTES) for _ in range(KEPT)]
    assert {place(view) for view in again} == set(places[-KEPT:])
    kept = again[0].obj
    again.clear()
    buffers.take(1)
    assert place(buffers.take(LEAST_BYTES)) != id(kept)


def test_bodies_of_one_batch_after_the_other_take_no_new_memory() -> None:
    # a process of its own: what this one has freed before is what it is about
    said = subprocess.run(
        [sys.executable, "-c", _BODIES], capture_output=True, text=True, check=True
    )
    faults = [int(each) for each in said.stdout.split()]
    # 2 MiB of bodies are 512 pages; at first they are new, as are the buffers
    assert sum(faults[4:]) < 512, faults


def test_two_threads_never_get_the_same() -> None:
    buffers, wrong = ReadBuffers(), list[bytes]()

    def work(mark: bytes) -> Iterator[None]:
        for _ in range(2000):
            view = buffers.take(LEAST_BYTES)
            view[:4] = mark
            yield
            if view[:4] != mark:
                wrong.append(bytes(view[:4]))

    def run(mark: bytes) -> None:
        for _ in work(mark):
            pass

    threads = [threading.Thread(target=run, args=(b"%04d" % number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
