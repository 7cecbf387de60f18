"""THE table of what the paper kit adds to the command line.

Rows name things by their path, and what they name is imported when it is asked for, not before:
nothing below `paper` imports it.
"""

COMMANDS = {name: f"acclimate.paper.commands.{name}" for name in ("ablate", "reproduce", "theory")}
BUILDERS = {  # name -> module:class, and what it is for
    "geo-yfcc": (
        "acclimate.paper.geo_yfcc.builder:GeoYfcc",
        "Geo-YFCC from YFCC100M's metadata: domains are countries, labels are tags.",
    ),
    "geo-yfcc-released": (
        "acclimate.paper.released.builder:Released",
        "Geo-YFCC from the table that its authors released; the pickle is read, not run.",
    ),
}
ABLATIONS = "acclimate.paper.ablations.table:ABLATIONS"  # what `ablate` varies
FIGURES = "acclimate.paper.figures:FIGURES"  # a report's figures, with the paper's among them
WITH_PUBLISHED = "acclimate.paper.published:with_published"  # a report -> with the paper's rows
