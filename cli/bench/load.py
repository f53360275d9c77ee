"""`penstock bench produce`, `consume`, `latency`, `pipeline`, `producers`, `consumers`, `topics`:
under load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options.option_types import COUNT, QUEUES, Finite
from penstock.cli.options.settings import set_option
from penstock.cli.printing.output import output_option, print_json, print_table, progress

if TYPE_CHECKING:
    from penstock.bench.loads.load_process import Moved
    from penstock.bench.loads.target import Where
    from penstock.bench.reports.machine import Machine
    from penstock.bench.reports.report import Result, Shape

Command = Callable[..., Any]
_count = partial(click.option, type=COUNT, show_default=True)
# Options of all kinds of measurement; a kind may leave some out or have other defaults.
_OPTIONS = {
    "size": click.option(
        "--size",
        type=click.IntRange(8, 1 << 30),
        default=1024,
        show_default=True,
        help="Body bytes.",
    ),
    "ack": click.option(
        "--ack",
        type=click.Choice(["durable", "written"]),
        default="durable",
        show_default=True,
        help="On disk, or safe from every process.",
    ),
    "in_flight": _count(
        "--in-flight", default=4096, help="Unanswered messages of a producer at most."
    ),
    "producers": _count("--producers", default=1, help="A process each."),
    "queues": click.option(
        "--queues", type=QUEUES, default=4, show_default=True, help="Queues of the topic."
    ),
    "seconds": click.option(
        "--seconds",
        type=Finite(0.1, 86_400),
        default=5.0,
        show_default=True,
        help="How long each run sends.",
    ),
    "ring": click.option(
        "--ring/--no-ring",
        default=True,
        show_default=True,
        help="Send through shared memory, where the broker is on this machine.",
    ),
    "runs": _count("--runs", default=3, help="How often it is measured."),
}


def _options(*left_out: str) -> Callable[[Command], Command]:
    """The options of a kind. Those that name the broker end up in a Where, the rest in a Shape."""

    def add(command: Command) -> Command:
        kept: list[Command] = [option for name, option in _OPTIONS.items() if name not in left_out]
        store = click.option(
            "--store",
            type=click.Path(path_type=Path),
            help="The broker that runs on this store; else one is started on it, and it is kept.",
        )
        endpoint = click.option(
            "--endpoint",
            nargs=2,
            metavar="PRODUCE CONSUME",
            help="The two endpoints of a broker, instead of --store.",
        )
        broker: list[Command] = [output_option, set_option, endpoint, store]
        for option in broker + kept[::-1]:
            command = option(command)
        return command

    return add


def _measure(
    once: Callable[[Shape, Where, Machine, Moved], Result | Iterable[Result]],
    store: Path | None,
    endpoint: tuple[str, str] | None,
    settings: tuple[tuple[str, str], ...],
    output: str,
    runs: int = 1,
    **shape: Any,
) -> None:
    """Measure the machine once and the kind `runs` times, and print the results."""
    import tempfile

    from penstock.bench.loads.target import Where
    from penstock.bench.reports.machine import measure_machine
    from penstock.bench.reports.report import Result, Shape

    place = Path(tempfile.gettempdir()) if store is None else store
    place.mkdir(parents=True, exist_ok=True)
    where, machine = Where(store, endpoint, settings), measure_machine(place)
    results: list[Result] = []
    with progress("measuring") as moved:
        for run in range(runs):
            found = once(Shape(**shape), where, machine, moved)
            for result in [found] if isinstance(found, Result) else found:
                result.run = run
                results.append(result)
                if output == "json":
                    print_json(result)
    if output == "table":
        _print(results)


def _print(results: list[Result]) -> None:
    many = "consumers" if results[0].kind == "consumers" else "producers"
    print_table(
        (
            "run",
            many,
            "queues",
            "messages",
            "messages/s",
            "MB/s",
            "p50 ms",
            "p99 ms",
            "CPU s/million",
        ),
        [
            (
                r.run,
                getattr(r.shape, many),
                r.shape.queues,
                r.messages,
                round(r.messages_per_s),
                round(r.mb_per_s, 1),
                r.p50_ms,
                r.p99_ms,
                round(r.cpu_s_per_million["total"], 1),
            )
            for r in results
        ],
    )
    limits = results[-1].machine
    click.echo(
        f"\nms: {results[-1].latency_of}; this machine, MB/s: "
        f"{limits.write_new_file_mb_per_s:.0f} to a new file with fdatasync, "
        f"{limits.write_existing_file_mb_per_s:.0f} to an existing one, "
        f"{limits.memcpy_to_map_mb_per_s:.0f} into memory; "
        f"{limits.zeromq_frames_per_s:.0f} frames of 256 KiB a second through ZeroMQ"
    )
    for result in results:
        if "stages" in result.details:
            _print_stages(result)


def _print_stages(result: Result) -> None:
    """Where messages that came alone spent their time: medians in microseconds."""
    click.echo(f"\nrun {result.run}, in microseconds:")
    columns = ("stage", "process", "messages", "at p50", "at p99", "its wake", "its work")
    fields = (
        "stage",
        "process",
        "messages",
        "at_p50_us",
        "at_p99_us",
        "wake_p50_us",
        "work_p50_us",
    )
    print_table(columns, [[stage[field] for field in fields] for stage in result.details["stages"]])


@click.command(
    epilog="""\b
Examples:
  penstock bench produce
  penstock bench produce --size 100 --ack written --producers 2 --runs 5
  penstock bench produce --set transient_store_pool_enable=false -o json
