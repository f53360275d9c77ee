"""What members of consumer groups and the coordinator say to each other, as structs.

    member -> Join             answer Joined
    member -> Beat             answer Beaten: a heartbeat, each `heartbeat_ms`; or Join again
    member -> Claim            answer Claimed: which queues are now its own, and where to go on
    member -> Commit           answer Committed
    member -> Release          answer Released: the queues are free for others, with their offsets
    member -> Leave            answer Left
    coordinator -> Changed     pushed: members or queues of a group have changed, or one is free

Each member divides the queues itself, by RocketMQ's strategies over the sorted client ids of
`Joined`, so that members in any language get the same result. It reads a queue only while it has a
claim on it. Only one member at a time has that: its predecessor has released it, or is gone. A
commit counts only with the `epoch` of the present claim. So a member that was frozen and taken for
dead cannot move an offset back, and what was committed is never handled again.

If the coordinator does not know a member, it answers `Refused` with UNKNOWN_MEMBER: the member
joins again, naming the claims that it believes it has. For encoding and errors see messages.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from penstock.shared.wire.messages import Number, Refused, WireMessage, decode_header

Model = Literal["clustering", "broadcasting"]
StartRule = Literal["last", "first", "timestamp", "member"]

# Limits of one request: with more topics or queues the answer would no longer be short.
MAX_TOPICS = 256
MAX_CLAIMS = 4096
# Limit of a group's or a member's name, in characters.
MOST_NAME = 255
# The longest silence that a member may ask for before its queues go to others.
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
    """A queue on which a member has had a claim, and the claim's epoch."""

    topic: Name
    queue_id: QueueId
    epoch: Number


class Join(WireMessage, frozen=True):
    """I am, or still am, a member. Repeat it within `session_timeout_ms` to stay one.

    `start` says where a queue begins for which the group has no offset. With "member" the member
    decides, and gets the offset -1; `start_timestamp_ms` is Unix time, for the rule "timestamp".
    `held` are the member's claims. A coordinator that does not know them accepts those that nobody
    else has. If there are more than MAX_CLAIMS, the member claims the others again: one that is
    still its own keeps its epoch. `orderly` members keep their claims through a silence until the
    lock expires, as RocketMQ's do. `retry_topic` has the group's retry topic made at once, as
    RocketMQ's clients expect; otherwise it is made for the first message to be retried, and most
    groups need none. A `parting` member no longer takes part in dividing the queues, and keeps its
    claims until it gives them up. For a `carried` member somebody else speaks: the end of that
    connection is not the member's end. Each process has another `instance`: one that takes the name
    of a living member is refused."""

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

    The answer says in one word whether that is so; if not, the member joins again.
    """

    request: Number
    group: Name
    client_id: Name
    version: Number
    claims: Number


class Claim(WireMessage, frozen=True):
    """Give me these queues of a topic. For one without an offset the coordinator decides where the
    group begins, and saves that, unless the member has `chosen` itself where it reads."""

    request: Number
    group: Name
    client_id: Name
    topic: Name
    queue_ids: Annotated[tuple[QueueId, ...], msgspec.Meta(max_length=MAX_CLAIMS)]
    chosen: bool = False


class QueueCommit(msgspec.Struct, frozen=True, array_like=True):
    """All before `offset` is done. It counts if `epoch` is that of the queue's present claim.
    In Release, the offset -1 leaves the committed offset as it is."""

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
    """Commit and give these queues up in one step, so that the next owner goes on right there."""

    request: Number
    group: Name
    client_id: Name
    commits: Annotated[tuple[QueueCommit, ...], msgspec.Meta(max_length=MAX_CLAIMS)]


class Leave(WireMessage, frozen=True):
    """I am no longer a member; queues that I still have are released without a commit."""

    request: Number
    group: Name
    client_id: Name


class DescribeGroup(WireMessage, frozen=True):
    """For operators: all that is known of a group; with `spans` also who had its queues."""

    request: Number
    group: Name
    run: str = ""
    spans: bool = False


class ListGroups(WireMessage, frozen=True):
    request: Number
    run: str = ""


class ResetOffsets(WireMessage, frozen=True):
    """Set a group's offsets, whether it has members or not. Members go on there at once.

    With `dry_run` nothing changes, and the answer says what would. `unclaimed` sets only queues on
    which nobody has a claim; `unmoved` only those whose offset no operator has set since the last
    commit. The others are not in the answer.
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
    """A topic to which the member subscribes, and how many queues it can read; 0: none yet."""

    topic: str
    read_queues: int


class Joined(WireMessage, frozen=True):
    """`members` are the sorted client ids of those that divide the queues. `version` changes when
    these, the topics or the queues change.

    `lost` are claims that the member named and that somebody else has.
    """

    request: int
    group: str
    version: int
    members: tuple[str, ...]
    topics: tuple[TopicQueues, ...]
    heartbeat_ms: int
    broker_name: str  # part of the queues that strategies divide
    retry_max_times: int
    retry_queue_nums: int
    consume_timeout_ms: int
    lost: tuple[HeldClaim, ...] = ()


class Beaten(WireMessage, frozen=True):
    """`is_same` says whether all is as the member says; the next heartbeat is due in that time."""

    request: int
    is_same: bool
    heartbeat_ms: int


class ClaimedQueue(msgspec.Struct, frozen=True, array_like=True):
    """A queue that is now the member's: go on at `offset`; -1 where the member decides.

    `is_moved` says that an operator has set the offset since the last commit: a member that had
    the queue before does not go on where it was.
    """

    queue_id: int
    offset: int
    epoch: int
    is_moved: bool = False


class Claimed(WireMessage, frozen=True):
    """The queues that were given. Others still have `taken`: ask again when told, or soon."""

    request: int
    group: str
    topic: str
    queues: tuple[ClaimedQueue, ...]
    taken: tuple[int, ...]


class Committed(WireMessage, frozen=True):
    """Done, except for `lost`: queues that are no longer the member's."""

    request: int
    group: str
    lost: tuple[HeldClaim, ...] = ()


class Released(WireMessage, frozen=True):
    """Done, except for `lost`: queues that were not the member's, whose offsets have not moved."""

    request: int
    group: str
    lost: tuple[HeldClaim, ...] = ()


class Left(WireMessage, frozen=True):
    request: int
    group: str


class Changed(WireMessage, frozen=True):
    """Pushed to members: what their next Joined would say, or that a queue has come free. `reset`
    are queues whose offset an operator has set; the member has lost its claim on them, and claims
    them again."""

    request: int  # always 0
    group: str
    reset: tuple[HeldClaim, ...] = ()
    version: int = 0  # 0: nothing new about the group
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
    """A claim during which a queue's offset went from `first` to `next`: its owner has done what
    lies between. `lasts` while it is not over. Times are ms since 1970; -1 where not known."""

    owner: str
    first: int
    next: int
    since_ms: int
    until_ms: int
    lasts: bool


class QueueInfo(msgspec.Struct, frozen=True, array_like=True):
    """A queue of a group: its committed offset, or -1, and the owner of its claim, or "".

    `min_offset` and `max_offset` are the queue's own. `lag_ms` is the time since the oldest message
    that is not done was stored: 0 if all are done, -1 if it is not known. `lag_bytes` likewise.
    `owned_ms` is how long the owner has had its claim; -1 if that is not known. `spans` are the
    last claims that this coordinator knows of, in order, if they were asked for.
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
    """Each group: its number of members, and its lag in messages (-1: not known)."""

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
