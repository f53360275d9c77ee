"""A program whose local transactions and messages must agree: `python -m ... STORE RECORD SEED`.

    half message -> local transaction -> word

The local transaction of a key is a link in the directory RECORD that says how it ended. Making a
link is atomic and fails if there is one, so a key has one outcome, whichever program decides it:
the one that began it, or another one that is asked, finds no link, and forbids it. Some
transactions end without a word, as if their thread had died. Runs until it is killed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

from penstock.client.sending.producer import Producer
from penstock.client.sending.transacting import Transaction
from penstock.client.sending.transaction_loop import Decision
from penstock.shared.errors import PenstockError

GROUP, TOPIC, QUEUES = "sellers", "sold", 3
THREADS = 8
# Percentages of the transactions.
ROLLED_BACK, SILENT = 30, 5


def decide(record: Path, key: str, outcome: Decision) -> Decision:
    """Decide how the local transaction of this key ended, unless that was decided before."""
    try:
        os.symlink(outcome, record / key)
    except FileExistsError:
        return _known(record, key)
    return outcome


def decided(record: Path) -> dict[str, Decision]:
    """All keys that have an outcome."""
    return {key: _known(record, key) for key in os.listdir(record)}


def _known(record: Path, key: str) -> Decision:
    return "commit" if os.readlink(record / key) == "commit" else "rollback"


def answer(record: Path, message: Any) -> Decision:
    """The answer of a program that may know nothing of the transaction."""
    return decide(record, bytes(message.body).decode(), "rollback")


def sell(producer: Producer, record: Path, name: str, dice: random.Random) -> None:
    number = 0
    while True:
        number += 1
        key, chance = f"{name}-{number}", dice.randrange(100)
        try:
            transaction = producer.begin(TOPIC)
            transaction.send(key.encode())
            if chance < SILENT:
                continue
            _end(transaction, record, key, "rollback" if chance < ROLLED_BACK else "commit")
        except PenstockError as error:
            # whether the half message is stored, and the word was heard, is unknown: a check will
            # come
            print(f"{key}: {error}", flush=True)


def _end(transaction: Transaction, record: Path, key: str, outcome: Decision) -> None:
    if decide(record, key, outcome) == "commit":
        transaction.commit()
    else:
        transaction.rollback()


def main(store: str, record: str, seed: str) -> None:
    known = Path(record)
    with Producer(
        store=store,
        group=GROUP,
        on_check=lambda message: answer(known, message),
        timeout_ms=60_000,
        wait_for_broker_ms=60_000,
    ) as producer:
        threads = [
            threading.Thread(
                target=sell,
                args=(producer, known, f"{seed}.{number}", random.Random(f"{seed}.{number}")),
                daemon=True,
            )
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
