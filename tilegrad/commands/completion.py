"""`tilegrad completion bash|zsh|fish`: a script that completes commands, options, names of models, devices and chips.

Everything is in the script, so that a key press starts no Python; it is made again after an update or for new chips.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from tilegrad import zoo
from tilegrad.devices.registry import device_names
from tilegrad.errors import UserError
from tilegrad.report.output import Output
from tilegrad.targets import base as targets

_WORD = re.compile(r"[a-z0-9][\w.-]*", re.IGNORECASE)


@dataclass
class Words:
    """What may follow a command: its options, each with the values it is known to take, and its own arguments."""

    name: str
    summary: str
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    takes_value: set[str] = field(default_factory=set)
    arguments: tuple[str, ...] = ()


def words_of(root: Any) -> Iterator[Words]:
    """Of every command of the program; those of a group are arguments of the group."""
    names = {"--device": device_names(), "--target": targets.names()}
    for name, command in root.commands.items():
        inside = getattr(command, "commands", {})
        found = Words(name, (command.get_short_help_str(60) if command.help else name), arguments=tuple(inside))
        for one in (command, *inside.values()):
            for parameter in one.params:
                if parameter.param_type_name == "argument":
                    found.arguments += _argument_words(str(parameter.metavar))
                    continue
                for option in (*parameter.opts, *parameter.secondary_opts):
                    found.options[option] = names.get(option) or _choices(str(parameter.metavar or ""))
                    if not parameter.is_flag:
                        found.takes_value.add(option)
        found.options |= {"--help": (), "-h": ()}
        yield found


def _argument_words(metavar: str) -> tuple[str, ...]:
    if "MODEL" in metavar or metavar == "[NAME]":
        return tuple(zoo.names())
    if metavar.startswith("[T|"):
        return targets.names()
    return _choices(metavar)


def _choices(metavar: str) -> tuple[str, ...]:
    """The words of `on|off`; none where some of them stand for something else."""
    words = metavar.split("|")
    is_list = len(words) > 1 and all(_WORD.fullmatch(word) and not word.isupper() for word in words)
    return tuple(words) if is_list and not any("." in word for word in words) else ()


def _quoted(words: Mapping[str, Any] | tuple[str, ...] | list[str]) -> str:
    return shlex.quote(" ".join(words))


def bash_script(commands: list[Words]) -> str:
    lines = [
        "# tilegrad: completion for bash. Source it, or put it into bash_completion's folder.",
        "_tilegrad() {",
        "    local line=${COMP_LINE:0:COMP_POINT} cur prev command words",
        "    cur=${line##*[[:space:]]}",
        '    read -ra before <<< "${line%"$cur"}"',
        '    prev=${before[${#before[@]}-1]} command=${before[1]:-} words=""',
        '    case "$command $prev" in',
    ]
    for one in commands:
        for option in sorted(one.takes_value):
            if one.options[option]:
                lines.append(f"        {_case(one.name, option)}) words={_quoted(one.options[option])} ;;")
        files = [option for option in sorted(one.takes_value) if not one.options[option]]
        if files:
            lines.append(f"        {'|'.join(_case(one.name, option) for option in files)})")
            lines.append('            COMPREPLY=($(compgen -f -- "$cur")); return ;;')
    lines += ["    esac", '    if [[ -z $words ]]; then case "$command" in']
    for one in commands:
        lines.append(f"        {one.name}) if [[ $cur == -* ]]; then words={_quoted(list(one.options))};")
        lines.append(f"            else words={_quoted(one.arguments)}; fi ;;")
    everything = [one.name for one in commands]
    lines += [
        f"        *) words={_quoted([*everything, '--help', '--help-all', '--version'])} ;;",
        "    esac; fi",
        '    COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "    # A colon ends a word for bash: what is before it is there already.",
        "    if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then",
        '        local start=${cur%"${cur##*:}"} i',
        '        for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"$start"}; done',
        "    fi",
        "}",
        "complete -o default -F _tilegrad tilegrad",
    ]
    return "\n".join(lines) + "\n"


def _case(command: str, option: str) -> str:
    return f'"{command} {option}"'


def zsh_script(commands: list[Words]) -> str:
    lines = [
        "#compdef tilegrad",
        "# tilegrad: completion for zsh. Put it into a folder of $fpath as _tilegrad, or source it after compinit.",
        "_tilegrad() {",
        "    local command=${words[2]} prev=${words[CURRENT-1]}",
        "    local -a found",
        "    if (( CURRENT == 2 )); then",
        f"        compadd -- {' '.join(one.name for one in commands)} --help --help-all --version; return",
        "    fi",
        '    case "$command $prev" in',
    ]
    for one in commands:
        for option in sorted(one.takes_value):
            if one.options[option]:
                lines.append(f"        {_case(one.name, option)}) compadd -- {_list(one.options[option])}; return ;;")
        files = [option for option in sorted(one.takes_value) if not one.options[option]]
        if files:
            lines.append(f"        {'|'.join(_case(one.name, option) for option in files)}) _files; return ;;")
    lines += ["    esac", '    case "$command" in']
    for one in commands:
        lines.append(f"        {one.name})")
        lines.append(f"            if [[ $PREFIX == -* ]]; then compadd -- {_list(tuple(one.options))}; return; fi")
        lines.append(f"            {f'compadd -- {_list(one.arguments)};' if one.arguments else ''} _files ;;")
    lines += ["    esac", "}", "if [[ $funcstack[1] == _tilegrad ]]; then"]
    lines += ['    _tilegrad "$@"', "else", "    compdef _tilegrad tilegrad", "fi"]
    return "\n".join(lines) + "\n"


def _list(words: tuple[str, ...]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def fish_script(commands: list[Words]) -> str:
    lines = [
        "# tilegrad: completion for fish. Put it into ~/.config/fish/completions/tilegrad.fish.",
        "complete -c tilegrad -e",
    ]
    for one in commands:
        lines.append(f"complete -c tilegrad -f -n __fish_use_subcommand -a {one.name} -d {shlex.quote(one.summary)}")
        where = f"-n '__fish_seen_subcommand_from {one.name}'"
        if one.arguments:
            lines.append(f"complete -c tilegrad {where} -a {_quoted(one.arguments)}")
        for option, values in one.options.items():
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            if not option.startswith("--") and len(option) > 2:
                continue
            given = f" -x -a {_quoted(values)}" if values else " -r" if option in one.takes_value else ""
            lines.append(f"complete -c tilegrad {where} {kind}{given}")
    lines += [f"complete -c tilegrad -n __fish_use_subcommand -l {word}" for word in ("help", "help-all", "version")]
    return "\n".join(lines) + "\n"


SHELLS: Mapping[str, Callable[[list[Words]], str]] = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}


def completion(
    context: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="|".join(SHELLS), help="The shell.", show_default=False)],
) -> int:
    """Print a script that lets a shell complete commands, options, and names of models, devices and chips."""
    if shell not in SHELLS:
        known = " or ".join(SHELLS)
        raise UserError(f"there is no completion for '{shell}'", stage="options", expected=known, got=shell)
    Output().dump(SHELLS[shell](list(words_of(context.find_root().command))))
    return 0
