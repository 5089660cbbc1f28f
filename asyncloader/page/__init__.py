"""The page of a traced pass: one HTML file that needs nothing else, neither a network nor a script.

``plots`` has the numbers and shapes, ``templates`` how they look, and ``page`` puts both together.
"""

from .page import loader_html, render, report_html

__all__ = ["loader_html", "render", "report_html"]
