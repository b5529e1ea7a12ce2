"""Stands in for `curl`, with the options that the documentation uses."""

import argparse
import sys
import urllib.error
import urllib.request

PATIENCE_S = 240.0
"""That of the tests, whose modules a page's commands do not find."""

parser = argparse.ArgumentParser()
parser.add_argument("-H", dest="headers", action="append", default=[])
parser.add_argument("url")
given = parser.parse_args()
headers = dict(header.split(": ", 1) for header in given.headers)
try:
    with urllib.request.urlopen(urllib.request.Request(given.url, headers=headers), timeout=PATIENCE_S) as answer:
        sys.stdout.write(answer.read().decode())
except urllib.error.HTTPError as error:
    sys.stdout.write(error.read().decode())  # curl ends with 0 too
