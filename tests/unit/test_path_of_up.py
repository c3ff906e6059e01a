"""The number of modules that a cold `up` enters, counted with sys.settrace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The number must not grow; docs/internals/adr/0046-modules-on-the-path-of-up.md explains it.
MOST = 103

# The hosts are those of tests/fuzz, without a cluster. A module counts when one of its functions is called.
COUNT = """
import inspect, sys, threading
from pathlib import Path
import toolkit
from tests.fuzz import answers

package = str(Path(toolkit.__file__).parent) + "/"
entered, known = set(), set()  # files; those that need no second look

def look(frame, event, argument):
    code = frame.f_code
    if code.co_filename in known:
        return
    # Not the bodies of modules and classes, nor what these make of lists: they run at import.
    is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    if not code.co_filename.startswith(package):
        known.add(code.co_filename)
    elif is_function:
        known.add(code.co_filename)
        entered.add(code.co_filename.removeprefix(package))

box = Path(sys.argv[1])
answers.settle(box)
sandbox = answers.sandbox(box)
threading.settrace(look)
sys.settrace(look)
ended = answers.run(answers.Case("up", state="down"), sandbox)
sys.settrace(None)
threading.settrace(None)
assert ended.status == 0, ended.err
print(*sorted(entered), sep="\\n")
"""


def test_a_cold_up_enters_few_modules(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", COUNT, str(tmp_path / "box")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    entered = done.stdout.split()
    assert 30 < len(entered) <= MOST, "\n".join(entered)
