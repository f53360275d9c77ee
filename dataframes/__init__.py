"""Topics as Arrow tables and as files, without Spark and, from a store, without a broker.

The rows are those of Spark's source, made by the same code. Needs pyarrow, the extra `[arrow]`.
May import `client` and those parts of `spark` that do not need Spark. No actor needs this package.
"""

import penstock.client.arrow  # noqa: F401 - first, so that its one sentence says what is missing
from penstock.dataframes.store import Store

__all__ = ["Store"]
