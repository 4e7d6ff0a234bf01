"""Where Spark finds the format `vespiary` by itself: it looks into modules named `pyspark_…`.

Owns one name. A module of that kind that can't be imported ends Spark's search for all of them, so
one that can't be used (an older Spark, no Arrow) says nothing and offers nothing.
"""

try:
    from vespiary_pipeline.source import VespiarySource as DefaultSource
except ImportError:  # pragma: no cover
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
