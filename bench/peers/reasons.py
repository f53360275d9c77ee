"""Why a bar is missed, by its key in bars.py: facts that were measured by hand, with their command.

This is the only place of the page that is written and not measured; it holds no figure of a table.
"""

_COPY = (
    "of what the broker spends on a message of 1 KiB the committer's copy into the page cache of a "
    "new file is the most (`penstock bench produce --ack written -o json`)"
)

REASONS: dict[str, str] = {
    "batches-durable-1024": f"so many times RocketMQ's rate is more than the disk takes; {_COPY}",
    "batches-written-1024": f"both processors would not do for that; {_COPY}",
    "batches-written-100": "both processors would not do for that, as the CPU seconds above say",
    "packed-written-1024": f"both processors would not do for that; {_COPY}",
    "packed-written-100": (
        "a `send` for each message is a step of Python in the client, whose two threads share one "
        "interpreter; batches have no such step"
    ),
    "disk": f"the processors were not all used: the stages wait for each other; {_COPY}",
    "memory-growth": (
        "the reput kept what it had read of the log mapped. It gives that back since: `penstock "
        "bench pipeline --size 100 --ack written --seconds 600 --runs 1 -o json` told a "
        "growth_pss_mib of -6 then"
    ),
}
