"""Checks that a service next to training answers.

    check.health URL

Exits with 0 after a status of 200 to 399; otherwise prints the reason in one line.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

from toolkit.container.conventions import fail
from toolkit.protocol.outcomes import EXIT_USAGE

ANSWER_S = 5.0


class _AsItIs(urllib.request.HTTPRedirectHandler):
    """Handler that does not follow redirects: the target can be a name that only a browser can resolve."""

    def redirect_request(self, *_: object) -> None:
        return None


def main() -> int:
    if len(sys.argv) != 2:
        fail(EXIT_USAGE, "usage: check.health URL")
    # Ignore the container's proxy variables, which are for external servers.
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
    print(f"the service returned HTTP status {status}")
    return 1
