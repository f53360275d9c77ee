"""Why a bar is missed, by its key in bars.py: facts that were measured by hand, with their command.

This is the only place of the page that is written and not measured; it holds no figure of a table.
"""

REASONS: dict[str, str] = {}
