"""The page of a traced pass: one HTML file that needs nothing else, neither a network nor a script.

``render`` is a pure function of what stands beside the events in the file of a pass. ``look`` is how all of
it looks, ``units`` how numbers are written, ``chart`` how anything is drawn; ``plots`` and ``makers``
are what is, over time and of the whole pass, and ``small`` is what notebooks show of a loader and its report.
"""

from .page import render
from .small import loader_html, report_html

__all__ = ["loader_html", "render", "report_html"]
