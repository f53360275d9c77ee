"""Jobs over whole stores: each cuts a store into parts, has Spark work on them, joins the results.

    parts   one Spark task for each part, with progress
    cuts    where a log is cut
    audit   every record, queue entry and index item, checked
    rebuild consume queues and index made again from the log

What is done with a part is maintenance's: the commands without Spark do the same with the whole.
"""
