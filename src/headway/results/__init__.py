"""Reads results back: records, summaries, comparisons, tables, charts and the report."""

from headway.results.comparison import Comparison, compare
from headway.results.metrics import COLUMNS, Column, RunInfo, Summary, met_targets, summarize
from headway.results.plots import Latency, cdf_svg, queue_svg, sweep_svg, timeline_svg
from headway.results.records import RecordWriter, read_records
from headway.results.report import Section, labelled_summaries, render_html, sections
from headway.results.run_folder import (
    Run,
    RunMeta,
    forget_run_without_records,
    has_run,
    load_folder,
    read_run,
    read_runs,
    record_writer,
    replace_records,
    start_run,
    write_info,
)
from headway.results.tables import terminal_table, to_json

__all__ = [
    "COLUMNS",
    "Column",
    "Comparison",
    "Latency",
    "RecordWriter",
    "Run",
    "RunInfo",
    "RunMeta",
    "Section",
    "Summary",
    "cdf_svg",
    "compare",
    "forget_run_without_records",
    "has_run",
    "labelled_summaries",
    "load_folder",
    "met_targets",
    "queue_svg",
    "read_records",
    "read_run",
    "read_runs",
    "record_writer",
    "render_html",
    "replace_records",
    "sections",
    "start_run",
    "summarize",
    "sweep_svg",
    "terminal_table",
    "timeline_svg",
    "to_json",
    "write_info",
]
