import os
from importlib.metadata import version as installed_version

import django

# autodoc imports the package, which needs Django set up but no database.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
os.environ.setdefault("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
django.setup()

project = "django_durable"
author = "django_durable contributors"
copyright = f"2026, {author}"
release = version = installed_version("django-durable-jobs")

# No intersphinx: the documentation builds without a network.
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# The docstrings write code between single backticks.
default_role = "code"

html_theme = "furo"
html_title = f"django_durable {release}"