"""
)
@_options()
def produce(**options: Any) -> None:
    """How many messages a second producers get acknowledged.

    Every run starts a broker of its own, unless one is named. In the end as many messages must be
    stored as were acknowledged.
    """
    from penstock.bench.log.produce import bench_produce

    _measure(bench_produce, **options)


@click.command(
    epilog="""\b
Examples:
  penstock bench consume
  penstock bench consume --size 100 --queues 1 -o json
  penstock bench consume --ack written --consumers 2
  penstock bench consume --no-direct
  penstock bench consume --size 100 --bodies
  penstock bench consume --size 100 --arrow
"""
)
@_options()
@_count("--consumers", default=1, help="A process each, which reads everything.")
@click.option(
    "--direct/--no-direct",
    default=True,
    show_default=True,
    help="Read the log's files, where the broker is on this machine.",
)
@click.option("--bodies", is_flag=True, help="Ask for bodies alone, and for no messages.")
@click.option("--arrow", is_flag=True, help="Ask for all columns of Arrow, and for no messages.")
def consume(**options: Any) -> None:
    """How fast consumers read what producers sent in the same time.

    Every pass over it must find every message.
    """
    if options["bodies"] and options["arrow"]:
        raise click.UsageError("--bodies and --arrow are two ways to read: give one of them")
    from penstock.bench.log.consume import bench_consume

    _measure(bench_consume, **options)


@click.command(
    epilog="""\b
Examples:
  penstock bench latency
  penstock bench latency --rate 5000 --ack written -o json
  penstock bench latency --ack written --explain
  penstock bench latency --ack written --beside-busy 1
"""
)
@_options("producers")
@_count("--rate", "rate_per_s", default=1000, help="Messages a second.")
@click.option(
    "--explain",
    is_flag=True,
    help="Stage by stage: when messages that came alone were there, and what each wake cost.",
)
@click.option(
    "--beside-busy",
    type=click.IntRange(0, 1024),
    default=0,
    show_default=True,
    help="Processes that keep a processor busy each, meanwhile.",
)
def latency(explain: bool, beside_busy: int, **options: Any) -> None:
    """How long messages take from a producer to a consumer, at a given rate."""
    from penstock.bench.log.latency import bench_latency

    _measure(partial(bench_latency, explain=explain, beside_busy=beside_busy), **options)


@click.command(
    epilog="""\b
Examples:
  penstock bench pipeline --seconds 30 --runs 1 -o json
"""
)
@_options()
def pipeline(**options: Any) -> None:
    """How far consume queues lag the disk at full rate, and the memory of all processes.

    The table shows what `produce` does; with -o json the lags and the memory are in `details`.
    """
    from penstock.bench.log.pipeline import bench_pipeline

    _measure(bench_pipeline, **options)


@click.command(
    epilog="""\b
Examples:
  penstock bench topics
  penstock bench topics --queues 8 --queues 10000 --runs 1
  penstock bench topics --queues 8 --queues 100000
"""
)
@_options("queues")
@click.option(
    "--queues",
    multiple=True,
    type=click.IntRange(1, 200_000),
    default=(8, 100, 1000, 10_000),
    show_default=True,
    help="How many queues; may be given more than once.",
)
def topics(queues: tuple[int, ...], **options: Any) -> None:
    """What many queues cost: the same load over few and over thousands of them."""
    from penstock.bench.log.topics import bench_topics

    _measure(partial(_over, bench_topics, queues), **options)


@click.command(
    epilog="""\b
Examples:
  penstock bench producers
  penstock bench producers --producers 4 --producers 1000 --size 100 --ack written
"""
)
@_options("producers", "in_flight", "ring")
@click.option(
    "--producers",
    multiple=True,
    type=click.IntRange(1, 20_000),
    default=(4, 1000),
    show_default=True,
    help="How many producers; may be given more than once.",
)
@_count("--in-flight", default=16_384, help="Unanswered messages of all producers at most.")
def producers(producers: tuple[int, ...], **options: Any) -> None:
    """What many producers cost: the same load of few and of a thousand of them.

    They are in two processes, and send through sockets.
    """
    from penstock.bench.log.producers import bench_producers

    _measure(partial(_over, bench_producers, producers), **options)


@click.command(
    epilog="""\b
Examples:
  penstock bench consumers --ack written
  penstock bench consumers --consumers 10 --consumers 1000 --rate 20 --size 100
"""
)
@_options("producers")
@click.option(
    "--consumers",
    multiple=True,
    type=click.IntRange(1, 20_000),
    default=(1, 10, 100, 1000),
    show_default=True,
    help="How many consumers; may be given more than once.",
)
@_count("--rate", "rate_per_s", default=20, help="Messages a second, each for all consumers.")
def consumers(consumers: tuple[int, ...], **options: Any) -> None:
    """What many consumers cost: the same messages to one and to a thousand of them.

    They are in two processes, and each gets every message through a socket.
    """
    from penstock.bench.log.consumers import bench_consumers

    _measure(partial(_over, bench_consumers, consumers), **options)


def _over(
    measure: Callable[..., Iterable[Result]],
    numbers: tuple[int, ...],
    shape: Shape,
    where: Where,
    machine: Machine,
    moved: Moved,
) -> Iterable[Result]:
    return measure(shape, numbers, where, machine, moved)


COMMANDS = (produce, consume, latency, pipeline, producers, consumers, topics)
