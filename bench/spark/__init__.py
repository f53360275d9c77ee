"""`penstock bench spark`: Penstock's source and sink beside Parquet and beside Spark's Kafka.

measure   the ways that are measured, in turns
stream    a streaming query by a broker's endpoint: ages, and what it costs at rest
kafka     Kafka's broker, and what Spark needs for it
discard   a sink that throws its rows away

May import `bench`, `spark` and what these may. Nothing of the product imports it.
"""
