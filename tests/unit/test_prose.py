"""The check of prose: each rule is seen failing, and what it must not report."""

from __future__ import annotations

import pytest

from scripts.prose import USER_PHRASES, covers, problems

# One text for each entry of USER_PHRASES, in its order.
BROKEN = (
    "start the job anew",
    "it was slow of late",
    "if it waits so long",
    "it restarts by itself",
    "it may not start",
    "nobody listens",
    "the host is told its port",
    "the file stands in the folder",
    "one per GPU; else one",
    "a process of ours",
    "each with its cure",
    "bring home the records",
    "it runs all the same",
    "the list is held against it",
    "run it a second time",
    "Docker is missing on this machine",
)


@pytest.mark.parametrize(
    ("text", "rule"), list(zip(BROKEN, USER_PHRASES, strict=True)), ids=lambda value: str(value)[:30]
)
def test_each_phrase_is_reported(text: str, rule: tuple[object, str]) -> None:
    found = [problem for _, problem in problems("docs/page.md", f"# Title\n\n{text}\n")]
    assert len(found) == 1 and found[0].endswith(f"write {rule[1]}")


@pytest.mark.parametrize("word", ["What", "How", "Who", "Whether", "Where", "Which", "Why", "When"])
def test_a_docstring_that_begins_like_a_question_is_reported(word: str) -> None:
    for text in (f'"""{word} it is."""\n', f'def f():\n    """{word} it is."""\n'):
        assert [problem for _, problem in problems("tests/x.py", text)] == [
            f"docstring begins with {word}: use a verb or a noun phrase"
        ]


def test_messages_comments_and_docstrings_are_prose_in_the_package() -> None:
    text = (
        'X = f"host {1} stands still"  # nobody\n\ndef f():\n    """Return it.\n\n    Made anew.\n    """\n'
    )
    assert sorted(line for line, _ in problems("toolkit/x.py", text)) == [1, 1, 6]
    # Strings of tests are data.
    assert sorted(line for line, _ in problems("tests/x.py", text)) == [1, 6]


def test_this_machine_is_a_problem_only_in_texts_for_users() -> None:
    text = '"""Files of this machine."""\n\nX = "not on this machine"  # of this machine\n'
    assert [line for line, _ in problems("toolkit/x.py", text)] == [3]
    script = "# Needs root on this machine.\nsay 'nothing on this machine'\n"
    assert [line for line, _ in problems("scripts/x.sh", script)] == [2]


def test_code_in_pages_is_no_prose() -> None:
    page = "`nobody` and [a link](nobody.md)\n\n```sh\nchown nobody file\n```\n\n    su nobody\n"
    assert list(problems("docs/page.md", page)) == []
    assert [line for line, _ in problems("docs/page.md", page + "\nnobody\n")] == [9]


def test_an_entry_of_a_folder_covers_files_below_it() -> None:
    assert covers("docs/adr/", "docs/adr/0001.md") and covers("README.md", "README.md")
    assert not covers("docs/adr", "docs/adr/0001.md")
