"""Jobs over whole stores: each cuts a store into parts, has Spark work on them, joins the results.

    parts     one Spark task for each part, with progress
    audit     every record, queue entry and index item, checked
    rebuild   consume queues and index made again from the log
    archive   what is new, as Parquet: manifest, archive_files, archive_check
    restore   an archive's messages, back in a topic
    messages  a store's messages without their bodies, for the two below
    stats     figures, and stats_page
    compact   the last message of each key
    putting   messages that were read, put into a topic

May import `maintenance`, `client`, `shared` and the rest of `spark`, and never the sink: what is
put into a topic goes through `putting`. What audit and rebuild do with a part is maintenance's: the
commands without Spark do the same with the whole.
"""
