"""Jobs over whole stores: each cuts a store into parts, has Spark process them, joins the results.

    parts     one Spark task for each part, with progress
    audit     every record, queue entry and index item, checked
    rebuild   consume queues and index made again from the log
    archive   what is new, as Parquet: manifest, archive_files, archive_check
    restore   an archive's messages, back in a topic
    messages  a store's messages without their bodies, for the two below
    stats     figures, and stats_page
    compact   the last message of each key
    putting   messages that were read, put into a topic

May import `maintenance`, `client`, `shared` and the rest of `spark`, but never the sink: messages
are put into a topic through `putting`. Audit and rebuild process a part by maintenance's functions,
which the commands without Spark apply to the whole store.
"""
