"""`penstock bench spark` and `rebuild`: what Spark does with stores and brokers, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options.option_types import COUNT, Finite
from penstock.cli.printing.output import output_option, print_json, print_table, progress
from penstock.cli.signals import interrupted_once
from penstock.shared.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.bench.spark.measure import SparkResult


def _counts(ctx: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    return [COUNT(each, parameter, ctx) for each in text.split(",")]


@click.command(
    "spark",
    epilog="""\b
Examples:
  penstock bench spark
  penstock bench spark --kafka --sinks
  penstock bench spark --stream --rate 10000
  penstock bench spark --messages 2000000 --size 100 -o json
""",
)
@click.option(
    "--messages",
    default="500000,2000000",
    show_default=True,
    callback=_counts,
    help="How many in the store, for each size.",
)
@click.option(
    "--size", default="1024,100", show_default=True, callback=_counts, help="Bytes of a body."
)
@click.option("--cores", type=COUNT, default=2, show_default=True, help="Of Spark's: local[N].")
@click.option("--runs", type=COUNT, default=3, show_default=True, help="How often, after one.")
@click.option("--kafka", is_flag=True, help="Beside Kafka, too; Maven fetches it.")
@click.option("--sinks", is_flag=True, help="Measure writing, too.")
@click.option("--stream", is_flag=True, help="Measure a streaming query by a broker's endpoint.")
@click.option(
    "--rate", type=COUNT, default=1000, show_default=True, help="Of --stream: messages/s."
)
@click.option(
    "--seconds",
    type=Finite(1, 86_400),
    default=30.0,
    show_default=True,
    help="Of --stream: how long messages come, and how long none does.",
)
@output_option
def spark(
    messages: list[int],
    size: list[int],
    cores: int,
    runs: int,
    kafka: bool,
    sinks: bool,
    stream: bool,
    rate: int,
    seconds: float,
    output: str,
) -> None:
    """How fast Spark reads a store, beside the same rows as Parquet; Spark is in this process.

    All columns of all rows, read and thrown away, counts by all columns and by one, and the message
    of one key, by the index and by a scan. --kafka sets Spark's source of Kafka beside it, and its
    sink beside that of --sinks, which comes with one that throws its rows away.

    --stream measures a streaming query instead: how old the newest row of each batch is when the
    sink has it, while a producer sends at --rate, and what the query costs a broker at rest.
    """
    if stream:
        _stream(rate, seconds, cores, output)
        return
    from penstock.bench.spark.measure import Amount, bench_spark

    if len(messages) not in (1, len(size)):
        raise InvalidArgument(
            "there are not as many numbers of messages as sizes",
            f"{len(messages)} and {len(size)}",
            "--messages 500000 --size 1024,100",
        )
    amounts = [
        Amount(messages[min(number, len(messages) - 1)], bytes_)
        for number, bytes_ in enumerate(size)
    ]
    with interrupted_once(), progress("reading") as moved:
        results = bench_spark(amounts, cores, runs, kafka=kafka, sinks=sinks, moved=moved)
    if output == "json":
        for result in results:
            print_json(result)
        return
    _print(results)


def _print(results: list[SparkResult]) -> None:
    from penstock.bench.spark.measure import BESIDE

    others: dict[str, list[str]] = {}
    for one, other in BESIDE:
        others.setdefault(one, []).append(other)
    rows = [
        (
            result.body_bytes,
            way,
            round(took, 2),
            round(result.messages / took),
            ", ".join(
                f"{result.ratios[key]:.2f} x {other}"
                for other in others.get(way, [])
                if (key := f"{way} / {other}") in result.ratios
            ),
        )
        for result in results
        for way, took in result.seconds.items()
    ]
    print_table(("body", "way", "seconds", "messages/s", ""), rows)


def _stream(rate: int, seconds: float, cores: int, output: str) -> None:
    from penstock.bench.spark.stream import bench_stream

    with interrupted_once(), progress("streaming") as moved:
        found = bench_stream(rate, seconds, cores, moved)
    if output == "json":
        print_json(found)
        return
    print_table(
        ("messages/s", "batches", "age p50 ms", "p90", "most"),
        [(found.rate_per_s, found.batches, found.p50_age_ms, found.p90_age_ms, found.max_age_ms)],
    )
    click.echo(
        f"\nbroker at rest: {found.rest_percent:g} % of a core, and "
        f"{found.rest_with_stream_percent:g} % with a stream of {found.topics} topics; "
        f"load average {found.load_1m:g}"
    )


@click.command(
    "rebuild",
    epilog="""\b
Examples:
  penstock bench rebuild --gib 1
  penstock bench rebuild --store ./large --gib 5 --runs 2 -o json     make ./large, and keep it
""",
)
@click.option("--store", type=click.Path(path_type=Path), help="Made if it is not there.")
@click.option("--gib", type=Finite(0.001, 10_000), default=1, show_default=True, help="Its log.")
@click.option("--size", type=COUNT, default=1024, show_default=True, help="Bytes of a body.")
@click.option("--cores", default="1,2", show_default=True, callback=_counts, help="Of Spark's.")
@click.option(
    "--runs", type=COUNT, default=1, show_default=True, help="How often; the best counts."
)
@output_option
def rebuild(
    store: Path | None, gib: float, size: int, cores: list[int], runs: int, output: str
) -> None:
    """How long queues and index take to be made again, in one process and on Spark's cores.

    `penstock store rebuild`, pinned to one core, and `penstock spark rebuild`, by turns. The files
    that each makes are compared, byte by byte, with those of the broker.
    """
    from penstock.bench.stores.rebuild import bench_rebuild

    with interrupted_once(), progress("rebuilding") as moved:
        found = bench_rebuild(store, gib, size, cores, runs, moved)
    if output == "json":
        print_json(found)
        return
    click.echo(
        f"{found.messages} messages, {found.log_bytes} bytes of log, {found.keys} keys; all files "
        "are the same"
    )
    print_table(
        ("rebuild", "seconds", "MB/s", "to one process", "worker MiB", "all MiB"),
        [
            (
                f"Spark, local[{row.cores}]" if row.cores else "one process",
                round(row.seconds, 2),
                round(found.log_bytes / row.seconds / 1e6),
                round(row.to_native, 2),
                row.worker_mib,
                row.all_mib,
            )
            for row in found.rows
        ],
    )
