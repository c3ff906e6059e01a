"""What .gitignore files say, by the pathspec library, one folder's rules at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pathspec


@dataclass(frozen=True)
class Rules:
    """The rules of one ignore file.

    Two readings of the same lines, because the library's own order of precedence is made for a list of
    files: a rule for folders counts less in it than one for anything. Whoever walks from folder to folder,
    as git does, needs the last rule that matches to win for a folder.
    """

    for_files: pathspec.GitIgnoreSpec
    for_folders: pathspec.PathSpec  # type: ignore[type-arg]

    def ignored(self, path: str, is_folder: bool) -> bool | None:
        """Return what the rules say about an entry, None when they say nothing.

        Args:
            path: relative to the folder of the rules; the folders above it are asked first, by the caller.
        """
        if is_folder:
            return self.for_folders.check_file(f"{path}/").include
        return self.for_files.check_file(path).include


def parse_ignore(data: bytes) -> Rules | None:
    """Return the rules of an ignore file, None when it has none; lines without a meaning are passed over."""
    lines = data.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape").split("\n")
    meant = [line for line in (raw.removesuffix("\r") for raw in lines) if _has_meaning(line)]
    if not meant:
        return None
    folders = pathspec.PathSpec.from_lines("gitignore", meant)
    return Rules(pathspec.GitIgnoreSpec.from_lines(meant), folders)


def _has_meaning(line: str) -> bool:
    try:
        pathspec.GitIgnoreSpec.from_lines([line])
    except ValueError:  # what pathspec and re say of a pattern that is none
        return False
    return bool(line.strip())
