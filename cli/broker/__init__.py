"""Commands that start a broker, stop it, and watch it and its machine.

May import `options`, `printing`, the ground of the commands, `supervisor`, `actors`, `client`,
`maintenance`, `spark`, and `shared`. No command here talks to an actor except by signals and by
what the supervisor listens to: status and top read shared memory and ask nobody.
"""
