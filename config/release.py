"""The release of this program."""

VERSION = "0.1.0"
"""Version of ``pyproject.toml``, written here as well: importing what reads the metadata of an installed package takes
1 MiB of an idle edge node."""
SOFTWARE = f"weft {VERSION}"
"""Name and version, which nodes tell each other."""
