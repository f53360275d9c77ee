"""`penstock chaos`: break brokers of its own in many ways, and hold them to their promises."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options.option_types import COUNT, Finite
from penstock.cli.printing.output import output_option, print_json, print_table, progress
from penstock.cli.signals import end_in_order

if TYPE_CHECKING:
    from penstock.chaos.report import Report

EXIT_PROBLEM = 1
# How many broken promises of a round are told: one bug breaks many, and a few suffice to find it.
TOLD = 5
KINDS = (
    *("kills", "power", "events", "disk", "full", "slow", "cut"),
    *("frames", "damage", "missing", "sectors", "outage"),
    *("points", "recovery", "bells"),
    *("clock", "frozen", "crowd", "memory", "attack", "gateway", "mixed", "exactly"),
    *("transactions", "promises", "members", "delays", "official"),
)
# These interpose a library between a broker and its disk or clock, compiled when first used.
NEED_A_COMPILER = frozenset(("power", "promises", "disk", "full", "slow", "cut", "clock", "mixed"))
# This kind runs RocketMQ's own clients.
NEEDS_JAVA = "official"
# These mount a disk.
NEED_ROOT = frozenset(("sectors", "outage"))


def _print_points(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from penstock.shared.faults import POINTS, VARIABLE

        print_table(["point", "who passes it has done, and not done"], list(POINTS.items()))
        click.echo(f"armed by the environment of penstock up: {VARIABLE}=POINT=ACTION[@N][xM],")
        click.echo("ACTION being crash, stop, delay:MS, error:ENOSPC; for the bells yes:PERCENT")
        click.echo("or upto:MS, also of two actors alone: bell.lost/writer-committer=yes:100")
        ctx.exit()


def _kinds(ctx: click.Context, parameter: click.Parameter, faults: str) -> list[str]:
    chosen = [kind.strip() for kind in faults.split(",")]
    for kind in chosen:
        if kind not in KINDS:
            raise click.BadParameter(f"{kind!r} is none of {', '.join(KINDS)}", ctx, parameter)
    return chosen


@click.command(
    epilog="""\b
Examples:
  penstock chaos                                  every kind of fault, for a minute
  penstock chaos --minutes 60 -o json
  penstock chaos --faults kills,power --seed 7
  penstock chaos --faults events --seed 7 --rounds 1
  penstock chaos --faults disk,full --rounds 2 --every
  penstock chaos --replay DIR --image 17:0.5:99   one image of a power failure again
