"""The commands of `penstock store` and `penstock recovery`: a store directory, without a broker.

May import `options`, `printing`, the ground of the commands, `client`, `dataframes`, `maintenance`,
and `shared`. The checks of stores are in `maintenance`, and these commands have no reader of
records of their own.
"""
