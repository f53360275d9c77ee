"""What a member says of itself when it joins its group. It stays the same as long as it is one."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.core.groups.strategies import Strategy
from penstock.shared.wire.group_messages import Model, StartRule, SubscriptionData


class MemberOptions(NamedTuple):
    """What a member says of itself."""

    group: str
    client_id: str
    subscriptions: tuple[SubscriptionData, ...]
    strategy: Strategy
    session_timeout_ms: int
    model: Model = "clustering"
    start: StartRule = "last"
    start_timestamp_ms: int = 0
    orderly: bool = False
    # another one in each process: two of one client id are told apart by it
    instance: str = ""
