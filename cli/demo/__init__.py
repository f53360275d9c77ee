"""`penstock demo`: the main job on real input, and the processes that it starts.

May import `printing`, the ground of the commands, `bench`, `chaos`, `client`, `spark`, and
`shared`. It shows only what everybody has: it makes no call that a user could not write.
"""
