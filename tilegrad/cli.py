"""The command line: what each command is called, and how every command ends.

`main` is the only place where an error becomes an exit status: 0 done, 1 disagrees with the reference, 2 wrong input,
3 a device or compiler is missing or fails, 70 a bug of ours, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from tilegrad import __version__
from tilegrad.build import written
from tilegrad.commands import (
    catalogue,
    check,
    checkpoint,
    compare,
    completion,
    describe,
    evaluate,
    explore,
    report,
    several,
    train,
)
from tilegrad.commands.loudness import spoken
from tilegrad.errors import TilegradError
from tilegrad.interrupts import interrupted
from tilegrad.report import failure
from tilegrad.report.streams import writing_to_stdout

HELP = """An ONNX model and a chip in, plain C that trains the model on that chip out: differentiated at compile time,
every byte planned, and verified per tensor.

Start with [b]tilegrad train mlp[/b]. Exit status: 0 done and verified, 1 disagrees with the reference, 2 wrong input,
3 a device or compiler is missing, 70 a bug of tilegrad's, 130 interrupted."""


def _without_flag_types(parameters: list[Any]) -> list[Any]:
    """A flag takes no value, so the help names no type of one."""
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.is_flag and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


app = typer.Typer(
    name="tilegrad",
    cls=_Group,
    help=HELP,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tilegrad {__version__}")
        raise typer.Exit


def _show_all_help(wanted: bool) -> None:
    """One after the other, as each shows its own."""
    if not wanted:
        return
    for words in ((), *_command_words(typer.main.get_command(app))):
        app(args=[*words, "--help"], prog_name="tilegrad", standalone_mode=False)
    raise typer.Exit


def _command_words(group: Any) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (name,)
        yield from ((name, inner) for inner in getattr(command, "commands", {}))


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
    help_all: Annotated[
        bool,
        typer.Option("--help-all", help="Show the help of every command.", callback=_show_all_help, is_eager=True),
    ] = False,
) -> None:
    """The name alone explains itself."""
    del version, help_all
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _examples(*lines: str) -> str:
    return "Examples:\n\n" + "\n\n".join(f"[b]tilegrad {line}[/b]" for line in lines)


app.command(
    cls=_Command,
    epilog=_examples(
        "train mlp --steps 40 --batch 4 --lr 0.1",
        "train model.onnx --data samples.npz --optimizer adam -o out",
        "train resnet8 --train last:1 --json -",
        "train model.onnx --data samples.npz --epochs 3 --validation 0.2 --schedule cosine --save trained.onnx",
        "train cct --train lora:4:16:*attn*",
    ),
)(spoken(train.train))
app.command(
    cls=_Command,
    epilog=_examples(
        "evaluate model.onnx --data test.npz --batch 64", "evaluate mlp --weights mlp.safetensors --data test.npz"
    ),
)(spoken(evaluate.evaluate))
app.command(cls=_Command, epilog=_examples("infer resnet8", "infer model.onnx --data samples.npz --json out.json"))(
    spoken(describe.infer)
)
app.command(
    "compile",
    cls=_Command,
    epilog=_examples(
        "compile resnet8 -o resnet8-c",
        "compile mlp --dump-after plan",
        "compile resnet8 --device 'host*2' --shares 16 -o resnet8-on-two",
    ),
)(spoken(describe.compile_project))
app.command(cls=_Command, epilog=_examples("run resnet8-on-two", "run resnet8-on-two --data samples.npz --steps 100"))(
    spoken(several.run)
)
app.command(cls=_Command, epilog=_examples("inspect cct", "inspect model.onnx --parameters --train last:2"))(
    spoken(describe.inspect)
)
app.command(
    cls=_Command,
    epilog=_examples(
        "compare resnet8 --l1 128K", "compare autoencoder --home L3 --json -", "compare dscnn --target chip.toml"
    ),
)(spoken(compare.compare))
app.command(
    cls=_Command,
    epilog=_examples("report resnet8 --l1 128K -o resnet8.html", "report run-folder --plot timeline -o timeline.svg"),
)(spoken(report.report))
app.command(
    cls=_Command,
    epilog=_examples(
        "explore dscnn --vary l1=32K:256K buffering=single,double cores=1,2,4,8 -o dscnn-points",
        "explore mlp --vary batch=1:4 optimizer=sgd,adam --data samples.npz --epochs 3 -o out",
        "explore resnet8 --vary target=siracusa,gap9 l1=32K:128K --budget 6",
    ),
)(spoken(explore.explore))
app.command(cls=_Command, epilog=_examples("check budget.toml", "check budget.toml --update"))(spoken(check.check))
app.command(cls=_Command, epilog=_examples("gradcheck dscnn", "gradcheck model.onnx --batch 4"))(
    spoken(train.gradcheck)
)
app.command(cls=_Command, epilog=_examples("zoo", "zoo mlp -o mlp.onnx"))(spoken(catalogue.zoo))
app.command(cls=_Command, epilog=_examples("ops", "ops --json -"))(spoken(catalogue.ops))
app.command(cls=_Command, epilog=_examples("targets", "targets siracusa", "targets chip.toml"))(
    spoken(catalogue.targets)
)
app.command(cls=_Command, epilog=_examples("devices"))(spoken(catalogue.devices))
app.command(cls=_Command, epilog=_examples("doctor"))(spoken(catalogue.doctor))
app.command(cls=_Command, epilog=_examples("completion bash > ~/.local/share/bash-completion/completions/tilegrad"))(
    completion.completion
)

checkpoints = typer.Typer(cls=_Group, help="Show, export or compare what a device saved.", rich_markup_mode="rich")
checkpoints.command(cls=_Command, epilog=_examples("checkpoint show flash.bin"))(spoken(checkpoint.show))
checkpoints.command(cls=_Command, epilog=_examples("checkpoint export flash.bin -o learned.npz"))(
    spoken(checkpoint.export)
)
checkpoints.command(cls=_Command, epilog=_examples("checkpoint diff before.bin after.bin"))(spoken(checkpoint.diff))
app.add_typer(checkpoints, name="checkpoint")


def main(arguments: Sequence[str]) -> int:
    """Runs one command; returns its exit status."""
    status = _run(arguments)
    try:
        with writing_to_stdout():  # for what is still held back, such as the framework's help
            pass
    except TilegradError as error:
        return status or failure.report_error(error, arguments)
    return status


def _run(arguments: Sequence[str]) -> int:
    written.begin()
    try:
        status = app(args=list(arguments), prog_name="tilegrad", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every error has an exit status
        return _ending(error, arguments)
    if status == failure.INTERRUPTED_STATUS:  # the framework turns KeyboardInterrupt into this
        return failure.report_interrupt(arguments)
    return status if isinstance(status, int) else 0


def _ending(error: BaseException, arguments: Sequence[str]) -> int:
    if interrupted() or isinstance(error, KeyboardInterrupt):
        return failure.report_interrupt(arguments)
    if isinstance(error, TilegradError):
        return failure.report_error(error, arguments)
    if isinstance(error, typer.TyperException):
        return failure.report_usage(error.format_message(), _command_of(error), arguments)
    if isinstance(error, OSError):
        return failure.report_os_error(error, arguments)
    return failure.report_bug(error, arguments)


def _command_of(error: typer.TyperException) -> str:
    """Usage errors know the command they are about; the attribute is not part of the framework's public type."""
    return str(getattr(getattr(error, "ctx", None), "command_path", "tilegrad"))
