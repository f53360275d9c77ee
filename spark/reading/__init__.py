"""What the batch source and the stream have in common: options, offsets, filters, rows.

May import `shared`, `client`, and the files beside it in `spark`. No session of Spark is here: a
plan is made in one process and read in another, and only these bytes go between them.
"""
