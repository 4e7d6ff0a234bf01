"""Tables made of records: DataFrame in, DataFrame out, no job is started here.

`bindings`, `queues`, `transactions` and `live` say what a broker would recover; the others count.
"""

from vespiary_pipeline.transform.bindings import bindings, queues
from vespiary_pipeline.transform.live import live
from vespiary_pipeline.transform.settling import transactions

__all__ = ["bindings", "live", "queues", "transactions"]
