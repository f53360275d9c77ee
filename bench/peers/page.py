"""docs/performance.md, from what a comparison found. No number in it is written by hand.

python -m penstock.bench.peers.page docs/performance.json      writes the page next to it again
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from penstock.bench.peers import both
from penstock.bench.peers.bars import bars_table
from penstock.bench.peers.brokers.peer import CONSUME, DURABLE, PACKED, SINGLE
from penstock.bench.peers.client_bars import client_bars
from penstock.bench.peers.figures import alone
from penstock.bench.peers.table import Comparison, Known, one_line, table
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.plot import write_plots
from penstock.bench.reports.report import Result

PAGE = """\
# Performance

The commands below wrote this page from what they measured;
[performance.json](performance.json) has every single run. Measure your own machine with
`make bench-peers`, or Penstock alone with `penstock bench produce`.

```text
{command}
```

Finished {finished} on {processor}, {cpus} processors, {memory} GiB, Linux {kernel},
Python {python}. The load average was {load_average}. The machine's own limits meanwhile were:

{limits}

## Sending beside other brokers

{packed}

One producer process sends bodies of the given size for {seconds} s with up to {in_flight} messages
unanswered, to {queues} queues where the broker has queues, to one stream otherwise. Figures are
medians over {runs} rounds, in which the brokers take turns; each was warmed up before. Broker and
client are on this machine, on loopback, and share its processors. Every acknowledged message was
found in the broker afterwards. `durable` is on disk before it is acknowledged, `written` is not. MB
are 10^6 bytes of bodies. A latency is from the send to its acknowledgement under this full load, so
it is mostly the queue of {in_flight} messages. CPU seconds are for a million messages. Clients pack
waiting messages into one request by themselves; RocketMQ's does not, and has batches for that.

{peers}

## Few messages in flight

{single}

The same with bodies of 1 KiB and one `send` for each, where few may be unanswered. In a row that
names threads, each thread sends a message and waits for its answer before the next.

## Reading beside other brokers

{consume}

One consumer process reads a backlog from its beginning, again and again for {seconds} s. The
messages ({backlog}) were sent before the clock started, and the broker held all of them. With every
broker the consumer adds up the length and the last byte of every body; each pass must come to the
number of messages and to the sum that were sent. Brokers are set up as for `written`, and nobody
sends meanwhile. Penstock's consumer reads the log's files where the broker is on its machine; "by
the socket" is a consumer that may not.
{same_client}{alone}{plots}{printed}
## What is asked

{bars}

Ratios are those of medians over {runs} rounds; "one run" stands where there was only one. Batches
are compared with batches, and messages that a client packs by itself with those of clients that do
the same.
"""

SAME_CLIENT = """
## RocketMQ's client on both

{rows}

RocketMQ's Java client sends and reads the same on Penstock, through its gateway, and on RocketMQ,
in turns; figures are medians of some rounds. A latency is from a send to its answer, and in the
rows with a pace from when a message was due at the producer until a push consumer had it. CPU
seconds are the broker's, for a million messages. The targets are:

{bars}

```text
{command}
```

Finished {finished}; the load average was {load_average}.
"""

ALONE = """
## Penstock alone

{rows}

