"""Settings of the documentation site. `make site` builds it offline and fails at a warning."""

import acclimate

project, author = "Acclimate", "The Acclimate authors"
copyright = author
release = version = acclimate.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "reports"]
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
myst_heading_anchors = 4
# Notebooks run at every build; one that fails, fails the build.
nb_execution_mode = "force"
nb_execution_timeout = 180
nb_execution_raise_on_error = True
nb_merge_streams = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
nb_execution_in_temp = True
