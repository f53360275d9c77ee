"""A broker inside a program: its actors are child processes, and its files are those of any store.

May import `supervisor`, `client` and `shared`. Nothing of a broker's own work is here: the broker
is the same that `penstock up` starts.

`Broker` is all that a program needs. Below it there is one process per program, the launcher. It
has the broker's code imported already and forks a supervisor for each broker, so that every start
after the first is short. A broker ends with its program, in order, however the program ends.
"""

from penstock.embedded.broker import Broker

__all__ = ["Broker"]
