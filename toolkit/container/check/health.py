"""Asks a service beside training whether it serves.

    check.health URL

Ends with 0 upon an answer of 200 to 399, else says in one line why not.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

from toolkit.container.exits import fail
from toolkit.protocol.exit_codes import EXIT_USAGE

ANSWER_S = 5.0


class _AsItIs(urllib.request.HTTPRedirectHandler):
    """Who sends us elsewhere serves; where to may be a name that only a browser knows."""

    def redirect_request(self, *_: object) -> None:
        return None


def main() -> int:
    if len(sys.argv) != 2:
        fail(EXIT_USAGE, "usage: check.health URL")
    # A proxy that the container's variables name is for the world outside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _AsItIs)
    try:
        with opener.open(sys.argv[1], timeout=ANSWER_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except (OSError, ValueError) as error:
        print(f"no answer: {getattr(error, 'reason', error)}")
        return 1
    if 200 <= status < 400:
        return 0
    print(f"it answers with {status}")
    return 1
