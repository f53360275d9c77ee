"""The commands of `penstock bench`: a file for each kind of measurement.

May import `options`, `printing`, the ground of the commands, `bench`, and `shared`. These commands
only read options and print reports: `bench` measures.
"""
