"""Settings of a store that is made for one test: little is allocated ahead.

Messages are as durable as with the defaults.
"""

from __future__ import annotations

SMALL_FILES: dict[str, str | int | bool] = {
    "mapped_file_size_commit_log_bytes": 16 << 20,
    "mapped_file_size_consume_queue_bytes": 20 * 10_000,
    "max_hash_slot_num": 20_000,
    "max_index_num": 80_000,
    "max_message_size_bytes": 4 << 20,
}
