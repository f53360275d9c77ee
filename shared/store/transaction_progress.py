"""How far the transactions actor has gone through half messages: STORE/penstock/transactions.

    {"half": 120, "op": 17, "from_half": 100, "from_op": 12}

All half messages before `half` have an outcome, and no op record before `op` names a half message
at or after `half`. They are RocketMQ's two offsets of the group CID_RMQ_SYS_TRANS, which the
coordinator puts into config/consumerOffset.json. Penstock's start begins a little earlier, at
`from_half` and `from_op`, to remember how the last ones ended. The file may be older than the
queues: what it lacks is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import make_directory, replace_file
from penstock.shared.files.sealed_json import NotAsWritten, sealed, unsealed
from penstock.shared.messaging.system_topics import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP

_Offset = Annotated[int, msgspec.Meta(ge=0, lt=1 << 58)]


class TransactionProgress(msgspec.Struct, frozen=True):
    """Offsets of queue 0 of the half topic and of the op topic."""

    half: _Offset = 0
    op: _Offset = 0
    from_half: _Offset = 0
    from_op: _Offset = 0

    def rows(self) -> dict[str, dict[int, int]]:
        """Topic -> queue -> offset, of the group in which RocketMQ keeps this."""
        return {HALF_TOPIC: {0: self.half}, OP_TOPIC: {0: self.op}}

    def merged(
        self, offsets: Mapping[str, Mapping[str, Mapping[int, int]]]
    ) -> Mapping[str, Mapping[str, Mapping[int, int]]]:
        """All groups' offsets (group -> topic -> queue -> offset), including these.

        If RocketMQ's are further, it has used the store since, and they stay.
        """
        known = offsets.get(TRANSACTION_GROUP, {}).get(HALF_TOPIC, {}).get(0, 0)
        return {**offsets, TRANSACTION_GROUP: self.rows()} if self.half >= known else offsets


_decoder: msgspec.json.Decoder[TransactionProgress] = msgspec.json.Decoder(TransactionProgress)


def load_transaction_progress(file: Path) -> TransactionProgress | None:
    """None where there is no such file, or something else in its place: then RocketMQ's offsets
    count, and what they lack is read again."""
    try:
        return unsealed(read_file(file), _decoder)
    except (FileNotFoundError, IsADirectoryError, NotAsWritten):
        return None


def save_transaction_progress(file: Path, progress: TransactionProgress) -> None:
    """Durable on return. Raises OSError."""
    make_directory(file.parent)
    replace_file(file, sealed(msgspec.json.encode(progress)))