`latency` sends 1,000 messages a second and measures from when a message was due at the producer
until its consumer had it. `pipeline` sends at full rate; "queues behind" is how long what is on
disk (`written`: in the log's files) waits for its place in the consume queues, and memory is the
highest PSS of all processes of the broker. Figures are medians of some runs of each.
{failed}"""


def save(found: Comparison, to: Path) -> None:
    """Write performance.json, and the page."""
    to.mkdir(parents=True, exist_ok=True)
    pretty = msgspec.json.format(msgspec.json.encode(found), indent=1)
    (to / "performance.json").write_bytes(pretty + b"\n")
    write_page(found, to)


def write_page(found: Comparison, to: Path) -> None:
    """Write the page and its plots; performance.json is there already."""
    plots = write_plots(to / "performance.json")
    machines = [machine for each in found.machines.values() for machine in each]
    machine = machines[-1]
    page = PAGE.format(
        command=found.command,
        finished=found.finished,
        processor=machine.processor,
        cpus=machine.cpus,
        memory=machine.memory_gib,
        kernel=machine.kernel,
        python=machine.python,
        load_average=_range([each.load_average for each in machines], 1),
        limits=_limits(machines),
        packed=table(found, PACKED),
        single=table(found, SINGLE),
        consume=table(found, CONSUME),
        bars=bars_table(found),
        backlog=", ".join(f"{each:,} of {size} bytes" for size, each in found.backlog.items()),
        seconds=found.seconds,
        in_flight=found.in_flight,
        queues=found.queues,
        runs=found.runs,
        peers="\n".join(_peer(each) for each in found.peers),
        same_client=_same_client(found),
        alone=_penstock_alone(found),
        plots="\n## Over a range\n\n"
        + "\n".join(f"![{_over(name)}]({name})" for name in plots)
        + "\n"
        if plots
        else "",
        printed=printed(to),
    )
    (to / "performance.md").write_text(page)


def printed(to: Path) -> str:
    """Output that commands printed on other days, with comments, from a file next to the page."""
    file = to / "performance-printed.txt"
    return f"\n## As commands have printed it\n\n{file.read_text()}" if file.exists() else ""


def _same_client(found: Comparison) -> str:
    same = found.same_client
    if not same.rows:
        return ""
    loads = [machine.load_average for machine in same.machines]
    return SAME_CLIENT.format(
        rows=both.table(same.rows),
        bars=bars_table(found, client_bars()),
        command=same.command,
        finished=same.finished,
        load_average=_range(loads, 1),
    )


def _penstock_alone(found: Comparison) -> str:
    sweeps = found.sweeps
    if not sweeps.alone and not sweeps.failed:
        return ""
    failed = "".join(f"\n- not measured: {one_line(each)}" for each in sweeps.failed)
    return ALONE.format(rows=_alone(found), failed=failed and f"{failed}\n")


def _over(plot: str) -> str:
    """What a plot's range is, for a reader who cannot see it."""
    return "over " + plot.removeprefix("performance-").removesuffix(".svg").replace("-", " ")


def _range(values: Sequence[float], digits: int) -> str:
    low, high = min(values), max(values)
    shown = f"{low:,.{digits}f}"
    return shown if low == high else f"{shown} to {high:,.{digits}f}"


def _limits(machines: Sequence[Machine]) -> str:
    rows = (
        ("sequential write to a new file, with fdatasync", "MB/s", "write_new_file_mb_per_s"),
        ("the same to an existing file", "MB/s", "write_existing_file_mb_per_s"),
        ("copy into mapped memory that is warm", "MB/s", "memcpy_to_map_mb_per_s"),
        ("ZeroMQ frames of 256 KiB over ipc", "frames/s", "zeromq_frames_per_s"),
        ("ZeroMQ over ipc, there and back", "ms", "zeromq_round_trip_ms"),
    )
    lines = ["| limit | measured | unit |", "|---|--:|---|"]
    for name, unit, key in rows:
        values = _range([getattr(m, key) for m in machines], 2 if unit == "ms" else 0)
        lines.append(f"| {name} | {values} | {unit} |")
    return "\n".join(lines)


def _peer(peer: Known) -> str:
    if peer.missing:
        return f"- {peer.name}: {peer.missing}"
    settings = "; ".join(f"{ack}: {what}" for ack, what in peer.settings.items())
    return f"- {peer.name} {peer.version}; client: {peer.client}; {settings}"


def _alone(found: Comparison) -> str:
    heads = ("kind", "acknowledged", "body", "messages/s", "p50 ms", "p99 ms", "CPU s", "more")
    lines = ["| " + " | ".join(heads) + " |", "|---|---" + "|--:" * 5 + "|---|"]
    for kind, ack in dict.fromkeys((x.kind, x.shape.ack) for x in found.sweeps.alone):
        results = alone(found, kind, ack)
        cells = (
            *(kind, ack, str(results[0].shape.size)),
            f"{median(each.messages_per_s for each in results):,.0f}",
            f"{median(each.p50_ms or 0 for each in results):.2f}",
            f"{median(each.p99_ms or 0 for each in results):.2f}",
            f"{median(each.cpu_s_per_million['total'] for each in results):.1f}",
            _behind(results) if kind == "pipeline" else "",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _behind(results: Sequence[Result]) -> str:
    ahead = "flushed" if results[0].shape.ack == DURABLE else "committed"
    lags = [each.details[f"reput_behind_{ahead}"] for each in results]
    p50, p99 = (median(lag[f"{key}_ms"] for lag in lags) for key in ("p50", "p99"))
    most_ms = max(lag["max_ms"] for lag in lags)
    memory_mib = max(each.details["peak_pss_mib"]["total"] for each in results)
    lag = f"queues behind p50 {p50:.1f}, p99 {p99:.1f}, at most {most_ms:.1f} ms"
    return f"{lag}; {memory_mib:.0f} MiB"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    write_page(msgspec.json.decode(file.read_bytes(), type=Comparison), file.parent)
