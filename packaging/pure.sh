#!/bin/sh
# Take the compiled loops out of what is built from this checkout: the wheel is then for any system.
#
#   packaging/pure.sh && python -m build --wheel
set -eu
cd "$(dirname "$0")/.."
sed -i '/^\[\[tool.setuptools.ext-modules\]\]/,/^optional = true/d' pyproject.toml
