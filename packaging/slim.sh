#!/bin/sh
# Take from an environment what no broker opens: for an image, where each MB is a download.
#
#   packaging/slim.sh /opt/penstock
set -eu
site=$(echo "$1"/lib/python3.*/site-packages)

"$1"/bin/python -m pip uninstall --quiet --yes pip
# Libraries' tests, headers, stubs and sources.
find "$site" -depth -type d \( -name tests -o -name include -o -name __pycache__ \) -exec rm -r {} +
rm -rf "$site"/numpy/f2py "$site"/numpy/distutils
find "$site" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' \
    -o -name '*.c' -o -name '*.h' -o -name '*.a' \) -delete
# No symbols are stripped: the libraries inside wheels do not load any more after that.
du -sm "$1"
