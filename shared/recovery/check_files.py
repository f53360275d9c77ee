"""What a start checks before it changes anything: is each file what its place demands?

It is as strict as RocketMQ, which refuses stray and short files among segments, and as lenient: it
accepts files outside segment directories, names that are not queues, and an empty last file.
"""

from __future__ import annotations

import stat
from pathlib import Path

from penstock.shared.errors import StoreDamaged
from penstock.shared.index.directory import check_index_sizes, index_geometry
from penstock.shared.next_steps import move_away, rebuild_index
from penstock.shared.progress.consumer_offsets import ConsumerOffsets
from penstock.shared.progress.delay_offsets import delay_offsets
from penstock.shared.progress.subscription_groups import SubscriptionGroups
from penstock.shared.store.geometry import check_lengths
from penstock.shared.store.rocketmq_json import load_document
from penstock.shared.store.survey import StoreSurvey
from penstock.shared.store.topics import load_topics


def check_files(survey: StoreSurvey) -> None:
    """Raises StoreDamaged, naming the file and what to do; OSError; and ConfigError if the files
    agree with each other but not with a size in the configuration. Changes nothing.

    The caller holds the store's lock, so what passes here stays so for the rest of the start.
    """
    paths, config = survey.paths, survey.config
    # Kinds come first, because the checks below and the rest of the start open these files.
    for path, kind in (
        (paths.checkpoint, stat.S_IFREG),
        (paths.abort, stat.S_IFREG),
        (paths.topics, stat.S_IFREG),
        (paths.index, stat.S_IFDIR),
    ):
        _check_kind(path, kind)
    for path in paths.index.iterdir() if paths.index.is_dir() else ():
        if path.name.isascii() and path.name.isdigit():
            _check_kind(path, stat.S_IFREG, f"make the index anew: {rebuild_index(path)}")
    check_index_sizes(paths.index, index_geometry(config))
    # These are loaded for their errors only: a bad file is to be refused while nothing has been
    # changed, and not by an actor, which would be started again and again.
    load_topics(paths.topics)
    load_document(paths.subscription_groups, SubscriptionGroups)
    load_document(paths.consumer_offsets, ConsumerOffsets)
    load_document(paths.delay_offsets, delay_offsets)
    try:
        survey.check_names_and_sizes()
    except StoreDamaged:
        check_lengths(paths, config)  # the configured size may be wrong, and not the files
        raise


def _check_kind(path: Path, kind: int, hint: str = "") -> None:
    """Raise StoreDamaged if something of another kind is at a path. A missing file is accepted: the
    start makes those that it needs."""
    if path.exists() and stat.S_IFMT(path.stat().st_mode) != kind:
        raise StoreDamaged(
            "this is no directory" if kind == stat.S_IFDIR else "this is no ordinary file",
            path,
            hint or f"the next start makes what is missing: {move_away(path)}",
        )
