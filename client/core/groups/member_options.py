"""What a member says of itself when it joins its group. It never changes while it is a member."""

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
    # different in each process, so that two members of one client id can be told apart
    instance: str = ""
