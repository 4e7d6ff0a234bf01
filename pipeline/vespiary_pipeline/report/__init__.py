"""A report on a broker's journals: tables in, one HTML file out, or a short text.

A job fills `ReportTables`; `html_page` and `text_report` show them. Nothing here knows of Spark.
"""

from vespiary_pipeline.report.page import html_page
from vespiary_pipeline.report.tables import ReportTables
from vespiary_pipeline.report.terminal import text_report

__all__ = ["ReportTables", "html_page", "text_report"]
