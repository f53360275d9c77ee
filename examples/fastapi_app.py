"""A web service that takes orders: it answers when an order is on disk.

pip install "fastapi[standard]"
penstock up --store ./store
fastapi run fastapi_app.py
curl localhost:8000/orders -H content-type:application/json -d '{"number": 1, "customer": "A"}'
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from pydantic import BaseModel

from penstock.client import aio


class Order(BaseModel):
    number: int
    customer: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One producer for all requests."""
    async with aio.connect() as broker:
        app.state.producer = await broker.producer()
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def take(order: Order, request: Request) -> dict[str, str]:
    receipt = await request.app.state.producer.send("orders", order, keys=str(order.number))
    return {"message_id": receipt.message_id}
