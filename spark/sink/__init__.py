"""Rows of Spark into topics, exactly once: `df.write.format("penstock")` and `df.writeStream`.

    columns   which columns there may be, and from a row to a message
    blocks    messages on their way: encoded by a task, published by a driver
    tasks     what a task attempt does: it stages its rows in the broker
    publish   what the driver does: it decides on a batch, and publishes what was staged
    writers   Spark's four interfaces to that

May import `shared` and `client`. Nothing heavy is imported here: Spark's Python workers import this
package.
"""
