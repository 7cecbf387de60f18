"""Views of what was measured: tables, plots and pages. Nothing here computes a result."""
