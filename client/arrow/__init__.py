"""Records as Arrow columns, a batch at a time: for `poll_arrow`, data frames and Spark.

May import `core` and `shared`. Needs pyarrow, the extra `[arrow]`. No client loads this before it
is first asked for columns, so clients can be imported without it.
"""

from penstock.shared.errors import MissingDependency

try:
    import pyarrow  # noqa: F401 - looked for here, so that one sentence says what is missing
except ModuleNotFoundError as error:
    raise MissingDependency(
        "a package that data frames need is not installed",
        error.name,
        'pip install "penstock[arrow]"',
    ) from error
