"""What members of consumer groups and the coordinator say to each other, as structs.

    member -> Join             answer Joined
    member -> Beat             answer Beaten: a heartbeat, each `heartbeat_ms`; or Join again
    member -> Claim            answer Claimed: which queues are now its own, and where to go on
    member -> Commit           answer Committed
    member -> Release          answer Released: the queues are free for others, with their offsets
    member -> Leave            answer Left
    coordinator -> Changed     pushed: members or queues of a group have changed, or one is free

A member divides the queues itself, by RocketMQ's strategies over the sorted client ids of `Joined`,
so that members of any language come to the same result. It reads a queue only while it has a claim
on it, which one member has at a time: the one before releases it, or is gone. A claim has an
`epoch`, and only a commit with the epoch of the claim counts. So a member that was frozen and taken
for dead cannot move an offset back, and what was committed is never handled again.

A request of a member that the coordinator does not know is answered `Refused` with UNKNOWN_MEMBER:
it joins again, naming the claims that it believes it has. Encoding and errors: see messages.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from penstock.shared.wire.messages import Number, Refused, WireMessage, decode_header

Model = Literal["clustering", "broadcasting"]
StartRule = Literal["last", "first", "timestamp", "member"]

# Of one request: more topics or queues than these make an answer that is no longer short.
MAX_TOPICS = 256
MAX_CLAIMS = 4096
# Of a group's or a member's name, in characters.
MOST_NAME = 255
# How long a member may be silent before its queues go to others.
MOST_SESSION_MS = 600_000
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)]
Offset = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
QueueId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class SubscriptionData(msgspec.Struct, frozen=True, array_like=True):
    """What a member wants of a topic. `version` grows with each change: RocketMQ's subVersion."""

    topic: Name
    expression_type: str  # TAG or SQL92
    expression: str
    version: Number


class HeldClaim(msgspec.Struct, frozen=True, array_like=True):
    """A queue that a member has had a claim on, and the claim's epoch."""

    topic: Name
    queue_id: QueueId
    epoch: Number


class Join(WireMessage, frozen=True):
    """I am, or still am, a member. Kept up by repeating it within `session_timeout_ms`.

    `start` says where a queue begins of which the group has no offset: "member" decides by itself,
    and is given an offset of -1; `start_timestamp_ms` is Unix time, for the rule "timestamp".
    `held` are the member's claims, which a coordinator that does not know them takes over where
    nobody else has them. Where there are more than MAX_CLAIMS, the member claims the others again:
    one that is still its own has the epoch that it had. `orderly` members keep their claims through
    a silence until the lock expires, as RocketMQ's do. With `retry_topic` the group's topic of
    retries is made at once, as RocketMQ's clients expect; else whoever has a message come again has
    it made, and most groups need none. One that is `parting` does not divide the queues with the
    others any more, and keeps its claims until it gives them up. Of one that is `carried` somebody
    else speaks: that connection's end says nothing of the member's. Each process has another
    `instance`: one that takes a living member's name is refused."""

    request: Number
    group: Name
    client_id: Name
    subscriptions: Annotated[tuple[SubscriptionData, ...], msgspec.Meta(max_length=MAX_TOPICS)]
    session_timeout_ms: Number
    model: Model = "clustering"
    start: StartRule = "last"
    start_timestamp_ms: Number = 0
    orderly: bool = False
    held: Annotated[tuple[HeldClaim, ...], msgspec.Meta(max_length=MAX_CLAIMS)] = ()
    run: str = ""
    retry_topic: bool = False
    parting: bool = False
    carried: bool = False
    instance: Annotated[str, msgspec.Meta(max_length=64)] = ""


class Beat(WireMessage, frozen=True):
    """I am still the member that I was: my group has this `version`, and I have `claims` claims.

    Answered as what it is, or by one word that it is not so; then the member joins again.
    """

    request: Number
    group: Name
    client_id: Name
    version: Number
    claims: Number


