"""An afternoon with a person who reads nothing but --help: a hundred commands, mistakes among them.

Whatever they type: no traceback, no exit code 0 with something missing, one line that says what was
wrong; and on a terminal a sign of life at least every two seconds.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.takes(15)

# each of them finds what it imports by itself
pytestmark = pytest.mark.true_starts

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
TROUBLE = ("Traceback", "Exception", "Error:", "\x00")
SIGN_OF_LIFE_S = 2


class Typed(NamedTuple):
    """A command line, its exit code, and what it has to print: a pattern of standard output, or
    of standard error where it fails."""

    words: str
    code: int = 0
    shows: str = ""
    given: str = ""


# {s} is the store of the broker that runs, {e} and {c} are its endpoints, {f} a file of 500 lines
LOOKING_ROUND = [
    Typed("topics create wide --queues 8 --store {s}", 0, "8 queues"),
    Typed("", 2, "Commands:"),
    Typed("--help", 0, "Commands:"),
    Typed("-h", 0, "Commands:"),
    Typed("help", 2, "penstock --help"),
    Typed("--version", 0, r"penstock \d"),
    Typed("version", 0, "native loops"),
    Typed("version -o json", 0, '"native"'),
    Typed("-v", 2, "no option of this name"),
    *(Typed(f"{name} --help", 0, "Examples:") for name in ["up", "status", "produce", "consume"]),
    *(Typed(f"{name} --help", 0, "Commands:") for name in ["query", "topics", "store", "config"]),
    Typed("start", 2, "penstock up"),
    Typed("up --port 0", 2, "auto"),
    Typed("up --set nonsense=1 --store {t}/new", 2, "no such configuration key"),
    Typed("up --config {t}/none.toml --store {t}/new", 2, "none.toml"),
    Typed("up --produce-port http --store {t}/new", 2, "http"),
    Typed("up --store {s} --port auto", 1, "STORE_LOCKED"),
    Typed("status", 3, "penstock up --store"),
    Typed("status --store {t}/none", 3, "penstock up"),
    Typed("top nosuch --store {s}", 2, r"\] VIEW cannot be used"),
    Typed("stats --store {s}", 2, "penstock status"),
    Typed("consume orders", 3, "penstock up"),
    Typed("produce orders", 3, "penstock up", "x\n"),
    Typed("topics ls", 3, "penstock up"),
    Typed("config show", 0, "max_queues"),
    Typed("config show max_queue", 2, "max_queues"),
    Typed("config show -o json", 0, '"max_queues":65536'),
    Typed("config get max_queues", 2, "penstock config show"),
    Typed("config show max_queues --set max_queues=1_000", 0, r"max_queues +1000"),
    Typed("chaos --rounds 0", 2, "not in the range"),
    Typed("chaos --faults floods", 2, "kills"),
    Typed("chaos --points", 0, "who passes it"),
    Typed("bench produce --seconds 0", 2, "--seconds"),
    Typed("store info", 2, "DIRECTORY"),
    Typed("store info {t}/none", 2, "none"),
    Typed("store check {s}", 2, "penstock store verify"),
    Typed("recovery show --store {t}", 0, "no start has had to recover"),
]
SENDING = [
    Typed("produce", 2, "TOPIC"),
    Typed("produce --store {s}", 2, "TOPIC"),
    Typed("produce orders --store {s}", 0, "", "one\n"),
    Typed("produce orders -o json --store {s}", 0, '"PUT_OK"', "two\nthree\n"),
    Typed("produce orders --key k1 --tag red --store {s}", 0, "", "four\n"),
    Typed("produce orders --key k1 --key k2 --property a=b --store {s}", 0, "", "five\n"),
    Typed("produce orders --property ab --store {s}", 2, "NAME=VALUE", "six\n"),
    Typed("produce orders {f} --queue 0 --store {s}", 0, ""),
    Typed("produce orders {t}/nowhere --store {s}", 2, "nowhere"),
    Typed("produce orders {t} --store {s}", 2, "directory"),
    Typed("produce whole {f} --whole --store {s}", 0),
    Typed("produce orders --queue 700 --store {s}", 1, "QUEUE_NOT_EXIST", "x\n"),
    Typed("produce a/b --store {s}", 2, "a/b", "x\n"),
    Typed("produce -t orders --store {s}", 2, "argument TOPIC", "x\n"),
    Typed("produce empty --store {s}", 0, "", ""),
    Typed("produce orders --ack maybe --store {s}", 2, "durable", "x\n"),
    Typed("produce orders --compression gzip --store {s}", 2, "zstd", "x\n"),
    Typed("produce big --compression zstd --whole {f} --store {s}", 0),
    Typed("produce orders --endpoint {e} -o json", 0, "PUT_OK", "by endpoint\n"),
    Typed("produce orders --timeout 300ms --endpoint tcp://127.0.0.1:1", 3, "nobody", "x\n"),
    Typed("send orders --store {s}", 2, "penstock produce", "x\n"),
    Typed("topics create wide --queues 2 --store {s}", 2, "wide"),
    Typed("topics create wide --queues 0 --store {s}", 2, "not in the range"),
    Typed("topics create 'no space' --store {s}", 2, "no space"),
    Typed("topics ls --store {s}", 0, r"wide +8"),
    Typed("topics ls -o json --store {s}", 0, '"wide"'),
    Typed("topics list --store {s}", 2, "penstock topics ls"),
]
READING = [
    Typed("consume", 2, "TOPIC"),
    Typed("consume orders --store {s}", 0, "four"),
    Typed("consume ordres --store {s}", 1, "TOPIC_NOT_EXIST"),
    Typed("consume orders -o json --max 2 --store {s}", 0, '"message_id"'),
    Typed("consume orders -o table --max 3 --store {s}", 0, "message id"),
    Typed("consume orders -o plain --max 1 --store {s}", 0, "."),
    Typed("consume orders -o yaml --store {s}", 2, "table"),
    Typed("consume orders --from latest --store {s}", 0, "^$"),
    Typed("consume orders --from -1h --to latest --max 1 --store {s}", 0, "."),
    Typed("consume orders --from 0 --to 2 --queue 0 --store {s}", 0, "."),
    Typed("consume orders --from 1000000000000 --max 1 --store {s}", 0, "."),
    Typed("consume orders --from yesterday --store {s}", 2, "yesterday"),
    Typed("consume orders --from 2199-01-01 --store {s}", 0, "^$"),
    Typed("consume orders --queue 99 --store {s}", 1, "QUEUE_NOT_EXIST"),
    Typed("consume orders --queue x --store {s}", 2, "--queue"),
    Typed("consume orders --tags red --store {s}", 0, "four"),
    Typed("consume orders --tags red --sql x=1 --store {s}", 2),
    Typed("consume orders --sql 'a = ' --store {s}", 2, "SUBSCRIPTION_PARSE_FAILED"),
    Typed("consume orders --sql \"a = 'b'\" --store {s}", 0, "five"),
    Typed("consume orders --endpoint {c} --max 1", 0, "."),
    Typed("consume orders --endpoint tcp://127.0.0.1:1 --timeout 300ms", 3),
    Typed("consume orders --template '%o %s' --store {s}", 0, "four"),
    Typed("tail orders --no-follow --store {s}", 0, "by endpoint"),
    Typed("subscribe orders --store {s}", 2, "penstock tail"),
    Typed("query key orders k1 --store {s}", 0, "four"),
    Typed("query key orders k9 --store {s}", 1, "no message"),
    Typed("query key orders k1 --begin -1h --max 1 -o json --store {s}", 0, '"body"'),
    Typed("query key orders k1 --begin soon --store {s}", 2, "soon"),
    Typed("query id zzz --store {s}", 2, "zzz"),
    Typed("query id {i} --store {s}", 0, "{i}"),
    Typed("query find {i} --store {s}", 2, "penstock query id"),
    Typed("status --store {s}", 0, "messages/s"),
    Typed("status --all --store {s}", 0, "append_wanted"),
    Typed("status -o json --store {s}", 0, '"positions"'),
    Typed("status --watch --store {s}", 2, "no option"),
    Typed("clean --store {s}", 0, "0 segments deleted"),
    Typed("purge --store {s}", 2, "penstock clean"),
    Typed("stop --store {s}", 2, "Ctrl-C"),
    Typed("store info {s}", 0, "checkpoint"),
    Typed("store verify {s}", 0, "orders"),
    Typed("store inspect {s} --topic orders --body", 0, "log offset"),
    Typed("store inspect {s} --offset 3", 2, "--topic"),
    Typed("store repair {s}", 1, "STORE_LOCKED"),
    Typed("store rebuild {s}", 1, "STORE_LOCKED"),
    Typed("recovery show --store {s}", 0, "no start has had to recover"),
]


@pytest.fixture
def type_all(broker: Any, tmp_path: Path) -> Callable[[Iterable[Typed]], list[str]]:
    """Run command lines, some at once; what was wrong with any of them."""
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {number}\n" for number in range(500)))
    words = {
        "s": broker.store,
        "e": broker.produce,
        "c": broker.consume,
        "f": file,
        "t": tmp_path,
    }

    def one(typed: Typed) -> list[str]:
        line = [word.format(**words) for word in shlex.split(typed.words)]
        done = subprocess.run(
            [*PENSTOCK, *line],
            input=typed.given,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )
        shown = done.stdout if typed.code == 0 else done.stderr + done.stdout
        wrong = [each for each in TROUBLE if each in done.stdout + done.stderr]
        if done.returncode != typed.code:
            wrong.append(f"exit code {done.returncode}, not {typed.code}")
        if not re.search(typed.shows.format(**words), shown, re.M):
            wrong.append(f"{typed.shows!r} is not shown")
        # one line says what is wrong; of a sending that stopped, two more how to go on
        if typed.code in (2, 3) and line and len(done.stderr.splitlines()) > 3:
            wrong.append("many lines for one mistake")
        return [f"penstock {typed.words}: {each}\n{done.stdout[-500:]}{done.stderr[-500:]}"
                for each in wrong]  # fmt: skip

    def every(lines: Iterable[Typed]) -> list[str]:
        with ThreadPoolExecutor(4) as pool:
            return [wrong for found in pool.map(one, lines) for wrong in found]

    words["i"] = "0" * 32
    sent = subprocess.run(
        [*PENSTOCK, "produce", "first", "-o", "json", "--store", str(broker.store)],
        input=b"first\n",
        capture_output=True,
        check=True,
    )
    words["i"] = json.loads(sent.stdout)["message_id"]
    return every


def test_a_hundred_commands_say_what_they_did_or_why_not(
    type_all: Callable[[Iterable[Typed]], list[str]],
) -> None:
    assert len(LOOKING_ROUND + SENDING + READING) >= 100
    wrong = [each for part in (LOOKING_ROUND, SENDING, READING) for each in type_all(part)]
    assert wrong == [], "\n\n".join(wrong)


def test_long_work_shows_that_it_goes_on(
    broker: Any, terminal: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "many"
    file.write_text("".join(f"{number}\n" for number in range(100_000)))
    sent = terminal("produce", "many", file, "--ack", "written", "--store", broker.store)
    assert sent.end() == 0 and "100000 messages sent" in sent.text
    with (tmp_path / "out").open("wb") as out:
        read = terminal("consume", "many", "-o", "json", "--store", broker.store, stdout=out)
        assert read.end() == 0
    verified = terminal("store", "verify", broker.store)
    assert verified.end() == 0, verified.text
    for each in (sent, read, verified):
        assert each.longest_silence_s < SIGN_OF_LIFE_S, each.text
