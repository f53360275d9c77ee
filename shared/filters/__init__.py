"""Which messages a consumer wants: tags and SQL92.

May import `formats`. Never consumers or files: an expression from outside is parsed and
bounded here before anything else sees it.
"""