class Claim(WireMessage, frozen=True):
    """Give me these queues of a topic. Of one without an offset it is decided where the group
    begins, and written down; not so where the member has `chosen` by itself where it reads."""

    request: Number
    group: Name
    client_id: Name
    topic: Name
    queue_ids: Annotated[tuple[QueueId, ...], msgspec.Meta(max_length=MAX_CLAIMS)]
    chosen: bool = False


class QueueCommit(msgspec.Struct, frozen=True, array_like=True):
    """All before `offset` is done. It counts if `epoch` is that of the queue's present claim.
    In Release an offset of -1 says nothing of what is done."""

    topic: Name
    queue_id: QueueId
    offset: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)]
    epoch: Number


class Commit(WireMessage, frozen=True):
    request: Number
    group: Name
    client_id: Name
    commits: Annotated[tuple[QueueCommit, ...], msgspec.Meta(max_length=MAX_CLAIMS)]


class Release(WireMessage, frozen=True):
    """Commit, and give these queues up: one step, so that the next owner goes on right there."""

    request: Number
    group: Name
    client_id: Name
    commits: Annotated[tuple[QueueCommit, ...], msgspec.Meta(max_length=MAX_CLAIMS)]


class Leave(WireMessage, frozen=True):
    """I am no member any more; what I still have is released without a commit."""

    request: Number
    group: Name
    client_id: Name


class DescribeGroup(WireMessage, frozen=True):
    """For operators: all that is known of a group; with `spans` who had its queues, too."""

    request: Number
    group: Name
    run: str = ""
    spans: bool = False


class ListGroups(WireMessage, frozen=True):
    request: Number
    run: str = ""


class ResetOffsets(WireMessage, frozen=True):
    """Set a group's offsets, whether it has members or not. Members go on there at once.

    With `dry_run` nothing changes, and the answer says what would. With `unclaimed` only queues
    are set that nobody has a claim on, with `unmoved` only those whose offset no operator has set
    since somebody committed last; the others are not in the answer.
    """

    request: Number
    group: Name
    topic: Name
    offsets: dict[QueueId, Offset]
    dry_run: bool = False
    run: str = ""
    unclaimed: bool = False
    unmoved: bool = False


class SetGroup(WireMessage, frozen=True):
    """Make a group, or change its settings: the keys of subscriptionGroup.json."""

    request: Number
    group: Name
    settings: dict[str, bool | int]
    run: str = ""


class DeleteGroup(WireMessage, frozen=True):
    """Forget a group and its offsets. Refused while it has members.

    With `while_used` it is not refused, and of one with members the settings are forgotten alone:
    they go on where they are. With `keep_offsets` the settings are, too.
    """

    request: Number
    group: Name
    run: str = ""
    while_used: bool = False
    keep_offsets: bool = False


# --- answers ----------------------------------------------------------------------------------


class TopicQueues(msgspec.Struct, frozen=True, array_like=True):
    """A topic that the member subscribes to, and how many queues it has to read; 0: none yet."""

    topic: str
    read_queues: int


class Joined(WireMessage, frozen=True):
    """`members` are the client ids, sorted, of those that divide the queues. `version` changes with
    them, with topics and queues.

    `lost` are claims that the member named and that somebody else has.
    """

    request: int
    group: str
    version: int
    members: tuple[str, ...]
    topics: tuple[TopicQueues, ...]
    heartbeat_ms: int
    broker_name: str  # stands in the queues that strategies divide
    retry_max_times: int
    retry_queue_nums: int
    consume_timeout_ms: int
    lost: tuple[HeldClaim, ...] = ()


class Beaten(WireMessage, frozen=True):
    """`is_same` says whether all is as the member says; the next heartbeat is due then."""

    request: int
    is_same: bool
    heartbeat_ms: int


class ClaimedQueue(msgspec.Struct, frozen=True, array_like=True):
    """A queue that is the member's now: go on at `offset`; -1 where the member decides.

    `is_moved` says that an operator has set the offset and nobody has committed since: whoever had
    the queue before does not go on where it was.
    """

    queue_id: int
    offset: int
    epoch: int
    is_moved: bool = False


class Claimed(WireMessage, frozen=True):
    """What was given; `taken` are with somebody else still: ask again when told, or soon."""

    request: int
    group: str
    topic: str
    queues: tuple[ClaimedQueue, ...]
    taken: tuple[int, ...]


