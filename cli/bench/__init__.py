"""The commands of `penstock bench`: a file for each kind of measurement.

May import `options`, `printing`, the ground of the commands, `bench`, and `shared`. No command here
measures anything: it reads options, `bench` measures, and it prints the report.
"""
