"""The commands of `penstock store` and `penstock recovery`: a store directory, without a broker.

May import `options`, `printing`, the ground of the commands, `client`, `dataframes`, `maintenance`,
and `shared`. No record is read here by a reader of its own: what looks into stores is in
`maintenance`.
"""
