"""A worker: bills orders, and sends each bill on. Start as many as you like.

penstock up --store ./store
python worker.py
echo '{"number": 17, "customer": "Ada"}' | penstock produce orders
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import penstock
from penstock.client import GroupMessage


@dataclass
class Order:
    number: int
    customer: str


@dataclass
class Bill:
    order: int
    text: str


@contextmanager
def lifespan(app: penstock.App) -> Iterator[None]:
    """What the handlers share, for as long as the worker runs."""
    with penstock.connect() as broker:
        app.state.producer = broker.producer()
        yield


app = penstock.App(lifespan=lifespan)


@app.on("orders", group="billing", start="first")
def bill(order: Order, message: GroupMessage) -> None:
    """To return is to acknowledge; an exception sends the order back for another try."""
    made = Bill(order.number, f"for {order.customer}")
    app.state.producer.send("bills", made, keys=str(order.number)).result(10)
    print(f"billed {order.number} ({message.queue_id}/{message.queue_offset})", flush=True)


if __name__ == "__main__":
    app.run()
