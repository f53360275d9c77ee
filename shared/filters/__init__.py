"""Which messages a consumer wants: tags and SQL92.

May import `formats`. It must never know consumers or files: an expression from outside is parsed
and limited here before anything else sees it.
"""
