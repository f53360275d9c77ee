"""Commands that put messages into a broker and print them: produce, consume, tail, query.

May import `options`, `printing`, the ground of the commands, `client`, `maintenance`, and `shared`.
Nothing is kept between two calls: a group remembers where to go on, and a command does not.
"""
