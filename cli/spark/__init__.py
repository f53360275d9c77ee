"""The commands of `penstock spark`: each runs a job over a whole store.

May import `printing`, `store`, the ground of the commands, `spark`, and `shared`. The jobs are in
`spark.jobs`, and no session starts before a command needs one.
"""
