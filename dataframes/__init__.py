"""Topics as Arrow tables and as files, without Spark and, from a store, without a broker.

The rows are those of Spark's source, and are made by the same code. Needs pyarrow: the extra
`[arrow]`. It may import `client` and the parts of `spark` that do without Spark; no actor needs it.
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

from penstock.dataframes.store import Store

__all__ = ["Store"]
