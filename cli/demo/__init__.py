"""`penstock demo`: the main job on real input, and the processes that it starts.

May import `printing`, the ground of the commands, `bench`, `chaos`, `client`, `spark`, and
`shared`. What it shows is what everybody has: no call here that a user could not write.
"""
