"""The commands of `penstock bench`: a file for each kind of measurement.

May import `options`, `printing`, the ground of the commands, `bench`, and `shared`. Nothing is
measured here: options are read, `bench` measures, and its report is printed.
"""
