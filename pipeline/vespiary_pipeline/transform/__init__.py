"""Tables made of records: DataFrame in, DataFrame out, no job is started here.

`bindings`, `queues`, `transactions` and `live` say what a broker would recover; the others count.
"""

from vespiary_pipeline.transform.bindings import bindings, queues
from vespiary_pipeline.transform.counting import ages, depth, redelivered, sizes
from vespiary_pipeline.transform.live import RECORD_COLUMNS, live
from vespiary_pipeline.transform.messages import dead_letters, messages
from vespiary_pipeline.transform.settling import transactions
from vespiary_pipeline.transform.timeline import timeline
from vespiary_pipeline.transform.usage import usage

__all__ = [
    "RECORD_COLUMNS",
    "ages",
    "bindings",
    "dead_letters",
    "depth",
    "live",
    "messages",
    "queues",
    "redelivered",
    "sizes",
    "timeline",
    "transactions",
    "usage",
]
