"""All attacks, in no order."""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.chaos.broker import Broker
from penstock.chaos.clients.attacks import connections, pulls, remoting, retries, topics

Attack = Callable[[Broker, random.Random], list[str]]
ATTACKS: tuple[Attack, ...] = (
    *(retries.foreign_key, retries.offset_in_a_body, retries.key_dense, retries.small_messages),
    *(connections.many_parts, connections.endless_message, connections.greetings),
    *(connections.names_to_come, topics.many_topics, topics.list_topics, pulls.long_filters),
    *(pulls.long_properties, pulls.many_groups, pulls.never_read, pulls.held_pulls),
    *(pulls.same_hash, remoting.bent_commands),
)
