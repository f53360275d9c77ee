"""The monitor: `actor` is the process, the other files are organs that no other process has.

May import `shared`. No number is made here: the monitor reads what others have published, asks
nobody, and writes nothing, so a broker does not notice whether it is watched. `penstock top` and
`penstock status --check` use the same code: each has its own `Reading`.
"""

from penstock.actors.monitor.actor import Monitor
from penstock.actors.monitor.disk import filling
from penstock.actors.monitor.history import History
from penstock.actors.monitor.looks import looks
from penstock.actors.monitor.overview import overview, problems
from penstock.actors.monitor.reading import Reading, at_once
from penstock.actors.monitor.topics import count_dead_letters

__all__ = [
    "History",
    "Monitor",
    "Reading",
    "at_once",
    "count_dead_letters",
    "filling",
    "looks",
    "overview",
    "problems",
]
