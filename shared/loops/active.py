"""The loops that run once per message: this file chooses which of their two forms a process uses.

`compiled` is compiled. Its twin in Python, which is the reference and runs where there was no
compiler, consists of `pure.frame`, `pure.walk`, `pure.queues`, `pure.encode`, `pure.sends`,
`pure.intake`, `pure.sending`, `pure.ranges`, `pure.message`, `pure.answer`, `pure.serving`,
`pure.timers`, `pure.plain`, `pure.client_frame`, `pure.columns` and, for what cannot be done in
Python, `lost_pages`. PENSTOCK_PURE=1 chooses the twin. A compiled module of other sources is not
used: it says for which INTERFACE it was made.
"""

from __future__ import annotations

import os

__all__ = [
    "ClientFrame",
    "Message",
    "FrameOfRuns",
    "FrameRun",
    "Intake",
    "KeyNumbers",
    "Outcome",
    "PageWatch",
    "PlainSender",
    "QueueNumbers",
    "RecordMaker",
    "SendLock",
    "batch_records",
    "bodies",
    "by_queue",
    "cells",
    "check_frame",
    "check_properties",
    "copy_bodies",
    "cut_properties",
    "delayed_copies",
    "dispatch",
    "drop_parts",
    "find_socket_functions",
    "gather",
    "has_message",
    "json_lines",
    "join_properties",
    "link_entries",
    "log_ranges",
    "lost_pages",
    "messages",
    "move_ends",
    "move_slots",
    "part_starts",
    "properties_of",
    "put_entries",
    "put_stamped",
    "record_fields",
    "record_starts",
    "timer_entries",
    "touch_pages",
    "wall_ms",
    "why_pure",
]

# Raise it with every change of what the compiled module and its twin take, return or mean: an
# editable install keeps using the module that it has compiled until it is installed again.
INTERFACE = 31
# "" and "0" count as not set. It is read once, and inherited by the actors.
VARIABLE = "PENSTOCK_PURE"


def _why_pure() -> str:
    """Why the compiled loops are not used; "" if they are.

    Raises nothing: a process without them is slower, not wrong, and `penstock version` says so.
    """
    if os.environ.get(VARIABLE, "") not in ("", "0"):
        return f"{VARIABLE} is set"
    try:
        # not `from ... import compiled`, which cannot tell a missing module from a broken one
        import penstock.shared.loops.compiled as compiled
    except ModuleNotFoundError:
        return "the compiled module is not there: install again where a C compiler is"
    # the module also raises this itself, if its offsets of a record's fields differ from ours
    except ImportError as error:
        return f"the compiled module cannot be loaded: {error}"
    # A module of older sources may take the same arguments, with another meaning.
    if compiled.INTERFACE != INTERFACE:
        return (
            f"the compiled module was built for interface {compiled.INTERFACE}, "
            f"this is {INTERFACE}: install Penstock again"
        )
    return ""


# Once for a process: the compiled loops access their frames and futures through pointers, and
# refuse those of the other form.
why_pure = _why_pure()

# All or none: a loop takes only what a loop of the same form has made.
if why_pure:
    from penstock.shared.loops.lost_pages import PageWatch, lost_pages, touch_pages
    from penstock.shared.loops.pure.answer import bodies, messages, part_starts
    from penstock.shared.loops.pure.client_frame import ClientFrame
    from penstock.shared.loops.pure.columns import (
        cells,
        copy_bodies,
        cut_properties,
        json_lines,
        record_fields,
    )
    from penstock.shared.loops.pure.encode import RecordMaker, join_properties, properties_of
    from penstock.shared.loops.pure.frame import check_frame, check_properties, put_stamped
    from penstock.shared.loops.pure.intake import Intake, wall_ms
    from penstock.shared.loops.pure.message import Message
    from penstock.shared.loops.pure.plain import batch_records
    from penstock.shared.loops.pure.queues import QueueNumbers, by_queue, move_ends, put_entries
    from penstock.shared.loops.pure.ranges import gather, log_ranges
    from penstock.shared.loops.pure.sending import PlainSender, SendLock
    from penstock.shared.loops.pure.sends import FrameOfRuns, FrameRun, KeyNumbers, Outcome
    from penstock.shared.loops.pure.serving import drop_parts, has_message
    from penstock.shared.loops.pure.timers import delayed_copies, timer_entries
    from penstock.shared.loops.pure.walk import dispatch, link_entries, move_slots, record_starts
else:
    # Unpickling names a function of the twin, wherever the message was pickled.
    from penstock.shared.loops import pure as _pure
    from penstock.shared.loops.compiled import (
        ClientFrame,
        FrameOfRuns,
        FrameRun,
        Intake,
        KeyNumbers,
        Message,
        Outcome,
        PageWatch,
        PlainSender,
        QueueNumbers,
        RecordMaker,
        SendLock,
        batch_records,
        bodies,
        by_queue,
        cells,
        check_frame,
        check_properties,
        copy_bodies,
        cut_properties,
        delayed_copies,
        dispatch,
        drop_parts,
        gather,
        has_message,
        join_properties,
        json_lines,
        link_entries,
        log_ranges,
        lost_pages,
        messages,
        move_ends,
        move_slots,
        part_starts,
        properties_of,
        put_entries,
        put_stamped,
        record_fields,
        record_starts,
        timer_entries,
        touch_pages,
        wall_ms,
    )

    _pure.message_class = Message


def find_socket_functions() -> None:
    """Look up the functions that `has_message` calls. Otherwise its first use does so, which takes
    a millisecond or two; a fork inherits what its parent has found."""
    if not why_pure:
        _pure.serving.addresses()
