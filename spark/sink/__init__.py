"""Writes Spark's rows into topics, exactly once: `df.write.format("penstock")`, `df.writeStream`.

    columns   which columns there may be
    options   the options of a write
    rows      from a batch of rows to messages
    blocks    messages in flight: encoded by a task, published by a driver
    tasks     what a task attempt does: it stages its rows in the broker
    publish   what the driver does: it decides on a batch, and publishes what was staged
    writers   Spark's interfaces to all that

May import `shared` and `client`. Nothing heavy is imported here: Spark's Python workers import this
package.
"""
