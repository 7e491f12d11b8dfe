"""The HTML report of an evaluation: one file that needs no network to be read."""

from __future__ import annotations

from flowhash.evaluate.output.report_page import render_report, write_report

__all__ = ["render_report", "write_report"]