class Committed(WireMessage, frozen=True):
    """Done, but for `lost`: queues that are no longer the member's."""

    request: int
    group: str
    lost: tuple[HeldClaim, ...] = ()


class Released(WireMessage, frozen=True):
    """Done, but for `lost`: queues that were not the member's, whose offsets have not moved."""

    request: int
    group: str
    lost: tuple[HeldClaim, ...] = ()


class Left(WireMessage, frozen=True):
    request: int
    group: str


class Changed(WireMessage, frozen=True):
    """Pushed to members: what their next Joined would say, or that a queue has come free. `reset`
    are queues whose offset an operator has set; the member's claim on those is gone, and it claims
    them again."""

    request: int  # always 0
    group: str
    reset: tuple[HeldClaim, ...] = ()
    version: int = 0  # 0: no news of the group
    members: tuple[str, ...] = ()
    topics: tuple[TopicQueues, ...] = ()


class MemberInfo(msgspec.Struct, frozen=True, array_like=True):
    client_id: str
    address: str
    model: str
    start: str
    orderly: bool
    seen_ms_ago: int
    subscriptions: tuple[SubscriptionData, ...]


class ClaimSpan(msgspec.Struct, frozen=True, array_like=True):
    """A claim in which a queue's offset went from `first` to `next`: its owner has done what lies
    between them. `lasts`: it is not over. Times are ms since 1970; -1 where that is not known."""

    owner: str
    first: int
    next: int
    since_ms: int
    until_ms: int
    lasts: bool


class QueueInfo(msgspec.Struct, frozen=True, array_like=True):
    """A queue of a group: its committed offset, or -1, and the owner of its claim, or "".

    `min_offset` and `max_offset` are the queue's own; `lag_ms` is how long ago the oldest message
    was stored that is not done: 0 when all are, -1 when it is not known. `lag_bytes` likewise.
    `owned_ms` is how long the owner has had its claim; -1 where that is not known. `spans` are
    the last claims that this coordinator knows of, in order, if they were asked for.
    """

    topic: str
    queue_id: int
    offset: int
    owner: str
    epoch: int
    min_offset: int
    max_offset: int
    lag_ms: int = -1
    lag_bytes: int = -1
    owned_ms: int = -1
    spans: tuple[ClaimSpan, ...] = ()


class GroupInfo(WireMessage, frozen=True):
    request: int
    group: str
    exists: bool
    settings: dict[str, bool | int]
    members: tuple[MemberInfo, ...]
    queues: tuple[QueueInfo, ...]


class GroupList(WireMessage, frozen=True):
    """Each group: how many members it has and its lag in messages (-1: not known)."""

    request: int
    groups: dict[str, tuple[int, int]]


class OffsetsReset(WireMessage, frozen=True):
    """Queue -> (offset before, or -1; offset after)."""

    request: int
    group: str
    topic: str
    offsets: dict[int, tuple[int, int]]


class GroupSet(WireMessage, frozen=True):
    request: int
    group: str
    settings: dict[str, bool | int]


GroupRequest = (
    Join | Beat | Claim | Commit | Release | Leave
    | DescribeGroup | ListGroups | ResetOffsets | SetGroup | DeleteGroup
)  # fmt: skip
GroupAnswer = (
    Joined | Beaten | Claimed | Committed | Released | Left | Changed
    | GroupInfo | GroupList | OffsetsReset | GroupSet | Refused
)  # fmt: skip

_REQUEST: msgspec.msgpack.Decoder[GroupRequest] = msgspec.msgpack.Decoder(GroupRequest)
_ANSWER: msgspec.msgpack.Decoder[GroupAnswer] = msgspec.msgpack.Decoder(GroupAnswer)


def decode_group_request(header: bytes) -> GroupRequest:
    """Raises ProtocolError."""
    return decode_header(_REQUEST, header)


def decode_group_answer(header: bytes) -> GroupAnswer:
    """Raises ProtocolError."""
    return decode_header(_ANSWER, header)