"""
)
@click.option(
    "--faults",
    default=",".join(KINDS),
    show_default=True,
    callback=_kinds,
    help="Kinds, with commas. Those that need a C compiler, Java, or root are left out without it.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, (1 << 63) - 1),
    help="What chance begins with, so that a run can be had again; it is printed.",
)
@click.option(
    "--minutes",
    type=Finite(0.01, 60 * 24 * 365),
    default=1,
    show_default=True,
    help="How long; each kind runs once, even if that takes longer.",
)
@click.option("--rounds", type=COUNT, help="Stop after this many rounds.")
@click.option("--every", is_flag=True, help="disk, full, cut, bells: all of it in turn, not some.")
@click.option(
    "--hits",
    type=COUNT,
    default=1,
    show_default=True,
    help="How often a round of points hits each of them.",
)
@click.option(
    "--place", type=click.Path(path_type=Path), help="Where stores are made; a temporary place."
)
@click.option(
    "--replay", type=click.Path(exists=True, path_type=Path), help="A kept power failure."
)
@click.option(
    "--points",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_points,
    help="List the points at which a process can be made to fail, and end.",
)
@click.option("--image", help="Which of its images: FLUSH:SHARE:SEED.")
@output_option
@click.pass_context
def chaos(
    ctx: click.Context,
    faults: list[str],
    seed: int | None,
    minutes: float,
    rounds: int | None,
    hits: int,
    every: bool,
    place: Path | None,
    replay: Path | None,
    image: str | None,
    output: str,
) -> None:
    """Break brokers of its own, and hold them to their promises.

    Starts brokers on stores of its own, under load, and kills and freezes their processes, cuts the
    power, lets disks fail, fill up and stand still, sends malformed requests, takes files away. In
    the end nothing that was acknowledged may be lost, twice, disordered or altered. Prints what was
    done and found; for each failure the command that shows it again. Exits with 1 when there was
    one. No other broker is touched.
    """
    from penstock.chaos.report import Report

    end_in_order(ctx)
    report = Report(seed=random.SystemRandom().getrandbits(32) if seed is None else seed)
    began = time.monotonic()
    if replay is not None:
        _replay(replay, image, report)
    else:
        _run(report, _possible(faults), minutes, rounds, hits, every, place)
    _print(report, time.monotonic() - began, output)
    if report.violations:
        ctx.exit(EXIT_PROBLEM)


def _possible(kinds: list[str]) -> list[str]:
    """The kinds that this machine can run. Raises MissingDependency if it can run none."""
    from penstock.chaos.clients.official import missing
    from penstock.chaos.interposed.preload import find_compiler
    from penstock.chaos.machine import bad_disk
    from penstock.shared.errors import MissingDependency

    wants: dict[tuple[str, str], list[str]] = {}
    for kind in kinds:
        if kind in NEED_A_COMPILER and not find_compiler():
            wants.setdefault(("a C compiler", "apt-get install gcc"), []).append(kind)
        elif kind == NEEDS_JAVA and (lacks := missing())[0]:
            wants.setdefault(lacks, []).append(kind)
        elif kind in NEED_ROOT and (lack := bad_disk.lacks()):
            wants.setdefault((lack, "it mounts a disk of its own"), []).append(kind)
    left_out = [kind for each in wants.values() for kind in each]
    possible = [kind for kind in kinds if kind not in left_out]
    if not possible:
        raise MissingDependency(
            f"there is not what these need: {' and '.join(what for what, _ in wants)}",
            ",".join(kinds),
            "; ".join(hint for _, hint in wants),
        )
    for (what, _), those in wants.items():
        click.echo(f"left out, for want of {what}: {', '.join(those)}", err=True)
    return possible


def _run(
    report: Report,
    kinds: list[str],
    minutes: float,
    rounds: int | None,
    hits: int,
    every: bool,
    place: Path | None,
) -> None:
    from penstock.chaos.arena import Arena
    from penstock.chaos.campaigns import run_chaos
    from penstock.chaos.machine.keeper import keeping
    from penstock.chaos.machine.leaks import Baseline
    from penstock.chaos.running.members import late_handovers

    home = Path(tempfile.mkdtemp(prefix="penstock-chaos-", dir=place))
    began = time.monotonic()
    total = int(minutes * 60)
    with keeping(home), progress("breaking") as moved:
        arena = Arena(
            home,
            report,
            lambda: moved(min(total, int(time.monotonic() - began)), total),
            hits=hits,
            every=every,
        )
        before = Baseline(home)
        told = 0
        try:
            for _ in run_chaos(arena, kinds, seconds=minutes * 60, rounds=rounds or 1 << 30):
                told = _tell(report, told)
        except KeyboardInterrupt:
            click.echo("interrupted: this is what was done until then", err=True)
        finally:
            arena.close()
    again = f"penstock chaos --faults {','.join(kinds)} --seed {report.seed}"
    report.add_violations(late_handovers(report), again)
    report.add_leaks(before.leaked(), again)
    _tell(report, told)


def _tell(report: Report, told: int) -> int:
    """Print what a round has found, as soon as it is over. Returns how many are told by now."""
    found = report.violations[told:]
    for violation in found[:TOLD]:
        click.echo(f"BROKEN: {violation.what}\n  again: {violation.replay}", err=True)
    if found[TOLD:]:
        click.echo(f"  and {len(found) - TOLD} more in this round, which -o json prints", err=True)
    return len(report.violations)


def _replay(bundle: Path, image: str | None, report: Report) -> None:
    from penstock.chaos.storage.power import ImageName, check_images
    from penstock.chaos.storage.power_promises import NOTES, check_promises

    try:
        flush, share, number = (image or "").split(":")
        name = ImageName(int(flush), float(share), int(number))
    except ValueError:
        raise click.UsageError(f"--image has the form FLUSH:SHARE:SEED, not {image!r}") from None
    check = check_promises if (bundle / NOTES).exists() else check_images
    for found, wrong in check((bundle, [name])):
        report.add_violations(wrong, f"penstock chaos --replay {bundle} --image {found}")
    report.add_fault("power failure")
    _tell(report, 0)


def _print(report: Report, seconds: float, output: str) -> None:
    recovery = report.recovery()
    waits = report.waits()
    if output == "json":
        print_json(
            {
                "seed": report.seed,
                "seconds": round(seconds, 1),
                "faults": report.faults,
                "points": report.points,
                "leaked": report.leaked,
                "acknowledged": report.acknowledged,
                "lost": report.lost,
                "twice": report.twice,
                "not_compared": report.not_compared,
                "consumed": report.consumed,
                "recovery": recovery,
                "memory_mib_s": report.most_memory(),
                "handed_over": {what: each._asdict() for what, each in report.handovers().items()},
                "waits": {what: each._asdict() for what, each in waits.items()},
                "violations": report.violations,
            }
        )
        return
    print_table(["fault", "times"], sorted(report.faults.items()))
    if recovery:
        heads = ["until acknowledged", "p99 ms", "max ms", "until consumed", "p99 ms", "max ms"]
        rows = [
            [what, each.count, *each.acknowledged, *each.consumed]
            for what, each in recovery.items()
        ]
        print_table(["struck", "times", *heads], rows)
    if waits:
        rows = [[what, *each] for what, each in waits.items()]
        print_table(["disturbed", "until acknowledged", "p99 ms", "max ms"], rows)
    if report.handed_over:
        rows = [[what, *each] for what, each in report.handovers().items()]
        print_table(["member", "queues", "until others had them", "p99 ms", "max ms"], rows)
    if report.memory:
        heads = ["most MiB", "kept MiB", "given back s"]
        rows = [[actor, *each] for actor, each in report.most_memory().items()]
        print_table(["actor, beyond what it had", *heads], rows)
    click.echo(report.of_messages())
    found = f"{len(report.violations)} promises broken" if report.violations else "nothing broken"
    click.echo(f"{found}; seed {report.seed}, {seconds:.0f} s")
