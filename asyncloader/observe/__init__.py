"""A loader's passes: counts and times, the verdict on them, and metrics for others to collect."""

from __future__ import annotations

from .metrics import Metrics
from .report import Report
from .statistics import Statistics

__all__ = ["Metrics", "Report", "Statistics"]
