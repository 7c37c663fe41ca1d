"""Artifacts for Tontine's read-only stores.

`tontine.spark.write_store` builds one from a Spark data frame; its bytes are those of
`tontine artifact build`.
"""

from tontine._core import TontineError

__all__ = ["TontineError"]
