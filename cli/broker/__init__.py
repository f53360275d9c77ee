"""Commands that start a broker, stop it, and watch it and its machine.

May import `options`, `printing`, the ground of the commands, `supervisor`, `actors`, `client`,
`maintenance`, `spark`, and `shared`. These commands talk to actors only by signals and through the
supervisor: status and top read shared memory and ask nobody.
"""
