"""The class of verbs such as `toolkit run`, whose words from SCRIPT on belong to the script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.cli.common import say
from toolkit.cli.lazy import VerbCommand
from toolkit.jobs.launcher import misplaced_options


class ScriptCommand(VerbCommand):
    """A command that passes words after SCRIPT on, and prints a hint if its own options are among them."""

    def invoke(self, ctx: Any) -> Any:
        written = {
            word: f"{word} {option.metavar or 'VALUE'}" if not getattr(option, "is_flag", False) else word
            for option in self.params
            if option.param_type_name == "option"
            for word in (*option.opts, *option.secondary_opts)
        }
        words = ctx.params["words"]
        if any(word.partition("=")[0] in written for word in words[1:]):
            script, found = misplaced_options(words, Path(ctx.params["workdir"]), written)
            if found:
                verb = " ".join(("toolkit", *ctx.command_path.split()[1:]))
                # Without the values, as a value of --env can be a secret.
                right = " ".join((verb, *(written[name] for name in found), script))
                what = f"{script} receives {' and '.join(found)}, which the script does not mention"
                say(f"hint: {what}; write options of `{verb}` before the script: {right} ...")
        return super().invoke(ctx)
