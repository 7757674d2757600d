"""Configure the documentation site. ``make docs`` writes the site to ``docs/_build/html``, without the network.

Pages are Markdown that a forge such as GitHub can also show, so links are relative paths. `outside_pages.py` adds
pages from outside this folder: notebooks, reports of measurements, and the changelog. The Python reference is made from
docstrings.
"""

import sys
import tomllib
from pathlib import Path

from pygments.lexers.special import TextLexer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import outside_pages  # noqa: E402 - the folder is on the path from here on

from ddflow.errors import GROUPS  # noqa: E402
from ddflow.version import __version__  # noqa: E402

project = "ddflow"
author = "The ddflow engineers"
copyright = "The ddflow engineers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
root_doc = "index"
suppress_warnings = ["myst.header"]  # a page may begin below the first level if it is part of another

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = True

autodoc_typehints = "none"  # the sections of docstrings describe types in words
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_warningiserror = True
autodoc_mock_imports: list[str] = []
numpydoc_show_class_members = False
autosummary_generate = False
numpydoc_validation_checks: set[str] = set()
default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"ddflow {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "footer_icons": []}
pygments_style, pygments_dark_style = "default", "monokai"


CONTENTS = tomllib.loads((HERE / "contents.toml").read_text("utf-8"))


def read(app, name, source):
    """Set the links in the source of a page. Append the list of errors, or the list of pages below it."""
    outside_pages.linked(HERE, name, source)
    if name == "errors":
        for title, of in GROUPS.items():
            shown = "\n".join(f".. autoexception:: ddflow.errors.{each.__name__}" for each in of)
            source[0] += f"\n## {title}\n\n```{{eval-rst}}\n{shown}\n```\n"
    for caption, pages in CONTENTS.get(name, {}).items():
        head = f":glob:\n:caption: {caption}" if caption else ":glob:"
        shown = ":maxdepth: 1\n" if name == "measured" else ":hidden:\n"
        source[0] += f"\n\n```{{toctree}}\n{shown}{head}\n\n" + "\n".join(pages) + "\n```\n"


def signature(app, what, name, of, options, arguments, result):
    """Hide the signature of errors, and of classes that users do not create themselves."""
    made = what != "exception" and (what != "class" or "Parameters\n" in (of.__doc__ or ""))
    return (arguments, result) if made else ("", None)


def setup(app):
    """Connect the steps that add outside pages and set links."""
    app.add_lexer("csv", TextLexer)
    app.connect("builder-inited", lambda app: outside_pages.write(HERE))
    app.connect("source-read", read)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
