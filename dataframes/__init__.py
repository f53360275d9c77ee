"""Topics as Arrow tables and as files, without Spark and, from a store, without a broker.

The rows are those of Spark's source, and are made by the same code. Needs pyarrow: the extra
`[arrow]`. May import `client` and the parts of `spark` that do without Spark; no actor needs it.
"""

import penstock.client.arrow  # noqa: F401 - first, so that its one sentence says what is missing
from penstock.dataframes.store import Store

__all__ = ["Store"]
