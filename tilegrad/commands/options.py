"""Options that several commands share: each is declared once, and means the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from tilegrad.commands.optimizers import make_optimizer
from tilegrad.data.epochs import DEFAULT_STEPS, Plan, count_updates
from tilegrad.data.stored import count_samples
from tilegrad.errors import UserError
from tilegrad.expectations import ONE_UNLESS_TOLD, RATE_UNLESS_TOLD
from tilegrad.pipeline import DUMPS
from tilegrad.recipe import (
    ACCUM_MODES,
    BATCHNORM_POLICIES,
    DECAY_RULES,
    LOSSES,
    OPTIMIZERS,
    AccumulationMode,
    BatchNormPolicy,
    DecayRule,
    LossText,
    Rate,
    Recipe,
    Stored,
    expect_count,
)
from tilegrad.recipe.guards import FORM as GUARD_FORM
from tilegrad.recipe.guards import Guard
from tilegrad.recipe.rates import parse_rate

_RECIPE = "Recipe"
_DATA = "Data"
_OUTPUT = "Output"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A zoo name (`tilegrad zoo` lists them), an .onnx file, or a training graph or its folder "
        "(docs/training-graphs.md).",
        show_default=False,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="D",
        help="Where it runs, such as host or sim:siracusa (`tilegrad devices` lists them).",
        show_default=True,
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="D[*N][,D…]",
        help="Where it runs, such as host or sim:siracusa (`tilegrad devices` lists them). Several share the "
        "mini-batches of an update, with the bits of one: host*2, or host,sim:siracusa (docs/several-devices.md).",
        show_default=True,
    ),
]
Shares = Annotated[
    int | None,
    typer.Option(
        "--shares",
        metavar="N",
        help="Shares of an update, for several devices to compute: --accum N, whose samples must divide into them.",
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="tcp://HOST:PORT|local:N",
        help="Let the workers of a Dask cluster compute the shares of an update, each on the --device, or N workers of "
        "this machine. Where it is lost, the last complete update is saved, and the same command goes on.",
        show_default=False,
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="T|F.toml|F.py",
        help="The chip (`tilegrad targets` lists them), or a file that describes one (docs/targets.md). Default: the "
        "device's.",
        show_default=False,
    ),
]
RunTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="T|F.toml|F.py",
        help="Run on this chip, or on the one that a file describes (docs/targets.md), simulated as sim:T. Default: "
        "the device's.",
        show_default=False,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        metavar="N",
        help="Samples in a mini-batch; binds the model's batch dimension. Default: 1, or a training graph's own.",
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
Accum = Annotated[
    int | None,
    typer.Option(
        "--accum",
        metavar="N",
        help="Mini-batches in one update. Default: 1, or a training graph's own.",
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
AccumMode = Annotated[
    str,
    typer.Option(
        "--accum-mode",
        metavar="|".join(ACCUM_MODES),
        help="mean: like one mini-batch --accum times as large. sum: gradients are added up.",
        rich_help_panel=_RECIPE,
    ),
]


def _defaults_of(option: str) -> str:
    """Which optimizers have an option, and what it is where it is not given."""
    found = {name: float(getattr(kind(), option)) for name, kind in OPTIMIZERS.items() if hasattr(kind(), option)}
    by_default = {f"{value:g}": [n for n in found if found[n] == value] for value in sorted(set(found.values()))}
    which = "" if len(found) == len(OPTIMIZERS) else f"For --optimizer {' or '.join(found)}. "
    usual, *others = sorted(by_default, key=lambda value: -len(by_default[value]))
    rest = "".join(f"{value} for {' and '.join(by_default[value])}, else " for value in others)
    return f"{which}Default: {rest}{usual}."


Loss = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="|".join(LOSSES),
        help="Options behind a colon (cross_entropy:smoothing=0.1,ignore=-100, huber:delta=1), sums with weights "
        "(mse+0.5*l1), of an output (mse@NAME), or output:NAME, which the model computes itself. Default: the zoo "
        "model's own, else cross_entropy.",
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
OptimizerName = Annotated[
    str, typer.Option("--optimizer", metavar="|".join(OPTIMIZERS), help="The update rule.", rich_help_panel=_RECIPE)
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--lr",
        metavar="X",
        help=f"Learning rate. Default: {RATE_UNLESS_TOLD:g}, or that of a training graph's own optimizer.",
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
MomentumFactor = Annotated[
    float | None,
    typer.Option(
        "--momentum",
        metavar="X",
        help=_defaults_of("momentum"),
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
WeightDecay = Annotated[
    float | None,
    typer.Option(
        "--weight-decay",
        metavar="X",
        help=_defaults_of("weight_decay"),
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
Nesterov = Annotated[
    bool, typer.Option("--nesterov", help="Nesterov's momentum, for --optimizer momentum.", rich_help_panel=_RECIPE)
]
Decay = Annotated[
    str,
    typer.Option(
        "--decay",
        metavar="|".join(DECAY_RULES),
        help="What --weight-decay is for. weights: no decay on biases and normalisations.",
        rich_help_panel=_RECIPE,
    ),
]
Schedule = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="constant|step:EVERY[:FACTOR]|cosine[:UPDATES[:FLOOR]]",
        help="How the learning rate follows the updates; evaluated on the device. step multiplies it by FACTOR (0.1) "
        "each EVERY updates; cosine lets it fall to FLOOR (0) of it within UPDATES, by default all of the run.",
        rich_help_panel=_RECIPE,
    ),
]
Warmup = Annotated[
    int,
    typer.Option(
        "--warmup",
        metavar="N",
        help="Before that, let the learning rate rise in N equal steps.",
        rich_help_panel=_RECIPE,
    ),
]
Clip = Annotated[
    float | None,
    typer.Option(
        "--clip",
        metavar="X",
        help="Scale the gradients of an update down where the norm of all of them is above X. Keeps every gradient "
        "until the update.",
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        metavar="N",
        help="Go through the data N times, in place of --steps; the first updates are verified.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
Validation = Annotated[
    str | None,
    typer.Option(
        "--validation",
        metavar="SHARE|F.npz",
        help="Measure loss and accuracy before, after each epoch and at the end: on this share of the samples, held "
        "out, or on another file. Default with --epochs: on the samples that train.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
Shuffle = Annotated[
    bool | None,
    typer.Option(
        "--shuffle/--no-shuffle",
        help="Another order of the samples in each epoch, from the seed. Default: with --epochs.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        "--patience",
        metavar="N",
        help="Stop after N epochs without a better measure, and keep the best epoch's parameters.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
TopK = Annotated[
    list[int] | None,
    typer.Option(
        "--top-k",
        metavar="K",
        help="Also tell how often the label is among the K most likely classes. May be given several times.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
Train = Annotated[
    str | None,
    typer.Option(
        "--train",
        metavar="all|last:K|bias|norm|names:GLOB,…|sparse:FILE|sparse:BUDGET|lora:R[:ALPHA][:GLOB,…]",
        help="Which parameters train: every one, those of the last K layers, the biases, scales and biases of "
        "normalisations, those whose initializer name matches, the tensors and channels that a file lists or that are "
        "chosen for a size (sparse:256K) or a share of all memory (sparse:0.25), or new adapters of rank R on every "
        "matrix (or on those that match), scaled by ALPHA / R. + joins several: lora:4+last:1. Default: the zoo "
        "model's own, else all.",
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
GuardOption = Annotated[
    str | None,
    typer.Option(
        "--guard",
        metavar=GUARD_FORM,
        help="Undo what leads to a NaN or an infinity, or to a loss above X: the last good parameters come back, and "
        "tg_step or tg_update says so.",
        show_default=False,
        rich_help_panel=_RECIPE,
    ),
]
BatchNorm = Annotated[
    str,
    typer.Option(
        "--batchnorm",
        metavar="|".join(BATCHNORM_POLICIES),
        help="frozen: running statistics normalise. train: the batch's do, and update them. fold: folded into the "
        "convolution.",
        rich_help_panel=_RECIPE,
    ),
]
Store = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="f32|bf16|fp16|activations=T,optimizer=T",
        help="Keep saved activations and the optimizer's state in two bytes a number, rounded when they are kept; "
        "computation stays in float32 (docs/store.md). One type is for all there is.",
        rich_help_panel=_RECIPE,
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", help="Of synthetic data, dropout and zoo weights.", rich_help_panel=_DATA),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="F.npz|DIR",
        help="Arrays x (samples along the first axis) and y (class indices, or targets), or one by the name of each "
        "input, in order, wrapping round. A folder has them as NAME.npy, or in several .npz files that are joined. "
        "Default: synthetic data from the seed.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="F.safetensors|F.npz|F.onnx",
        help="Begin with these weights, by initializer name, in place of the model's own: what --save wrote.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="F.safetensors|F.npz|F.onnx",
        help="Write the trained model here: all of its parameters and running statistics, or the ONNX model it came "
        "as with these in it. Adapters are merged into their weights.",
        show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]
KeepAdapters = Annotated[
    bool, typer.Option("--keep-adapters", help="With --save, leave adapters as they are.", rich_help_panel=_OUTPUT)
]
Verify = Annotated[
    bool,
    typer.Option("--verify/--no-verify", help="Compare with an independent reference; exit 1 where they disagree."),
]
Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance",
        metavar="X",
        help="Largest relative error that is no disagreement, or ten times PyTorch's own float32 error where that is "
        "more.",
    ),
]
OutputFolder = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="DIR",
        help="Keep the C project here; it appears complete or not at all. Files that tilegrad did not write stay.",
        show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="With -o, overwrite files of an earlier project that were edited since. Never overwrites other files.",
        rich_help_panel=_OUTPUT,
    ),
]
JsonTo = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="The result as JSON. - is stdout, and nothing else is printed there. NaN and infinities are strings.",
        show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]
TraceTo = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write the timed events of one call of each entry: in Chrome's format, which Perfetto reads too, where "
        "FILE ends in .json, else in Perfetto's own.",
        show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]
DumpAfter = Annotated[
    str | None,
    typer.Option(
        "--dump-after",
        metavar="STAGE",
        help=f"Print what a compiler stage or pass made, as stable text: {', '.join(DUMPS)}.",
        show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]
ResidencyOf = Annotated[
    str | None,
    typer.Option(
        "--residency",
        metavar="NAME=PLACE,…",
        help="Where inputs, outputs and gradients live between calls, host or device: all (inputs=, outputs=, "
        "gradients=) or single ones by name. --dump-after plan shows it.",
        show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="F",
        help="Go on from a checkpoint, bit for bit, whatever device saved it. Updates count from the beginning.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
CheckpointTo = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="F",
        help="Write a checkpoint here at the end, for --resume, tg_load and `tilegrad checkpoint`.",
        show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-every",
        metavar="N",
        help="Write it after every N updates, too.",
        show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Compile all C again instead of reusing objects.")]


def npz_option(flag: str, what: str) -> Any:
    return typer.Option(flag, metavar="F.npz", help=f"Write {what} here.", show_default=False, rich_help_panel=_OUTPUT)


def check_stage(stage: str | None) -> None:
    if stage is not None and stage not in DUMPS:
        near = get_close_matches(stage, DUMPS, n=1)
        raise UserError(
            f"there is no stage '{stage}' to dump after",
            stage="options",
            expected=" or ".join(DUMPS),
            got=stage,
            hint=f"did you mean '{near[0]}'?" if near else None,
        )


@dataclass(frozen=True)
class RecipeOptions:
    """What is trained, and how."""

    batch: Batch = None
    accum: Accum = None
    accum_mode: AccumMode = "mean"
    loss: Loss = None
    optimizer: OptimizerName = "sgd"
    lr: LearningRate = None
    momentum: MomentumFactor = None
    weight_decay: WeightDecay = None
    nesterov: Nesterov = False
    decay: Decay = "all"
    schedule: Schedule = "constant"
    warmup: Warmup = 0
    clip: Clip = None
    train: Train = None
    batchnorm: BatchNorm = "frozen"
    guard: GuardOption = None
    store: Store = "f32"
    seed: Seed = 0

    def recipe(self, updates: int | None = DEFAULT_STEPS) -> Recipe:
        """The recipe checks what the options hold, so that Python and the command line say the same. `updates` is how
        many the run has, None where nobody knows."""
        return Recipe(
            loss=None if self.loss is None else LossText(self.loss),
            optimizer=make_optimizer(self.optimizer, self.lr, self.momentum, self.weight_decay, self.nesterov),
            batch=ONE_UNLESS_TOLD if self.batch is None else self.batch,
            accumulate=ONE_UNLESS_TOLD if self.accum is None else self.accum,
            accum_mode=cast(AccumulationMode, self.accum_mode),
            train=self.train,
            batchnorm=cast(BatchNormPolicy, self.batchnorm),
            seed=self.seed,
            rate=parse_rate(self.schedule, self.warmup) if updates is None else self._rate(updates),
            clip=self.clip,
            decay=cast(DecayRule, self.decay),
            guard=None if self.guard is None else Guard.parse(self.guard),
            store=Stored.parse(self.store),
        )

    def with_shares(self, shares: int | None) -> RecipeOptions:
        """A share is a mini-batch of an update: there is one number of them."""
        if shares is None:
            return self
        expect_count("the number of shares", shares)
        if self.accum not in (None, 1, shares):
            raise UserError(
                "an update has as many shares as mini-batches",
                stage="options",
                expected="--shares or --accum, or the same number for both",
                got=f"--shares {shares} --accum {self.accum}",
            )
        return replace(self, accum=shares)

    def _rate(self, updates: int) -> Rate:
        return parse_rate(self.schedule, self.warmup).over(updates)


@dataclass(frozen=True)
class DataOptions:
    """What a run is fed, and what is measured of it."""

    data: Data = None
    epochs: Epochs = None
    validation: Validation = None
    shuffle: Shuffle = None
    patience: Patience = None
    top_k: TopK = None

    def held_out(self) -> float | Path | None:
        """A share, or a file."""
        if self.validation is None:
            return None
        try:
            return float(self.validation)
        except ValueError:
            return Path(self.validation)

    def updates(self, steps: int | None, batch: int | None, accum: int | None) -> int:
        """Of the run, for what follows their number. Whatever is wrong with the data is said when it is loaded."""
        plan = Plan(steps, self.epochs, self.shuffle, self.held_out())
        samples = 1 if self.epochs is None or self.data is None else count_samples(self.data)
        return count_updates(samples, plan, max(batch or 1, 1), max(accum or 1, 1))
