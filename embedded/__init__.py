"""A broker inside a program: its actors are child processes, and its files are any store's.

May import `supervisor`, `client` and `shared`. Nothing that a broker does: it is the one that
`penstock up` starts.

`Broker` is all that a program needs. Below it one process per program, the launcher, has the
broker's code imported already and forks a supervisor for each broker, so that every start after the
first one is short. A broker ends with its program, in order, however that ends.
"""

from penstock.embedded.broker import Broker

__all__ = ["Broker"]
