"""`penstock spark`: jobs over whole stores, on this machine's cores or on a cluster.

`spark.jobs` does the work; this file has options, the session, and printing. Under spark-submit
(see `penstock spark script`) the session is spark-submit's.
"""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.printing.output import output_option, print_json, progress, time_left
from penstock.cli.printing.suggestions import Group
from penstock.cli.signals import end_in_order
from penstock.cli.spark.archive import archive, restore
from penstock.cli.spark.messages import compact, stats
from penstock.cli.spark.session import master_option, spark_session
from penstock.cli.store.changes import (
    directory_argument,
    offline_config,
    print_rebuilt,
    rebuild_options,
)
from penstock.cli.store.command import EXIT_DAMAGED, EXIT_PROBLEM, checksum_option, print_report


@click.group(cls=Group)
@click.pass_context
def spark(ctx: click.Context) -> None:
    """Work on whole stores with Apache Spark.

    Workers read the store's files, so these are under the same path wherever one runs. Needs the
    extra: pip install 'penstock[spark]'.
    """
    end_in_order(ctx)


for job in (archive, restore, stats, compact):
    spark.add_command(job)


@spark.command()
def script() -> None:
    """Print the path of the script that spark-submit runs jobs with.

    \b
    Examples:
      penstock spark script
      spark-submit --master spark://10.0.0.1:7077 "$(penstock spark script)" audit ./store
    """
    click.echo(Path(__file__).with_name("script.py"))


@spark.command()
@directory_argument
@checksum_option
@click.option(
    "--findings",
    type=click.Path(path_type=Path),
    help="Write the findings there too, as Parquet; the directory must not be there yet.",
)
@master_option
@output_option
@click.pass_context
def audit(
    ctx: click.Context,
    directory: Path,
    checksum: str,
    findings: Path | None,
    master: str,
    output: str,
) -> None:
    """Check every record, queue entry and index item of a store, on many cores.

    What is checked, printed, and exited with is that of `penstock store verify`.

    \b
    Examples:
      penstock spark audit ./store
      penstock spark audit ./store --findings ./findings -o json
      penstock spark audit ./store --master spark://10.0.0.1:7077
    """
    from penstock.shared.errors import InvalidArgument
    from penstock.shared.formats.record_crc import Checksum
    from penstock.spark.jobs.audit import audit_store

    if findings is not None and findings.exists():
        raise InvalidArgument(
            "there is something in the place of the findings", findings, "name a new directory"
        )
    with spark_session(master, "audit") as session, progress("auditing", text=time_left()) as moved:
        done = audit_store(session, directory, checksum=Checksum(checksum), progress=moved)
        if findings is not None:
            done.findings.coalesce(1).write.parquet(str(findings.absolute()))
    if output == "json":
        print_json(done.report)
    else:
        print_report(done.report)
    if not done.report.ok:
        ctx.exit(EXIT_DAMAGED if done.report.log_damaged else EXIT_PROBLEM)


@spark.command()
@directory_argument
@rebuild_options
@master_option
@output_option
def rebuild(
    directory: Path,
    queues: bool,
    index: bool,
    master: str,
    file: Path | None,
    settings: tuple[tuple[str, str], ...],
    output: str,
) -> None:
    """Rebuild consume queues and index from the log, which is walked on many cores.

    The files are those that `penstock store rebuild` makes, and are swapped in as there. No broker
    may run on the store; workers write into its directory penstock/rebuild.

    \b
    Examples:
      penstock spark rebuild ./store
      penstock spark rebuild ./store --queues --master spark://10.0.0.1:7077
    """
    from penstock.shared.store.lock import stopped_store
    from penstock.spark.jobs.rebuild import rebuild_on

    config = offline_config(file, settings, directory)
    both = not queues and not index
    with (
        stopped_store(directory) as (paths, _),
        spark_session(master, "rebuild") as session,
        progress("rebuilding", text=time_left()) as moved,
    ):
        done = rebuild_on(
            session,
            paths,
            config,
            queues=queues or both,
            index=index or both,
            progress=moved,
        )
    if output == "json":
        print_json(done)
    else:
        print_rebuilt(done, directory, queues=queues or both, index=index or both)
