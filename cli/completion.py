"""`quarry completion`: lets a shell complete command lines.

The shell runs `quarry` itself, by typer's protocol (the environment variable `_QUARRY_COMPLETE`). Commands, options and
fixed values are read from the commands, names from the contexts file and from the broker. Errors are silent, and then
nothing is completed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated, Any, Final

import typer
from typer._completion_classes import completion_init

from quarry_mq.cli.context_file import ContextInvalid, context_names, current_name
from quarry_mq.cli.contexts import context_of
from quarry_mq.cli.terminal.text import say

NAMES_SHOWN_MAX: Final = 200
_HARMLESS: Final = re.compile(r"[\w.%:@+/*-]+", re.ASCII)
"""Characters of words that are offered. Shells evaluate what they are given, so no other word is offered."""

_FAMILIES: Final = {
    "topic": "topic",
    "group": "group",
    "dead-letters": "group",
    "dlq": "group",
    "user": "user",
    "context": "context",
    "cluster": "member",
}
"""The kind of names that the argument NAME takes in a family of commands."""
_NAMES: Final = {
    "TOPIC": "topic",
    "--topic": "topic",
    "--to-topic": "topic",
    "--lite-parent": "topic",
    "PARENT": "topic",
    "GROUP": "group",
    "--group": "group",
    "USER": "user",
    "KEY": "setting",
    "--context": "context",
    "RESOURCE": "resource",
    "SERVICE/METHOD": "call",
    "COMMAND": "command",
}
"""The kind of names that an argument or option takes in all commands."""
_NEW: Final = frozenset({"topic create", "group create", "user create", "context add"})
"""Commands whose NAME is a new name."""

_BASH: Final = r"""
_quarry_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" words number
    read -ra words <<< "$line"
    number=$(( ${#words[@]} - 1 ))
    [[ $line == *[[:space:]] ]] && (( number++ ))
    local IFS=$'\n'
    COMPREPLY=( $( env COMP_WORDS="$line" COMP_CWORD=$number _QUARRY_COMPLETE=complete_bash "$1" 2>/dev/null ) )
    # bash takes host:port and topic:orders for several words, and replaces the last of them
    local word="${words[number]}"
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=( "${COMPREPLY[@]#"${word%"${word##*:}"}"}" )
    fi
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *: ]] && compopt -o nospace
    return 0
}
complete -o default -F _quarry_completion quarry
"""
_ZSH: Final = r"""
#compdef quarry
_quarry() {
    eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _QUARRY_COMPLETE=complete_zsh ${words[1]} 2>/dev/null)
}
# as a file of $fpath it is called at once, and else made known
if [ "$funcstack[1]" = "_quarry" ]; then _quarry; else compdef _quarry quarry; fi
"""
_FISH_ASKS: Final = (
    "env _QUARRY_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=%s _TYPER_COMPLETE_ARGS=(commandline -cp) quarry"
)
_FISH: Final = (
    f'complete --command quarry --no-files --arguments "({_FISH_ASKS % "get-args"} 2>/dev/null)" '
    f'--condition "{_FISH_ASKS % "is-args"} 2>/dev/null"'
)


class Shell(Enum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS: Final = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion, of which typer makes a line for the shell."""

    value: str
    help: str | None = None
    type: str = "plain"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", show_default=False)]) -> None:
    """Print a script for shell completion of commands, options, and names of contexts, topics and groups."""
    say(SCRIPTS[shell].strip())


def begin(root: Any) -> None:
    """Answer a shell in this run, with completions for the options of the root. See `attach` for commands."""
    completion_init()
    _attach("", root)


def attach(command: Any, name: str) -> None:
    """Add completion to each argument and option of a command of the root, or of the commands of a family."""
    for path, each in _commands(command, name):
        _attach(path, each)


def _attach(path: str, command: Any) -> None:
    for param in command.params:
        kind = kind_of(path, param)
        if kind is not None:
            _complete_by(param, partial(_values, kind))


def kind_of(path: str, param: Any) -> str | None:
    """Return what an argument or option takes: a kind of names, or fixed words separated by `|`; None: anything."""
    if param.param_type_name == "argument":
        spelled = (param.metavar or param.name.upper()).removesuffix("...").strip("[]")
        if spelled == "NAME":
            return None if path in _NEW else _FAMILIES.get(path.split(maxsplit=1)[0])
        if spelled == "ACTION":
            return "pub|sub|create|update|delete|get|list"
        return _NAMES.get(spelled)
    known = [_NAMES[each] for each in param.opts if each in _NAMES]
    if known:
        return known[0]
    return param.metavar if param.metavar and "|" in param.metavar else None


def _complete_by(param: Any, values: Callable[[Any, str], Sequence[str]]) -> None:
    def shell_complete(ctx: Any, incomplete: str) -> list[Completion]:
        try:
            found = values(ctx, incomplete)
        except Exception:  # noqa: BLE001 - a shell at its prompt is no place for errors
            return []
        fitting = [each for each in found if each.startswith(incomplete) and _HARMLESS.fullmatch(each)]
        return [Completion(each) for each in fitting[:NAMES_SHOWN_MAX]]

    param.shell_complete = shell_complete


def _values(kind: str, ctx: Any, begun: str) -> Sequence[str]:
    if "|" in kind:
        return [word for word in kind.split("|") if word.islower()]
    match kind:
        case "context":
            return context_names()
        case "call":
            from quarry_mq.protocol.admin_methods import methods

            return [path.partition("/")[0].rpartition(".")[2] + "/" + path.partition("/")[2] for path in methods()]
        case "command":
            return list(ctx.find_root().command.commands)
        case "resource":
            family, colon, name = begun.partition(":")
            if not colon:
                return ["topic:", "group:", "cluster:*"]
            return [f"{family}:{each}" for each in (*_asked(family, ctx, name), "*")]
        case _:
            return _asked(kind, ctx, begun)


def _asked(kind: str, ctx: Any, begun: str) -> Sequence[str]:
    """Return names from the broker that the command would ask."""
    from quarry_mq.cli.online.connection.administration import names_of
    from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT

    name = ctx.find_root().params.get("context") or current_name()
    context = None
    if name is not None:
        try:
            context = context_of(name)
        except ContextInvalid:
            return ()
    said = ctx.params.get("admin") or ctx.params.get("_admin")
    admin = said if said not in (None, ADMIN_DEFAULT) else (context and context.admin) or ADMIN_DEFAULT
    return names_of(kind, admin, context, prefix=begun)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a command, and all commands below a family, with their words."""
    yield path, command
    for word, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{path} {word}")
