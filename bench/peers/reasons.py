"""Why a bar is missed, by its key in bars.py: facts that were measured by hand, with their command.

Only this part of the page is written and not measured; it has no figure of a table.
"""

_COPY = (
    "of the broker's work for a message of 1 KiB the committer's copy into the page cache of a "
    "new file is the largest part (`penstock bench produce --ack written -o json`)"
)
_READER = (
    "the consumer alone keeps one processor busy, with a step of Python for each message and "
    "its body (`penstock bench consume --ack written -o json`)"
)
_ALONE = (
    "a lone message wakes four or five actors and two clients one after another, each through "
    "ZeroMQ, whose round trip is above; a million messages cost the CPU seconds above"
)
_BUSY = (
    "at that rate the CPU seconds above fill most of two processors, so that messages queue behind "
    "whatever else runs there"
)

REASONS: dict[str, str] = {
    "batches-durable-1024": f"10 times RocketMQ's rate is more than the disk can take; {_COPY}",
    "batches-written-1024": f"both processors together are not enough for that; {_COPY}",
    "batches-written-100": (
        "both processors together are not enough for that, as the CPU seconds above say"
    ),
    "packed-written-1024": f"both processors together are not enough for that; {_COPY}",
    "packed-written-100": (
        "a `send` for each message is a step of Python in the client, whose two threads share one "
        "interpreter; batches have no such step"
    ),
    "packed-durable-1024": f"the disk can take little more; {_COPY}",
    "packed-durable-100": (
        "a `send` for each message is a step of Python in the client, whose two threads share one "
        "interpreter; batches have no such step, and reach the target"
    ),
    "batches-best-written-1024": f"both processors together are not enough for that; {_COPY}",
    "disk": f"the processors were not fully used: the stages wait for each other; {_COPY}",
    "consume-100": _READER,
    "consume-1024": _READER,
    "latency-written-50": _ALONE,
    "latency-durable-50": _ALONE,
    "latency-written-99": _BUSY,
    "latency-durable-99": _BUSY,
    "memory-growth": (
        "heaps grow by a few hundred KiB now and then, less often the longer the run lasts "
        "(memory_mib in performance.json)"
    ),
}
