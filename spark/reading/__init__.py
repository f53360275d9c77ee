"""What the batch source and the stream have in common: options, offsets, filters, rows.

May import `shared`, `client`, and the files above it in `spark`. There is no Spark session here: a
plan is made in one process and read in another, and only its bytes go between them.
"""
